"""Host memory for services that sleep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.errors import DoesNotFit, UsageError
from clusterctl.node.documents import ServiceDocument
from clusterctl.planning.sleepers import parked, require_host_memory, require_one_replica
from clusterctl.units import GIB

CODER = ServiceDocument(
    name="coder", model="m", served_name="m", argv=[], env={}, host="", port=1, tensor_parallel=2,
    pipeline_parallel=1, gpus=2, fingerprint="", idle=600.0, parked_gib=15.0,
    node_ips=["10.0.0.1", "10.0.0.1"],
)  # fmt: skip
OTHER = replace(CODER, name="chat", node_ips=["10.0.0.1", "10.0.0.2"])
MEMORY = {"10.0.0.1": ("gpu1", 128 * GIB), "10.0.0.2": ("gpu2", 128 * GIB)}


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
    require_one_replica("coder", 1)
    with pytest.raises(UsageError, match="one replica, not 2"):
        require_one_replica("coder", 2)
