"""Which services have ranks that start early."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.node.documents import ServiceDocument
from clusterctl.node.prestart import RANK_VARIABLES, prestart_arguments

SERVICE = ServiceDocument(
    "chat", "m", "m", [], {}, "10.0.0.1", 8100, 2, 2, 4, "f",
    node_ips=["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2"],
)  # fmt: skip
ENV = {"RAY_ADDRESS": "10.0.0.1:6379", RANK_VARIABLES: "A,B"}


def test_each_host_is_asked_for_its_ranks() -> None:
    assert prestart_arguments(SERVICE, ENV) == [
        "--address", "10.0.0.1:6379", "--variables", "A,B", "10.0.0.1=2", "10.0.0.2=2",
    ]  # fmt: skip


@pytest.mark.parametrize("own", [{}, {RANK_VARIABLES: "off"}])
def test_without_early_ranks_one_worker_waits_to_look_for_held_gpus(own: dict[str, str]) -> None:
    env = {"RAY_ADDRESS": "10.0.0.1:6379", **own}
    assert prestart_arguments(SERVICE, env) == [
        "--address", "10.0.0.1:6379", "--variables", "", "10.0.0.1=1", "10.0.0.2=1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("document", "env"),
    [
        (SERVICE, {RANK_VARIABLES: "A"}),
        (replace(SERVICE, node_ips=[]), ENV),  # Ray chooses the hosts
        (replace(SERVICE, tensor_parallel=1, pipeline_parallel=1), ENV),  # Data parallel
    ],
    ids=["no Ray", "no hosts", "data parallel"],
)
def test_nothing_starts_early(document: ServiceDocument, env: dict[str, str]) -> None:
    assert prestart_arguments(document, env) is None
