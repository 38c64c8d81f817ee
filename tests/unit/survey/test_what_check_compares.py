"""Who listens on a port, which hosts have a place, and whether containers have one release."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clusterctl.containers.spec import CLUSTER_LABEL
from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.model import ContainerFacts, HostFacts
from clusterctl.facts.network_requirements import PortsTaken
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Host, Inventory, Nics
from clusterctl.node.documents import NodeState, RayNode, to_json
from clusterctl.node.files import NodePaths
from clusterctl.ray_cluster.topology import Node, Topology
from clusterctl.survey.cluster import name_listeners, place, requirements
from clusterctl.survey.drift import ray_problems, releases_apart
from tests.fakes.host_facts import host_facts, nic
from tests.fakes.surveys import survey_of
from tests.fakes.transport import FakeTransport

SS = ("ss", "-Hltnp")
OTHERS = 'LISTEN 0 128 0.0.0.0:22 0.0.0.0:* users:(("sshd",pid=1,fd=3))\n'


def inventory(*names: str, **nics: Nics) -> Inventory:
    hosts = tuple(
        Host(name=name, address=f"10.0.0.{n + 1}", role="worker" if n else "head",
             nics=nics.get(name, Nics()))
        for n, name in enumerate(names)
    )  # fmt: skip
    return Inventory(cluster="demo", image="vllm:1", accelerator="cpu", hosts=hosts)


def probe(facts: HostFacts) -> Probe:
    return Probe(facts, {}, (), (), None)


def listening(program: str, port: int) -> str:
    return f'{OTHERS}LISTEN 0 128 *:{port} *:* users:(("{program}",pid=4242,fd=7))\n'


def test_ray_that_is_not_ours_is_named() -> None:
    error = PortsTaken("a", {6379: "ray_ports.gcs"})
    host = FakeTransport().on(SS, stdout=listening("gcs_server", 6379))
    name_listeners([error], {"a": host})
    assert error.summary == (
        "another Ray is already running on it; a port that Ray needs is taken: 6379 (ray_ports.gcs)"
    )
    assert error.detail == 'LISTEN 0 128 *:6379 *:* users:(("gcs_server",pid=4242,fd=7))'
    assert "pkill -x gcs_server" in (error.hint or "")


def test_a_cluster_under_another_name_is_named_and_not_killed() -> None:
    hosts = inventory("a", "b")
    node = ContainerFacts("1", "clusterctl-lab", "i", {CLUSTER_LABEL: "lab"}, "running", 0, "", 0)
    busy = replace(host_facts(nic("eth0", "10.0.0.1")), listening_ports=(6379, 6380))
    answers = {
        name: Probe(replace(busy, hostname=name, boot_id=name), {}, (), (node,), None)
        for name in "ab"
    }
    (error,) = requirements(survey_of(hosts, answers))
    assert str(error) == "these hosts belong to cluster lab, whose nodes run there: a, b"
    assert "write `cluster: lab` in" in str(error.hint)
    assert "pkill" not in str(error.hint)


def test_another_program_is_shown_and_the_cause_stays() -> None:
    error = PortsTaken("a", {6380: "ray_ports.node_manager", 6381: "ray_ports.object_manager"})
    host = FakeTransport().on(SS, stdout=listening("redis", 6380))
    name_listeners([error], {"a": host})
    assert error.summary.startswith("ports that Ray needs are taken: 6380")
    assert '"redis",pid=4242' in (error.detail or "")
    assert "sshd" not in (error.detail or "")


def test_without_ss_the_problem_is_told_all_the_same() -> None:
    error = PortsTaken("a", {6379: "ray_ports.gcs"})
    name_listeners([error], {"a": FakeTransport().on(SS, status=127)})
    assert error.detail is None


def test_hosts_without_a_taken_port_are_asked_nothing() -> None:
    host = FakeTransport()
    name_listeners([RequirementsNotMet("something else", host="a")], {"a": host})
    assert host.calls == []


def test_a_host_without_its_interface_leaves_the_others_their_places() -> None:
    wrong = inventory("a", "b", "c", b=Nics(nccl="eth9"))
    answers = {
        name: probe(host_facts(nic("eth0", f"10.0.0.{n + 1}"), hostname=name))
        for n, name in enumerate("abc")
    }
    topology, errors = place(survey_of(wrong, answers))
    assert topology is not None
    assert [node.host for node in topology.nodes] == ["a", "c"]
    assert [error.host for error in errors] == ["b"]


def test_nobody_who_answered_has_no_topology() -> None:
    assert place(survey_of(inventory("a"), {})) == (None, [])


def state(**versions: Any) -> NodeState:
    made = NodeState("a", "head", 0.0, "1", "up", 0.0, 0)
    return replace(made, ray_version="2.60.0", python_version="3.12.3", **versions)


def test_containers_of_one_release_have_no_problem() -> None:
    assert releases_apart(inventory("a", "b"), {"a": state(), "b": state()}) == []


def test_a_release_that_differs_is_told_of_the_host_that_differs_from_the_first() -> None:
    other = replace(state(), ray_version="2.59.1", python_version="")
    (problem,) = releases_apart(inventory("a", "b"), {"a": state(), "b": other})
    assert str(problem) == "b: its container has Ray 2.59.1, but that of a has 2.60.0"


def test_what_ray_holds_of_a_host_without_a_place_is_not_told_beside_the_reason() -> None:
    """Its fabric is down: Ray goes on over the other interface, and the host is no stranger."""
    described = inventory("a", "b")
    placed = Topology((Node("a", "head", "10.0.0.1", "eth0", (), "eth0", (), 0),))
    nodes = [RayNode(name, f"10.0.0.{n}", name, True, n == 1, 0, 0, 4)
             for n, name in ((1, "a"), (2, "b"), (3, "c"))]  # fmt: skip
    state = NodeState("a", "head", 100.0, "1", "up", 0.0, 0, nodes=nodes, nodes_time=100.0)
    facts = replace(host_facts(), clock=101.0)
    ours = ContainerFacts("1", "clusterctl-demo", "i", {}, "running", 0, "", 0)
    path = str(NodePaths("demo").state)
    answers = {"a": Probe(facts, {path: to_json(state).encode()}, (), (ours,), None)}
    told = ray_problems(survey_of(described, answers), placed)
    assert [error.host for error in told] == ["c"]
