"""Services and replicas that several hosts declare or report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.inventory.model import Gpu, Host, Inventory
from clusterctl.node.documents import Member, MembersDocument, ServiceState, to_json
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
    assert found.services["tiny"].model == head
    assert found.reported["tiny"].detail == head
    assert found.host_of("tiny") == head


def test_a_replica_is_where_the_members_have_it() -> None:
    members = MembersDocument("tiny", ["tiny"], 8000, [Member(1, "gpu2", "10.0.0.2", 8001)])
    found = survey("gpu1", members=members)
    assert found.host_of("tiny") == found.reported["tiny"].detail == "gpu2"
    assert found.services["tiny"].model == "gpu2"
    lost = survey("gpu1", members=members, silent="gpu2")
    assert lost.host_of("tiny") == "gpu1"
