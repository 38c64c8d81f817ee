"""What `check --security` says of each promise, by what hosts and the plan show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterctl.engine.plan import Plan, PlannedChange
from clusterctl.engine.step import Change, Unknown
from clusterctl.inventory.model import Host, Inventory, Ssh
from clusterctl.network.choice import resolve
from clusterctl.survey.promises import PromiseState, promise_states
from tests.fakes.host_facts import host_facts, nic
from tests.fakes.surveys import Said, survey_of


def states(
    *changes: PlannedChange, ip: str = "10.0.0.1", container: str = "running", **inventory: Any
) -> dict[int, PromiseState]:
    head = Host(name="a", address=ip, role="head", ssh=inventory.pop("ssh", Ssh()))
    described = Inventory(cluster="demo", image="i", hosts=(head,), **inventory)
    facts = replace(host_facts(nic("eth0", ip)), clock=1.0)
    survey = survey_of(described, {"a": Said(facts=facts, container=container)})
    topology = resolve(described, {"a": facts})
    return {each.number: each for each in promise_states(survey, topology, Plan(changes))}


def test_a_cluster_as_bootstrap_made_it_keeps_all_promises() -> None:
    found = states(network={"firewall": True})
    assert [found[number].state for number in range(1, 11)] == [
        "holds", "by design", "by design", "holds", "holds", "holds", "holds", "holds",
        "by design", "holds",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "summary", "broken"),
    [
        ("Directories", "create /etc/clusterctl", {1, 10}),
        ("Ray head", "replace clusterctl-demo", {1}),
        ("Ray workers", "replace clusterctl-demo", {1}),
        ("Secrets of the cluster", "create ray.token", {5, 6}),
        ("Secrets for workers", "copy ray.token", {5, 6}),
        ("Node files", "write ray_non_carry_over_env_vars.json", {6}),
        ("Node files", "write node.json", set()),
        ("Firewall", "close the ports", {7}),
    ],
)
def test_what_bootstrap_would_mend_is_a_broken_promise(
    stage: str, summary: str, broken: set[int]
) -> None:
    found = states(PlannedChange(stage, "a", "step", Change(summary)), network={"firewall": True})
    assert {number for number, each in found.items() if each.state == "broken"} == broken
    for number in broken:
        assert f"a: bootstrap would {summary}" in found[number].words
        assert found[number].problems[0].exit_code == 5


def test_what_is_not_known_yet_breaks_nothing() -> None:
    found = states(PlannedChange("Firewall", "a", "step", Unknown("later")))
    assert not any(each.problems for each in found.values())


def test_before_bootstrap_it_is_not_known() -> None:
    found = states(container="missing")
    assert {n for n, each in found.items() if each.state == "not known"} == {1, 4, 5, 6, 7, 10}


def test_what_the_inventory_allows_is_said() -> None:
    assert states(allow_unauthenticated_ray=True)[5].state == "broken"
    assert states(ip="8.8.8.8")[7].state == "broken"
    assert "boundary" in states()[7].words
    assert "closed elsewhere" in states(ip="8.8.8.8", network={"public": True})[7].words
    assert "first key of a" in states(ssh=Ssh(accept_new=True))[9].words
