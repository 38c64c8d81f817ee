"""Services and replicas that several hosts declare or report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.inventory.model import Gpu, Host, Inventory
from clusterctl.node.documents import Member, MembersDocument, ServiceState, to_json
from clusterctl.survey.services import Service
from clusterctl.survey.survey import Survey
from tests.fakes.host_facts import host_facts, nic
from tests.fakes.surveys import Said, survey_of
from tests.unit.survey.test_unreadable_documents import STATE, TINY

NAMES = ("gpu1", "gpu2", "gpu3")


def survey(head: str, *, members: MembersDocument | None = None, silent: str = "") -> Survey:
    """Every host declares and reports the same service, with its own name in it."""
    hosts = [
        Host(
            name=name,
            address=f"10.0.0.{number}",
            role="head" if name == head else "worker",
            gpus=(Gpu(),),
        )
        for number, name in enumerate(NAMES, 1)
    ]
    inventory = Inventory(cluster="demo", image="vllm:v0.33.0", hosts=tuple(hosts))
    said = {}
    for host in hosts:
        facts = host_facts(nic("eth0", host.address))
        document = replace(TINY, model=host.name)
        files = {}
        if members and host.name == head:
            files["/etc/clusterctl/demo/members/tiny.json"] = to_json(members).encode()
        said[host.name] = Said(
            facts,
            replace(
                STATE,
                host=host.name,
                time=facts.clock,
                services=[ServiceState("tiny", "ready", 0.0, detail=host.name)],
            ),
            "running",
            services=() if host.name == silent else (document,),
            files=files,
        )
    return survey_of(inventory, said)


@pytest.mark.parametrize("head", NAMES)
def test_no_worker_speaks_for_a_service_of_the_head(head: str) -> None:
    found = survey(head)
    (tiny,) = found.service("tiny").replicas
    assert tiny.host == tiny.document.model == head
    assert tiny.state is not None
    assert tiny.state.detail == head
    assert tiny.serves


def test_a_replica_is_where_the_members_have_it() -> None:
    members = MembersDocument("tiny", ["tiny"], 8000, [Member(1, "gpu2", "10.0.0.2", 8001)])
    found = survey("gpu1", members=members)
    tiny = found.replicas["tiny"]
    assert tiny.host == tiny.document.model == "gpu2"
    assert tiny.state is not None
    assert tiny.state.detail == "gpu2"
    assert tiny.member == members.members[0]
    undeclared = survey("gpu1", members=members, silent="gpu2")
    assert undeclared.replicas["tiny"].host == "gpu1"


def test_a_service_knows_which_of_its_members_nobody_declares() -> None:
    listed = [Member(1, "gpu2", "10.0.0.2", 8100), Member(2, "gpu3", "10.0.0.3", 8100, True)]
    found = survey("gpu1", members=MembersDocument("tiny", ["tiny"], 8000, listed))
    tiny = found.service("tiny")
    assert tiny.undeclared == [listed[1]]
    assert tiny.lost == (), "its host answers"
    assert tiny.numbers == {1}
    assert found.service("nobody") == Service("nobody")
