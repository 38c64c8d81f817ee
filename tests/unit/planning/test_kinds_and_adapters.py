"""What a plan knows of the kind of model, and of the adapters that a service has."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.errors import UsageError
from clusterctl.planning.service_plan import ServicePlan
from clusterctl.serving.service import difference, needs_restart
from tests.fakes.catalogue import config_of
from tests.fakes.transport import starts
from tests.unit.planning.test_prepared_service import Cluster

WHISPER = config_of("openai/whisper-large-v3")
VISION = config_of("Qwen/Qwen3-VL-8B-Instruct")
SPEAKS = {**config_of("Qwen/Qwen3-8B"), "architectures": ["Qwen3TTSForConditionalGeneration"]}


def cluster_with(config: dict[str, Any]) -> Cluster:
    cluster = Cluster("nvidia")
    record = f"directory /data/models/qwen\nweights 1 0\n|{json.dumps(config)}\nend\n"
    for transport in cluster.transports.values():
        transport.on(starts("sh", "-c"), stdout=record)
    return cluster


def with_adapters(plan: ServicePlan, **adapters: str) -> ServicePlan:
    replicas = tuple(
        replace(each, document=replace(each.document, adapters=adapters)) for each in plan.replicas
    )
    return replace(plan, replicas=replicas, members=replace(plan.members, adapters=adapters))


@pytest.mark.parametrize(("config", "kind"), [(WHISPER, "speech"), (VISION, "vision")])
def test_config_json_tells_the_supervisor_what_to_ask_first(
    config: dict[str, Any], kind: str
) -> None:
    document = cluster_with(config).prepare().document

    assert document.kind == kind


def test_whisper_gets_one_gpu_and_its_memory_is_planned() -> None:
    plan = cluster_with(WHISPER).prepare()

    assert plan.layout.hosts == ("gpu1",)
    assert any("requests of 448 tokens at once" in note for note in plan.notes)
    assert cluster_with(WHISPER).prepare(tp=2).layout.ranks == 2


def test_a_model_that_speaks_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="has no /v1/audio/speech"):
        cluster_with(SPEAKS).prepare()


def test_a_service_keeps_its_adapters_and_gives_them_to_new_replicas() -> None:
    cluster = Cluster("nvidia")
    before = with_adapters(cluster.prepare("--enable-lora", tp=1), sql="/models/adapters/sql-1")

    after = cluster.prepare("--enable-lora", tp=1, replicas="2", declared=(before,))

    assert [each.document.adapters for each in after.replicas] == [
        {"sql": "/models/adapters/sql-1"}
    ] * 2
    assert after.members.adapters == {"sql": "/models/adapters/sql-1"}


def test_a_service_with_adapters_is_not_served_without_their_flag() -> None:
    cluster = Cluster("nvidia")
    before = with_adapters(cluster.prepare("--enable-lora", tp=1), sql="/models/adapters/sql-1")

    with pytest.raises(UsageError, match=r"has adapters \(sql\)") as caught:
        cluster.prepare(tp=1, declared=(before,))
    assert "clusterctl adapter rm qwen sql" in (caught.value.hint or "")


def test_an_adapter_is_a_difference_that_needs_no_restart() -> None:
    old = Cluster("nvidia").prepare("--enable-lora", tp=1).document
    new = replace(old, adapters={"sql": "/models/adapters/sql-1"})

    assert difference(old, new) == ["adapter sql: /models/adapters/sql-1 (new)"]
    assert not needs_restart(old, new)
