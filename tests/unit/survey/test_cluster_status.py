"""What status makes of hosts' reports: states in, a screen, sentences and a verdict out."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from clusterctl.commands.status import causes_of_failures
from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.model import Disk, HostFacts
from clusterctl.facts.parse import parse_probe
from clusterctl.facts.sections import split_sections
from clusterctl.inventory.model import Gpu, Host, Inventory
from clusterctl.node.documents import (
    DELETED,
    BrokenNic,
    DrainedHosts,
    GatewayState,
    Member,
    MembersDocument,
    NodeState,
    Rank,
    RayNode,
    ServiceDocument,
    ServiceState,
    UnreadableDocument,
    declared_dir,
    to_json,
)
from clusterctl.reporting.status_view import status_document, status_screen
from clusterctl.serving.declaration import members_file
from clusterctl.survey.status import ClusterStatus, assess, with_causes
from clusterctl.survey.survey import Survey, drained_file, look_twice
from clusterctl.transport.base import Transport
from tests.fakes.host_facts import nic
from tests.fakes.surveys import Said, survey_of
from tests.fakes.transport import FakeTransport

INVENTORY = Inventory(
    cluster="demo",
    image="vllm/vllm-openai:v0.33.0",
    hosts=(
        Host(name="gpu1", address="10.0.0.1", role="head", gpus=(Gpu(),)),
        Host(name="gpu2", address="10.0.0.2", gpus=(Gpu(),)),
    ),
)
ETC = "/etc/clusterctl/demo"
LOGS = "/var/log/clusterctl/demo"
NVML = "Failed to initialize NVML: Unknown Error"
SERVICE = ServiceDocument(
    name="tiny", model="/data/models/tiny", served_name="tiny", argv=[], env={}, host="10.0.0.1",
    port=8100, tensor_parallel=2, pipeline_parallel=1, gpus=2, fingerprint="f",
    node_ips=["10.0.0.1", "10.0.0.2"],
)  # fmt: skip
MEMBERS = MembersDocument("tiny", ["tiny"], 8000, [Member(1, "gpu1", "10.0.0.1", 8100)], asked=1)


UP = GatewayState("up", listens=["10.0.0.1:8000"])


def listed(members: MembersDocument = MEMBERS) -> dict[str, bytes]:
    return {members_file("demo", "tiny"): to_json(members).encode()}


@pytest.fixture
def facts() -> HostFacts:
    captures = Path(__file__).parents[1] / "facts" / "captures"
    text = (captures / "debian-12-docker-20.10.txt").read_text()

    facts = parse_probe(split_sections(text, "MARK"), sudo_error=None, received=0.0).facts
    return replace(facts, clock=1000.0, engine=replace(facts.engine, running=True))


def ray(name: str, *, alive: bool = True, gpus: float = 1, used: float = 1) -> RayNode:
    return RayNode(name, f"10.0.0.{name[-1]}", name, alive, name == "gpu1", gpus, used, 8.0)


def state(host: str, **more: object) -> NodeState:
    role = "head" if host == "gpu1" else "worker"
    made = NodeState(host, role, 999.0, "0.1.0", "up", 0.0, 0, ray_version="2.60.0")
    return replace(made, **more)  # type: ignore[arg-type]


def healthy(facts: HostFacts) -> dict[str, Said]:
    ranks = [Rank(0, 0, 0, "gpu1", "10.0.0.1", 7), Rank(1, 1, 0, "gpu2", "10.0.0.2", 8)]
    ready = ServiceState("tiny", "ready", 0.0, "f", running=3, tokens_per_second=41.5, ranks=ranks)
    head = state("gpu1", nodes=[ray("gpu1"), ray("gpu2")], services=[ready], gateway=UP)
    return {
        "gpu1": Said(facts, head, "running", services=(SERVICE,), files=listed()),
        "gpu2": Said(facts, state("gpu2"), "running"),
    }


def test_why_a_service_fails_is_read_from_its_log(facts: HostFacts) -> None:
    cause = "ERROR 11-02 10:00:00 [core.py:1] ValueError: No available memory for the cache blocks."
    log = "\n".join([cause, *["(APIServer pid=1)   a line of a traceback"] * 150])
    reports = with_service(healthy(facts), state="backing-off", detail="ended with status 1")
    head = FakeTransport(Host(name="gpu1", address="192.0.2.1"))
    head.on(lambda argv: argv[3:4] == ("clusterctl",), stdout=json.dumps({"tiny.log": log}))
    survey = survey_of(INVENTORY, reports, {"gpu1": head, "gpu2": FakeTransport()})

    found = assess(survey)
    status = with_causes(found, causes_of_failures(found, survey))

    assert any(
        text.startswith("service tiny: backing-off (ended with status 1; nothing of --gpu-mem")
        for text in status.problems
    )
    assert status_document(status)["services"][0]["cause"].startswith(
        "nothing of --gpu-memory-utilization is left"
    )
    assert causes_of_failures(assess(survey_of(INVENTORY, healthy(facts))), survey) == {}


def with_service(reports: dict[str, Said], **more: object) -> dict[str, Said]:
    """The same, with its one service as it is now said to be."""
    head = reports["gpu1"]
    assert head.state
    service = replace(head.state.services[0], **more)  # type: ignore[arg-type]
    return {**reports, "gpu1": replace(head, state=replace(head.state, services=[service]))}


def screen(status: ClusterStatus) -> str:
    out = io.StringIO()
    Console(file=out, width=120).print(status_screen(status))
    return out.getvalue()


def test_a_healthy_cluster_reads_so(facts: HostFacts) -> None:
    status = assess(survey_of(INVENTORY, healthy(facts)))
    assert status.healthy
    text = screen(status)
    for words in ("healthy", "Ray 2.60.0", "0 on gpu1, 1 on gpu2", "41.5 tokens/s", "1 of 1"):
        assert words in text
    document = json.loads(json.dumps(status_document(status)))
    assert document["services"][0]["endpoint"] == "http://10.0.0.1:8000/v1"
    assert document["services"][0]["last_failure_seconds_ago"] is None


def test_an_engine_that_shows_no_sign_of_life_is_a_problem_at_once(facts: HostFacts) -> None:
    silence = "no token for 15 s (3 requests running, 0 waiting)"
    status = assess(survey_of(INVENTORY, with_service(healthy(facts), silence=silence)))
    assert status.problems == (f"service tiny: {silence}",)
    assert f"silent     {silence}" in screen(status)
    assert status_document(status)["services"][0]["silence"] == silence


def test_a_service_whose_ranks_ray_does_not_list_is_not_healthy(facts: HostFacts) -> None:
    told = "Ray lists 0 of its 2 ranks: if one ends, only vLLM can notice"
    reports = with_service(healthy(facts), unwatched=told, ranks=[])
    status = assess(survey_of(INVENTORY, reports))
    assert status.problems == (f"service tiny: {told}",)
    assert status.hints == ("clusterctl restart tiny",)


def test_what_a_serving_host_lost_since_bootstrap_is_named(facts: HostFacts) -> None:
    """Its shared memory, and large packets: both go unnoticed until something starts."""
    reports = healthy(facts)
    nics = {n: nic("eth0", f"10.0.0.{n}") for n in (1, 2)}
    nics[2] = replace(nics[2], mtu=500)
    for name, own in (("gpu1", nics[1]), ("gpu2", nics[2])):
        free = 0 if name == "gpu1" else 2**30
        plain = replace(facts, nics=(own,), shm=2**31, shm_free=free)
        reports[name] = replace(reports[name], facts=plain)
    status = assess(survey_of(INVENTORY, reports))
    assert status.problems == (
        "gpu1: /dev/shm is full: 0 of 2048 MiB are free, and no engine can start there",
        "gpu2: its MTU on eth0 is 500, but 1500 on the others: larger packets are lost",
    )
    assert "on gpu2: sudo ip link set eth0 mtu 1500" in status.hints


def test_a_container_whose_engine_is_too_busy_to_list_it_is_not_missing(facts: HostFacts) -> None:
    reports = healthy(facts)
    reports["gpu2"] = replace(reports["gpu2"], container="missing", listed=False)
    status = assess(survey_of(INVENTORY, reports))
    assert status.problems == ()
    assert status_document(status)["hosts"][1]["container"] == "running"

    reports["gpu2"] = replace(reports["gpu2"], state=state("gpu2", time=960.0))
    status = assess(survey_of(INVENTORY, reports))
    assert status.problems[0] == (
        "gpu2: its engine does not list its containers, and the supervisor last wrote 40 s ago"
    )
    assert status_document(status)["hosts"][1]["container"] == ""


@pytest.mark.parametrize(
    ("second", "problems"),
    [("running", ()), ("missing", ("gpu2: the node container is missing",))],
)
def test_a_container_that_one_look_misses_is_looked_for_again(
    facts: HostFacts, second: str, problems: tuple[str, ...]
) -> None:
    """While its supervisor reports: it is being replaced, or was removed just now."""
    asked = list[list[str]]()

    def look(hosts: Mapping[str, Transport]) -> Survey:
        asked.append(sorted(hosts))
        said = healthy(facts)
        container = second if len(asked) > 1 else "missing"
        said["gpu2"] = replace(said["gpu2"], container=container)
        return survey_of(INVENTORY, {name: said[name] for name in hosts})

    found = look_twice(look, dict.fromkeys(("gpu1", "gpu2"), FakeTransport()), pause=0.0)
    assert asked == [["gpu1", "gpu2"], ["gpu2"]]
    assert assess(found).problems == problems


def test_a_service_that_is_ready_again_still_says_why_it_was_restarted(facts: HostFacts) -> None:
    failure = "stalled: no token for 50 s (3 requests running, 0 waiting)"
    reports = with_service(
        healthy(facts), restarts=1, last_failure=failure, last_failure_time=277.0
    )
    status = assess(survey_of(INVENTORY, reports))
    assert status.healthy
    assert f"restarts   1 · last failure 12 min 3 s ago: {failure}" in screen(status)
    service = status_document(status)["services"][0]
    assert (service["last_failure"], service["last_failure_seconds_ago"]) == (failure, 723.0)


@pytest.mark.parametrize("listens_on", ["0.0.0.0", "::"])
def test_a_service_on_all_addresses_is_shown_where_clients_reach_it(
    facts: HostFacts, listens_on: str
) -> None:
    reports = healthy(facts)
    everywhere = listed(replace(MEMBERS, listen=listens_on))
    reports["gpu1"] = replace(reports["gpu1"], files=everywhere)
    assert assess(survey_of(INVENTORY, reports)).services[0].endpoint == "http://10.0.0.1:8000/v1"


def test_a_service_of_an_older_clusterctl_is_a_problem_and_shown_where_it_answers(
    facts: HostFacts,
) -> None:
    reports = healthy(facts)
    older = replace(SERVICE, port=8000, node_ips=[])
    reports["gpu1"] = replace(reports["gpu1"], files={}, services=(older,))
    status = assess(survey_of(INVENTORY, reports))
    assert status.services[0].endpoint == "http://10.0.0.1:8000/v1"
    (problem,) = status.problems
    assert problem.startswith("service tiny: not behind the gateway")


@pytest.mark.parametrize(
    ("host", "change", "sentence"),
    [
        ("gpu2", {"facts": None, "state": None, "problem": "timed out"}, "gpu2: timed out"),
        ("gpu2", {"container": "exited"}, "gpu2: the node container is exited"),
        ("gpu2", {"container": "missing", "state": None}, "gpu2: the node container is missing"),
        ("gpu2", {"state": state("gpu2", time=900.0)}, "gpu2: the supervisor last wrote 100 s ago"),
        (
            "gpu2",
            {"state": state("gpu2", time=1100.0)},
            "gpu2: the supervisor last wrote 100 s ago",
        ),
        ("gpu2", {"state": None}, "gpu2: the supervisor has not written any state yet"),
        ("gpu1", {"state": state("gpu1", nodes=[ray("gpu1")])}, "gpu2: not in Ray"),
        (
            "gpu2",
            {"state": state("gpu2", ray="waiting", ray_detail="for the GCS"), "left_ray": True},
            "gpu2: not in Ray (waiting: for the GCS)",
        ),
        (
            "gpu1",
            {"state": state("gpu1", nodes=[ray("gpu1"), ray("gpu2", gpus=0)])},
            "gpu2: Ray has 0 of 1 GPUs",
        ),
        (
            "gpu2",
            {"state": state("gpu2", broken_nics=[BrokenNic("ens3", "gloo, nccl", "down")])},
            "gpu2: interface ens3, which carries Gloo and NCCL, is down: it lost its link, or was "
            "turned off",
        ),
        (
            "gpu2",
            {"state": state("gpu2", broken_nics=[BrokenNic("ens3", "nccl", "missing")])},
            "gpu2: interface ens3, which carries NCCL, does not exist: it was renamed or removed",
        ),
        (
            "gpu2",
            {"state": state("gpu2", broken_nics=[BrokenNic("", "control", "missing")])},
            "gpu2: no interface has the node IP, which carries Ray",
        ),
        ("gpu2", {"state": state("gpu2", gpus_visible=0)}, "gpu2: the container sees 0 of 1 GPUs"),
        (
            "gpu2",
            {"state": state("gpu2", gpus_visible=0, gpus_said=NVML)},
            "gpu2: a daemon-reload took the container's GPUs (NVML: Unknown Error): it sees 0 of 1",
        ),
    ],
)
def test_what_is_wrong_is_named_by_its_first_cause(
    facts: HostFacts, host: str, change: dict[str, object], sentence: str
) -> None:
    reports = healthy(facts)
    if change.pop("left_ray", False):
        reports["gpu1"] = replace(reports["gpu1"], state=state("gpu1", nodes=[ray("gpu1")]))
    reports[host] = replace(reports[host], **change)  # type: ignore[arg-type]
    status = assess(survey_of(INVENTORY, reports))
    of_hosts = [text for text in status.problems if text.startswith("gpu2")]
    assert of_hosts == [sentence]
    assert not status.healthy
    assert sentence in screen(status)


@pytest.mark.parametrize(
    ("phase", "attempts", "hints"),
    [
        ("backing-off", 1, ("clusterctl logs tiny",)),
        ("failed", 5, ("clusterctl logs tiny",)),
        ("loading", 2, ("clusterctl logs tiny",)),
        ("loading", 1, ()),
    ],
)
def test_of_an_engine_that_ends_again_and_again_the_log_is_named(
    facts: HostFacts, phase: str, attempts: int, hints: tuple[str, ...]
) -> None:
    reports = healthy(facts)
    broken = ServiceState("tiny", phase, 0.0, "f", attempts=attempts)
    head = state("gpu1", nodes=[ray("gpu1"), ray("gpu2")], services=[broken])
    reports["gpu1"] = replace(reports["gpu1"], state=head)
    assert assess(survey_of(INVENTORY, reports)).hints == hints


def test_a_container_that_was_renamed_runs_on_and_is_told(facts: HostFacts) -> None:
    """It was taken for missing, and its Ray for somebody else's."""
    reports = healthy(facts)
    reports["gpu2"] = replace(reports["gpu2"], named="demo-old")
    survey = survey_of(INVENTORY, reports)
    assert "gpu2" in survey.running
    status = assess(survey)
    assert status.problems == ("gpu2: the node container was renamed to demo-old",)
    assert status.hints == ("clusterctl bootstrap .",)


def test_a_full_run_directory_is_named_as_the_reason_for_silence(facts: HostFacts) -> None:
    reports = healthy(facts)
    full = Disk("/run/clusterctl/demo", 2**30, 4096)
    reports["gpu1"] = replace(
        reports["gpu1"],
        facts=replace(facts, disks=(*facts.disks, full)),
        state=state("gpu1", time=900.0),
    )
    survey = survey_of(INVENTORY, reports)
    told = "/run/clusterctl/demo is on a full file system, so the supervisor cannot report"
    assert f"gpu1: {told}" in assess(survey).problems
    with pytest.raises(RequirementsNotMet, match="full file system"):
        survey.require_supervised_head()


def test_replicas_that_were_asked_for_and_did_not_start_are_a_problem(facts: HostFacts) -> None:
    reports = healthy(facts)
    for asked, told in ((4, True), (1, False), (0, False)):
        head = replace(reports["gpu1"], files=listed(replace(MEMBERS, asked=asked)))
        status = assess(survey_of(INVENTORY, {**reports, "gpu1": head}))
        text = "service tiny: 1 of the 4 replicas that were asked for"
        assert any(problem.startswith(text) for problem in status.problems) is told


def test_a_deleted_configuration_is_lost_to_the_container_that_had_it(facts: HostFacts) -> None:
    gone = UnreadableDocument("node.json", DELETED, "{}")
    reports = healthy(facts)
    reports["gpu2"] = replace(reports["gpu2"], state=state("gpu2", unreadable=[gone]))
    survey = survey_of(INVENTORY, reports)
    assert survey.config_deleted == {"gpu2": "1"}
    told = "gpu2: node.json was deleted; the supervisor follows the previous one"
    assert assess(survey).problems == (told,)


def test_a_head_whose_configuration_was_deleted_takes_no_change(facts: HostFacts) -> None:
    """It keeps what it serves, so that `stop` would wait in vain, and bootstrap bring it back."""
    gone = UnreadableDocument("node.json", DELETED, "{}")
    reports = healthy(facts)
    reports["gpu1"] = replace(reports["gpu1"], state=state("gpu1", unreadable=[gone]))
    survey = survey_of(INVENTORY, reports)
    with pytest.raises(RequirementsNotMet, match=r"node\.json was deleted") as caught:
        survey.require_supervised_head()
    assert caught.value.hint == "clusterctl bootstrap ."


def test_drift_is_a_problem_of_its_host(facts: HostFacts) -> None:
    status = assess(survey_of(INVENTORY, healthy(facts)), {"gpu2": ["node.json differs"]})
    assert status.problems == ("gpu2: node.json differs",)
    assert status.hints == ("clusterctl bootstrap .",)
    assert "gpu2: node.json differs" in screen(status)


def test_a_service_that_is_not_ready_degrades_the_cluster(facts: HostFacts) -> None:
    reports = healthy(facts)
    head = reports["gpu1"].state
    assert head is not None
    waiting = ServiceState("tiny", "waiting", 0.0, "f", detail="gpu2 has not joined Ray")
    reports["gpu1"] = replace(reports["gpu1"], state=replace(head, services=[waiting]))
    status = assess(survey_of(INVENTORY, reports))
    assert status.problems == ("service tiny: waiting (gpu2 has not joined Ray)",)


def test_a_drained_host_is_shown_and_is_no_problem(facts: HostFacts) -> None:
    reports = healthy(facts)
    files = {**listed(), drained_file("demo"): to_json(DrainedHosts(["gpu2"])).encode()}
    reports["gpu1"] = replace(reports["gpu1"], files=files)
    status = assess(survey_of(INVENTORY, reports))

    assert status.healthy
    assert screen(status).count("up, drained") == 1
    assert [host["drained"] for host in status_document(status)["hosts"]] == [False, True]


def test_another_release_on_a_host_is_shown_and_is_no_problem(facts: HostFacts) -> None:
    reports = healthy(facts)
    for name, release in (("gpu1", "0.33.0"), ("gpu2", "0.34.0")):
        said = reports[name].state
        assert said
        reports[name] = replace(reports[name], state=replace(said, vllm_version=release))
    status = assess(survey_of(INVENTORY, reports))

    assert status.healthy
    assert "vLLM 0.33.0, 0.34.0 on gpu2" in screen(status)


def test_all_hosts_dead_is_still_an_answer() -> None:
    dead = {host.name: Said(problem="timed out") for host in INVENTORY.hosts}
    status = assess(survey_of(INVENTORY, dead))
    assert len(status.problems) == 2
    assert "no answer" in screen(status)


def test_a_document_that_cannot_be_read_is_named_and_what_serves_is_shown(
    facts: HostFacts,
) -> None:
    reports = healthy(facts)
    head = reports["gpu1"]
    assert head.state
    cut = to_json(SERVICE).encode()[:40]
    known = UnreadableDocument("services/tiny.json", "cut short", to_json(SERVICE))
    files = {
        **listed(),
        f"{ETC}/services/tiny.json": cut,
        f"{ETC}/services/new.json": b"garbage",
        f"{declared_dir('demo')}/services/tiny.json": to_json(SERVICE).encode(),
    }
    reports["gpu1"] = replace(head, state=replace(head.state, unreadable=[known]), files=files)
    status = assess(survey_of(INVENTORY, reports))
    new, tiny = status.problems
    assert new.startswith("gpu1: services/new.json cannot be read (Expecting value")
    assert new.endswith("; the supervisor follows nothing")
    assert tiny.startswith("gpu1: services/tiny.json cannot be read (")
    assert tiny.endswith("; the supervisor follows the previous one")
    assert status.hints == ("clusterctl bootstrap .",)
    assert "service tiny · ready" in screen(status)


def test_a_full_file_system_of_logs_is_named_and_nothing_else(facts: HostFacts) -> None:
    reports = healthy(facts)
    full = state("gpu2", logs_problem=f"{LOGS} is on a full file system")
    reports["gpu2"] = replace(reports["gpu2"], state=full)
    status = assess(survey_of(INVENTORY, reports))
    assert status.problems == (
        f"gpu2: {LOGS} is on a full file system: logs and journal are not written",
    )
    assert status.hints == ("clusterctl exec --limit gpu2 -- df -h /var/log/clusterctl/demo",)


def test_what_the_supervisor_sees_of_its_host_is_told_with_the_next_command(
    facts: HostFacts,
) -> None:
    reports = healthy(facts)
    stopped = state("gpu2", lasting=["VLLM::Worker_TP1 (process 7) is stopped by a signal"])
    reports["gpu2"] = replace(reports["gpu2"], state=stopped)
    status = assess(survey_of(INVENTORY, reports))
    assert status.problems == ("gpu2: VLLM::Worker_TP1 (process 7) is stopped by a signal",)
    assert status.hints == ("clusterctl diagnose",)


def test_a_host_that_left_the_inventory_and_still_runs_is_named(facts: HostFacts) -> None:
    without = INVENTORY.model_copy(update={"hosts": INVENTORY.hosts[:1]})
    status = assess(survey_of(without, {"gpu1": healthy(facts)["gpu1"]}))
    (problem,) = status.problems
    assert problem == (
        "gpu2: is not in the inventory, but its container still runs in this cluster at 10.0.0.2, "
        "with rank 1 of tiny"
    )
    (hint,) = status.hints
    assert "clusterctl down --limit gpu2" in hint
    assert problem in " ".join(screen(status).split())


def test_a_secret_that_is_not_the_heads_is_named_with_what_mends_it(facts: HostFacts) -> None:
    reports = healthy(facts)
    marks = {"api.key": "aaaaaaaa", "ray.token": "bbbbbbbb"}
    first, second = reports["gpu1"].state, reports["gpu2"].state
    assert first
    assert second
    old = [replace(each, key="cccccccc") for each in first.services]
    empty = "/etc/clusterctl/demo/api.key is empty; clusterctl bootstrap repairs that"
    reports["gpu1"] = replace(reports["gpu1"], state=replace(first, secrets=marks, services=old))
    reports["gpu2"] = replace(
        reports["gpu2"],
        state=replace(second, secrets={"ray.token": "dddddddd"}, secret_problems=[empty]),
    )
    status = assess(survey_of(INVENTORY, reports))
    assert set(status.problems) == {
        *(
            f"gpu1: {each.name} was started with a different api.key than the head's; to use "
            f"the head's: clusterctl restart {each.name}"
            for each in old
        ),
        f"gpu2: {empty}",
        "gpu2: its ray.token differs from the head's",
    }
    assert status.hints == ("clusterctl bootstrap .",)
