"""What bootstrap repairs on a worker that starts replicas of a service itself."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.engine.events import Event, StageStarted
from clusterctl.engine.plan import PlannedChange, Stage, plan
from clusterctl.engine.step import Change, HostView, Unknown
from clusterctl.errors import Interrupted
from clusterctl.inventory.model import GatewayAccess, Gpu, Host, Inventory
from clusterctl.node.documents import (
    Member,
    MembersDocument,
    ServiceDocument,
    UnreadableDocument,
    config_dir,
    declared_dir,
    to_json,
)
from clusterctl.operations.bootstrap_stages import (
    STAGES,
    Between,
    Run,
    Target,
    bring_about,
    host_stages,
    stages_of,
)
from clusterctl.steps.engines import Engines
from clusterctl.steps.secrets import API_KEY, RAY_TOKEN, secret_path
from clusterctl.survey.cluster import Cluster, topology_of
from clusterctl.survey.formation import TITLE as RAY
from clusterctl.survey.taking_over import TakeOver
from tests.fakes.container_engine import image
from tests.fakes.host import FakeHost, fake_driver, fake_view
from tests.fakes.host_facts import host_facts, nic
from tests.fakes.surveys import Said, survey_of
from tests.unit.survey.test_unreadable_documents import STATE

NAMES = ("gpu1", "gpu2", "gpu3")
SECOND = ServiceDocument(
    name="tiny@2", model="tiny", served_name="tiny", argv=["vllm", "serve", "/m"], env={},
    host="10.0.0.2", port=8001, tensor_parallel=1, pipeline_parallel=1, gpus=1, fingerprint="f",
    replica=2, node_ips=["10.0.0.2"],
)  # fmt: skip


def stages_by_title(cluster: Cluster) -> dict[str, Stage]:
    stages = stages_of(Target.of(cluster, NAMES, Engines(fake_driver)))
    return {stage.title: stage for stage in stages}


def test_hosts_with_a_gateway_get_the_key_and_the_certificate_of_the_head() -> None:
    hosts = tuple(
        Host(name=name, address=f"10.0.0.{n}", role="worker" if n > 1 else "head", gpus=(Gpu(),))
        for n, name in enumerate(NAMES, 1)
    )
    access = GatewayAccess(hosts=("gpu2",), tls=True)
    inventory = Inventory(cluster="demo", image="vllm:v0.33.0", hosts=hosts, gateway=access)
    facts = {host.name: host_facts(nic("eth0", host.address)) for host in hosts}
    survey = survey_of(inventory, {name: Said(facts[name]) for name in NAMES})
    machines = {name: FakeHost(name) for name in NAMES}
    for machine in machines.values():
        machine.directories["/etc/clusterctl/demo"] = 0o700
    views = {name: fake_view(machine, facts[name]) for name, machine in machines.items()}
    cluster = Cluster(survey, topology_of(survey), views, NAMES)
    stages = stages_by_title(cluster)

    assert stages["Secrets for replicas"].hosts == ("gpu2",)
    assert stages["Gateway without TLS"].hosts == ("gpu3",)
    (made,) = stages["Gateway"].steps
    change = made.check(views["gpu1"])
    assert isinstance(change, Change)
    assert "for 10.0.0.1, gpu1, 10.0.0.2, gpu2:" in str(change)
    copies = stages["Gateways of other hosts"]
    assert copies.hosts == ("gpu2",)
    assert all(isinstance(step.check(views["gpu2"]), Unknown) for step in copies.steps)
    made.apply(views["gpu1"], change)
    stages = stages_by_title(cluster)
    for step in stages["Gateways of other hosts"].steps:
        found = step.check(views["gpu2"])
        assert isinstance(found, Change)
        step.apply(views["gpu2"], found)
        assert step.check(views["gpu2"]) is None
    assert not _of_gateways(stages_by_title(cluster).values(), views)
    machines["gpu1"].files.pop("/etc/clusterctl/demo/gateway.crt")
    renewed = _of_gateways(stages_by_title(cluster).values(), views)
    assert [(line.host, type(line.change)) for line in renewed] == [
        ("gpu1", Change), ("gpu2", Unknown), ("gpu2", Unknown),
    ]  # fmt: skip


def _of_gateways(stages: Iterable[Stage], views: Mapping[str, HostView]) -> Sequence[PlannedChange]:
    return plan([stage for stage in stages if "Gateway" in stage.title], views).changes


def test_the_key_and_the_documents_of_its_replicas() -> None:
    inventory = Inventory(
        cluster="demo",
        image="vllm:v0.33.0",
        hosts=(
            Host(name="gpu1", address="10.0.0.1", role="head", gpus=(Gpu(),)),
            Host(name="gpu2", address="10.0.0.2", gpus=(Gpu(),)),
            Host(name="gpu3", address="10.0.0.3", gpus=(Gpu(),)),
        ),
    )
    facts = {host.name: host_facts(nic("eth0", host.address)) for host in inventory.hosts}
    known = UnreadableDocument("services/tiny@2.json", "cut short", to_json(SECOND))
    broken = {f"/etc/clusterctl/demo/{known.file}": b"{"}
    on_second = Member(2, "gpu2", "10.0.0.2", 8001)
    members = to_json(MembersDocument("tiny", ["tiny"], 8000, [on_second])).encode()
    survey = survey_of(
        inventory,
        {
            "gpu1": Said(
                facts["gpu1"],
                files={
                    "/etc/clusterctl/demo/members/tiny.json": members,
                    f"{declared_dir('demo')}/{known.file}": to_json(SECOND).encode(),
                },
            ),
            "gpu2": Said(facts["gpu2"], state=replace(STATE, unreadable=[known]), files=broken),
            # What its root declares there, to get the key
            "gpu3": Said(facts["gpu3"], services=(replace(SECOND, name="x", replica=1),)),
        },
    )
    hosts = {name: FakeHost(name) for name in NAMES}
    views = {name: fake_view(host, facts[name]) for name, host in hosts.items()}
    key = secret_path("demo", API_KEY)
    hosts["gpu1"].files[key] = b"k", 0o600
    hosts["gpu2"].files |= {path: (data, 0o600) for path, data in broken.items()}
    cluster = Cluster(survey, topology_of(survey), views, NAMES)
    stages = stages_by_title(cluster)

    assert stages["Secrets for replicas"].hosts == ("gpu2",)
    (copied,) = stages["Secrets for replicas"].steps
    assert copied.check(views["gpu2"]) == Change(f"copy {key} from gpu1")
    (readable,) = stages["Services"].steps
    assert readable.check(views["gpu2"]) == Change(f"restore {known.file}, which cannot be read")
    assert readable.check(views["gpu3"]) is None


def test_the_list_has_everything_in_an_order_that_works() -> None:
    """What is between stages stands in the list, too: looks, proofs of links, of Ray, of fabric."""
    lines = [
        line.act if isinstance(line, Between) else getattr(line, "title", None) for line in STAGES
    ]
    orders: list[list[object]] = [
        ["Python", Run.look_again, Run.prove_links, "Container engine", "Node files"],
        ["Directories", "Services", "Node files", "Ray head", "Ray workers"],
        ["Secrets of the cluster", "Secrets for workers", "Ray head"],
        ["Restarts of Docker", "Ray head"],
        ["Ray workers", Run.await_ray, Run.prove_fabric],
    ]
    for order in orders:
        places = [lines.index(each) for each in order]
        assert places == sorted(places)
    looks = [at for at, line in enumerate(lines) if line == Run.look_again]
    assert looks[1] > lines.index("GPUs in containers"), "options of containers depend on these"


def test_the_plan_has_the_stages_that_need_nothing_of_the_cluster_too() -> None:
    inventory = Inventory(
        cluster="demo",
        image="vllm:v0.33.0",
        hosts=(Host(name="gpu1", address="10.0.0.1", role="head", gpus=(Gpu(),)),),
    )
    facts = {"gpu1": host_facts(nic("eth0", "10.0.0.1"))}
    survey = survey_of(inventory, {"gpu1": Said(facts["gpu1"])})
    views = {"gpu1": fake_view(FakeHost("gpu1"), facts["gpu1"])}
    cluster = Cluster(survey, topology_of(survey), views, ("gpu1",))
    target = Target.of(cluster, ("gpu1",), Engines(fake_driver))

    titles = [stage.title for stage in stages_of(target)]

    early = [stage.title for stage in host_stages(inventory, ("gpu1",), facts)]
    assert early == ["Access to outside", "Python", "Container engine", "GPUs in containers"]
    assert [title for title in titles if title in early] == early
    assert titles[-1] == "Ray workers"


class Unlosable:
    """A lock that nobody else wants."""

    def ensure_held(self) -> None:
        """It is."""


def begun(target: Target, *, changes: bool) -> list[str]:
    """The stages that a run begins, up to the wait for Ray, where it is stopped."""
    cancelled, titles = threading.Event(), list[str]()

    def see(event: Event) -> None:
        if isinstance(event, StageStarted):
            titles.append(event.title)
            if event.title == RAY:
                cancelled.set()

    lock: Any = Unlosable()
    run = Run(target, target.inventory.hosts, changes, lock, see, cancelled)
    with pytest.raises(Interrupted, match="while waiting for Ray"):
        bring_about(run)
    return titles


def test_a_run_makes_what_was_planned_and_the_next_has_nothing_to_do() -> None:
    inventory = Inventory(
        cluster="demo",
        image="vllm:v0.33.0",
        hosts=(Host(name="gpu1", address="10.0.0.1", role="head", gpus=(Gpu(),)),),
    )
    facts = {"gpu1": host_facts(nic("eth0", "10.0.0.1"))}
    survey = survey_of(inventory, {"gpu1": Said(facts["gpu1"])})
    machine = FakeHost("gpu1")
    machine.engine.images["base"] = image("base", "vllm:v0.33.0")
    views = {"gpu1": fake_view(machine, facts["gpu1"])}
    cluster = Cluster(survey, topology_of(survey), views, ("gpu1",))

    def target() -> Target:
        return Target.of(cluster, ("gpu1",), Engines(fake_driver))

    planned = [change.stage for change in target().plan.changes]
    assert planned[0] == "Node image"
    assert planned[-1] == "Ray head"

    titles = begun(target(), changes=True)

    assert [title for title in titles if title in planned] == list(dict.fromkeys(planned))
    assert titles[-1] == RAY
    assert target().plan.empty
    assert begun(target(), changes=False) == [RAY], "it only proves that all is well"


def test_another_head_has_the_documents_and_another_token_before_its_node_changes() -> None:
    """The earlier one's Ray, should it come back, must not be obeyed by nodes that left it."""
    hosts = tuple(
        Host(name=name, address=f"10.0.0.{n}", role="worker" if n > 1 else "head", gpus=(Gpu(),))
        for n, name in enumerate(NAMES, 1)
    )
    inventory = Inventory(cluster="demo", image="vllm:v0.33.0", hosts=hosts)
    facts = {host.name: host_facts(nic("eth0", host.address)) for host in hosts}
    keys = f"{config_dir('demo')}/keys.json"
    found = TakeOver("gpu9", "gpu3", 60.0, {keys: b"{}"}, (), {})
    survey = survey_of(inventory, {name: Said(facts[name]) for name in NAMES})
    survey = replace(survey, taking_over=found)
    machines = {name: FakeHost(name) for name in NAMES}
    token = secret_path("demo", RAY_TOKEN)
    for machine in machines.values():
        machine.directories["/etc/clusterctl/demo"] = 0o700
        machine.files[token] = (b"the earlier head's", 0o600)
    views = {name: fake_view(machine, facts[name]) for name, machine in machines.items()}
    stages = stages_by_title(Cluster(survey, topology_of(survey), views, NAMES))

    order = list(stages)
    before = order.index("Node files")
    assert order.index("Documents of the earlier head") < before
    assert stages["Copies for another head"].hosts == ()
    (copied,) = stages["Secrets for workers"].steps
    assert isinstance(copied.check(views["gpu2"]), Unknown)
    for title in ("Documents of the earlier head", "Another token of Ray"):
        for step in stages[title].steps:
            step.apply(views["gpu1"], Change(""))
            assert step.check(views["gpu1"]) is None
    assert machines["gpu1"].files[keys][0] == b"{}"

    copied.apply(views["gpu2"], Change(""))
    assert machines["gpu2"].files[token][0] == machines["gpu1"].files[token][0]
    assert machines["gpu2"].files[token][0] != machines["gpu3"].files[token][0]
