"""Which GPUs a new service may have: not those that declared services will take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Gpu, Host, Inventory
from clusterctl.network.choice import resolve
from clusterctl.node.documents import Rank, RayNode, ServiceDocument, ServiceState
from clusterctl.planning.free_gpus import HeldGpus, count_gpus
from clusterctl.survey.services import Replica
from tests.fakes.host_facts import host_facts, nic

INVENTORY = Inventory(
    cluster="demo",
    image="vllm:1",
    hosts=(
        Host(name="gpu2", address="10.0.0.2", gpus=(Gpu(),)),
        Host(name="gpu1", address="10.0.0.1", role="head", gpus=(Gpu(),)),
    ),
)
BIG = ServiceDocument(
    name="big", model="big", served_name="big", argv=["vllm", "serve", "/m"], env={},
    host="10.0.0.1", port=8100, tensor_parallel=1, pipeline_parallel=1, gpus=1, fingerprint="x",
    node_ips=["10.0.0.1"],
)  # fmt: skip
ON_GPU2 = Rank(0, 0, 0, "gpu2", "10.0.0.2", 7)


def facts(address: str) -> HostFacts:
    return host_facts(nic("eth0", f"{address}/24"))


def held(
    *services: ServiceState,
    used: tuple[float, float] = (0, 0),
    declared: ServiceDocument | None = BIG,
    own: ServiceDocument | None = None,
) -> HeldGpus:
    """`used`: what Ray says of gpu1 and gpu2."""
    topology = resolve(INVENTORY, {"gpu1": facts("10.0.0.1"), "gpu2": facts("10.0.0.2")})
    nodes = [
        RayNode(f"n{n}", f"10.0.0.{n}", f"gpu{n}", True, n == 1, 1, used[n - 1], 8) for n in (1, 2)
    ]
    running = {service.name: service for service in services}
    ranks = {service.name: service.ranks for service in services}
    replicas = [Replica(one, "gpu1", running.get(one.name)) for one in (declared,) if one]
    return count_gpus(topology, nodes, replicas, ranks, {own.name} if own else set())


def free(found: HeldGpus) -> dict[str, int]:
    return {host.host: host.free for host in found.free}


def of(state: str, *ranks: Rank) -> ServiceState:
    return ServiceState("big", state, 0.0, ranks=list(ranks))


def test_all_are_free_where_nothing_is_declared() -> None:
    found = held(declared=None)
    assert free(found) == {"gpu1": 1, "gpu2": 1}
    assert found.holders == ()


@pytest.mark.parametrize("services", [(), (of("waiting"),), (of("backing-off"),), (of("failed"),)])
def test_a_declared_service_that_is_not_up_holds_its_gpus(
    services: tuple[ServiceState, ...],
) -> None:
    found = held(*services)
    assert free(found) == {"gpu1": 0, "gpu2": 1}
    state = services[0].state if services else "declared"
    assert found.holders == (f"service big ({state}) holds 1 GPU",)


def test_a_replica_that_leaves_gives_its_gpu_back_also_without_a_document() -> None:
    """As in the plan of a whole file, which goes on without what an earlier service gave up."""
    found = held(of("ready", ON_GPU2), used=(0, 1), declared=None, own=BIG)
    assert free(found) == {"gpu1": 1, "gpu2": 1}


def test_one_that_runs_is_counted_once_where_its_ranks_are() -> None:
    found = held(of("ready", ON_GPU2), used=(0, 1))
    assert free(found) == {"gpu1": 1, "gpu2": 0}
    assert found.holders == ("service big (ready) holds 1 GPU on gpu2",)


def test_one_that_loads_is_counted_once_before_its_ranks_are_seen() -> None:
    assert free(held(of("loading"), used=(1, 0))) == {"gpu1": 0, "gpu2": 1}


def test_what_others_do_in_ray_is_no_seat_of_a_service_that_waits() -> None:
    assert free(held(of("waiting"), used=(0, 0.5))) == {"gpu1": 0, "gpu2": 0}


@pytest.mark.parametrize(
    ("services", "used"),
    [((), (0, 0)), ((of("ready", ON_GPU2),), (0, 1)), ((of("loading"),), (1, 0))],
)
def test_a_service_that_is_replaced_gives_its_gpus_back(
    services: tuple[ServiceState, ...], used: tuple[float, float]
) -> None:
    found = held(*services, used=used, own=BIG)
    assert free(found) == {"gpu1": 1, "gpu2": 1}
    assert found.holders == ()


def test_more_declared_than_there_is_leaves_nothing() -> None:
    more = replace(BIG, gpus=4, node_ips=["10.0.0.1"] * 2 + ["10.0.0.2"] * 2)
    assert free(held(declared=more)) == {"gpu1": 0, "gpu2": 0}
