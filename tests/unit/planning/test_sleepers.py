"""Host memory for services that sleep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.errors import DoesNotFit, UsageError
from clusterctl.node.documents import ServiceDocument
from clusterctl.planning.placement import sites_of
from clusterctl.planning.report import Hardware
from clusterctl.planning.sleepers import (
    parked,
    require_host_memory,
    require_one_replica,
    with_room_for_sleeper,
)
from clusterctl.serving.request import Options, ServiceRequest, read_request
from clusterctl.serving.vllm_flags import Argument, last_value
from clusterctl.units import GIB

CODER = ServiceDocument(
    name="coder", model="m", served_name="m", argv=[], env={}, host="", port=1, tensor_parallel=2,
    pipeline_parallel=1, gpus=2, fingerprint="", idle=600.0, parked_gib=15.0,
    node_ips=["10.0.0.1", "10.0.0.1"],
)  # fmt: skip
PAIR = replace(CODER, idle=0.0, standby_port=2)
OTHER = replace(CODER, name="chat", node_ips=["10.0.0.1", "10.0.0.2"])
MEMORY = {"10.0.0.1": ("gpu1", 128 * GIB), "10.0.0.2": ("gpu2", 128 * GIB)}


def hardware(gpu: str) -> Hardware:
    return Hardware(sites_of(f"2x{gpu}", 1), vllm="0.33.0")


def test_each_rank_may_take_twice_its_weights_of_its_host() -> None:
    assert parked([CODER]) == {"10.0.0.1": 60.0}
    assert parked([CODER, OTHER]) == {"10.0.0.1": 90.0, "10.0.0.2": 30.0}


def test_what_fits_beside_the_others_is_taken() -> None:
    require_host_memory(CODER, [OTHER], MEMORY)


def test_what_does_not_is_refused_with_exit_11_and_names_the_host() -> None:
    with pytest.raises(DoesNotFit) as refused:
        require_host_memory(CODER, [OTHER, replace(OTHER, name="third")], MEMORY)
    assert refused.value.host == "gpu1"
    assert refused.value.exit_code == 11
    assert refused.value.summary == (
        "coder may take 60.0 GiB of the host's memory while it sleeps, but only 96.0 GiB may be "
        "used for that, of which other services take 60.0"
    )
    assert refused.value.hint == "leave --idle out, or add --on with hosts other than gpu1"


def test_a_host_of_unknown_memory_refuses_nothing() -> None:
    require_host_memory(CODER, [OTHER], {})


def test_a_service_that_sleeps_has_one_replica() -> None:
    require_one_replica(CODER, "coder", 1)
    require_one_replica(replace(CODER, idle=0.0), "coder", 2)
    with pytest.raises(UsageError, match=r"sleeps when it is idle .* one replica, not 2"):
        require_one_replica(CODER, "coder", 2)
    with pytest.raises(UsageError, match="has a standby") as refused:
        require_one_replica(PAIR, "coder", 2)
    assert refused.value.hint == "clusterctl scale coder 1, or serve it without --standby"


def test_both_engines_of_a_pair_may_wait_in_the_hosts_memory() -> None:
    assert parked([PAIR]) == {"10.0.0.1": 120.0}
    with pytest.raises(
        DoesNotFit, match=r"may take 120.0 GiB .* while its engines sleep"
    ) as refused:
        require_host_memory(PAIR, [], MEMORY)
    assert refused.value.hint == "leave --standby out, or add --on with hosts other than gpu1"


@pytest.mark.parametrize(
    ("gpu", "sizes", "utilization"),
    [("H100", (1, 1), "0.89"), ("H100", (2, 1), "0.87"), ("H100", (None, None), "0.87"),
     ("L4", (1, 1), "0.82")],
)  # fmt: skip
def test_a_sleeping_standby_has_room_on_each_gpu(
    gpu: str, sizes: tuple[int | None, int | None], utilization: str
) -> None:
    request = read_request(Options("m", *sizes, standby=True))
    found = with_room_for_sleeper(request, hardware(gpu))
    assert last_value(found.given, "gpu-memory-utilization") == utilization
    alone = read_request(Options("m", *sizes))
    assert with_room_for_sleeper(alone, hardware(gpu)) == alone


def test_a_share_of_memory_that_leaves_no_room_is_refused_with_one_that_does() -> None:
    def asked(share: str) -> ServiceRequest:
        argument = Argument("gpu-memory-utilization", (share,))
        return read_request(Options("m", 2, standby=True), extra=[argument])

    assert with_room_for_sleeper(asked("0.92"), hardware("H100")) == asked("0.92")
    with pytest.raises(DoesNotFit, match="GiB of each GPU while it sleeps") as refused:
        with_room_for_sleeper(asked("0.95"), hardware("H100"))
    assert refused.value.hint == "--gpu-memory-utilization 0.92, or leave it out"
