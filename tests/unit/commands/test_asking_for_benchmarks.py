"""Which services `bench` measures, and at which address."""

from __future__ import annotations

from dataclasses import replace
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.commands.bench import predicted
from clusterctl.errors import UsageError
from clusterctl.facts.model import HostFacts
from clusterctl.models.config_json import describe
from clusterctl.node.documents import GatewayState, Member, MembersDocument, to_json
from clusterctl.node.files import NodePaths
from clusterctl.planning.hardware import parse_gpus
from clusterctl.planning.placement import Site, seat_ranks
from clusterctl.planning.speed import LinkSpeed, SpeedModel
from clusterctl.serving import measuring
from clusterctl.serving.bench import BenchLoad
from clusterctl.serving.job import Job, JobResult
from clusterctl.serving.measuring import asked_for, measure, replicas_named, require_ready
from clusterctl.serving.service import build_service
from tests.fakes.catalogue import config_of
from tests.fakes.surveys import Said, survey_of
from tests.unit.serving.launches import launch
from tests.unit.serving.test_benchmarks import SAMPLE
from tests.unit.survey.test_cluster_status import INVENTORY, SERVICE, facts, healthy

__all__ = ["facts"]


def reports(facts: HostFacts) -> dict[str, Said]:
    """`tiny` has two replicas behind the gateway at port 9000, `other` has none."""
    found = healthy(facts)
    members = MembersDocument(
        "tiny", ["tiny"], 9000, [Member(1, "gpu1", "10.0.0.1", 8000)], listen="10.0.0.9"
    )
    files = {str(NodePaths("demo").members / "tiny.json"): to_json(members).encode()}
    services = (SERVICE, replace(SERVICE, name="tiny@2", replica=2), replace(SERVICE, name="other"))
    state = found["gpu1"].state
    assert state is not None
    state = replace(state, gateway=GatewayState("up", listens=["10.0.0.9:9000"]))
    found["gpu1"] = replace(found["gpu1"], state=state, services=services, files=files)
    return found


def test_a_service_with_replicas_is_measured_through_its_gateway(facts: HostFacts) -> None:
    survey = survey_of(INVENTORY, reports(facts))
    tiny, second, other = asked_for(["tiny", "tiny@2", "other"], survey)

    assert (tiny.name, tiny.host, tiny.port) == ("tiny", "10.0.0.9", 9000)
    assert (second.host, second.port) == (SERVICE.host, SERVICE.port)
    assert (other.host, other.port) == (SERVICE.host, SERVICE.port)
    with pytest.raises(UsageError, match="name the services to measure: other, tiny"):
        asked_for([], survey)


def test_only_a_ready_service_is_measured_and_in_the_unit_of_its_kind(facts: HostFacts) -> None:
    survey = survey_of(INVENTORY, reports(facts))
    ready = replicas_named("tiny", survey)
    require_ready("tiny", ready)
    with pytest.raises(UsageError, match="other is declared"):
        require_ready("other", replicas_named("other", survey))
    state = ready[0].state
    assert state is not None
    with pytest.raises(UsageError, match="tiny is loading"):
        require_ready("tiny", [replace(ready[0], state=replace(state, state="loading"))])
    embeds = replace(ready[0], state=replace(state, kind="embed"))
    assert require_ready("tiny", [embeds]).unit == "texts"
    waits = replace(state, state="waiting", kind="")
    taken_over = replace(ready[0], state=waits, standby=embeds.state)
    assert require_ready("tiny", [taken_over]).unit == "texts"


def test_no_run_has_the_prompts_of_another(
    facts: HostFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's prefix cache would still have them."""
    jobs: list[Job] = []

    def ran(_head: object, _cluster: str, job: Job, *_: Any) -> JobResult:
        jobs.append(job)
        return JobResult(0, SAMPLE.encode())

    monkeypatch.setattr(measuring, "run_job", ran)
    head: Any = SimpleNamespace(host=INVENTORY.head)
    survey = survey_of(INVENTORY, reports(facts), {head.host.name: head})
    load = BenchLoad(1, None, 256, 128, 8)
    for _ in range(2):
        measure(survey, build_service(launch()), load, "s3cret", Event(), lambda _event: None)
    seeds = {job.argv[job.argv.index("--seed") + 1] for job in jobs}
    assert len(seeds) == 2


def test_the_estimate_is_for_as_many_requests_as_are_sent() -> None:
    """Of 8 requests no more than 8 are under way, whatever is allowed at once."""
    placement = seat_ranks([Site("a", parse_gpus("H200"))], 1, 1)
    shape = describe(config_of("qwen/qwen2.5-1.5b-instruct"))
    speed = SpeedModel(shape, placement, None, LinkSpeed(4e9, 41e-6))

    expected = replace(speed, prompt=64, output=32, rounds=1.0).load(8)
    assert predicted(speed, BenchLoad(64, None, 64, 32, 8)) == expected
    assert predicted(speed, BenchLoad(None, 4.0, 64, 32, 8)) is None
    assert predicted(None, BenchLoad(8, None, 64, 32, 8)) is None
