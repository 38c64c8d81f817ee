"""Where the head reaches a service, for commands that send its requests through a tunnel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.errors import UsageError
from clusterctl.facts.model import HostFacts
from clusterctl.node.documents import GatewayState, Member, MembersDocument, to_json
from clusterctl.node.files import NodePaths
from clusterctl.serving.declaration import ServedAt, served_at
from clusterctl.survey.survey import Survey
from tests.fakes.surveys import survey_of
from tests.unit.survey.test_cluster_status import INVENTORY, SERVICE, facts, healthy

__all__ = ["facts"]


def survey(facts: HostFacts, gateway: GatewayState) -> Survey:
    """Only the head answers; both replicas of `chat` are on the other host."""
    members = MembersDocument(
        "chat",
        ["qwen"],
        9000,
        [Member(1, "gpu2", "10.0.0.2", 8100, draining=True), Member(2, "gpu2", "10.0.0.2", 8101)],
    )
    head = healthy(facts)["gpu1"]
    assert head.state
    files = {str(NodePaths("demo").members / "chat.json"): to_json(members).encode()}
    state = replace(head.state, gateway=gateway)
    return survey_of(INVENTORY, {"gpu1": replace(head, state=state, files=files)})


def test_replicas_are_reached_through_the_gateway_while_it_is_up(facts: HostFacts) -> None:
    up = GatewayState("up", listens=["0.0.0.0:9000"])
    assert served_at(survey(facts, up), "chat") == ServedAt("qwen", "127.0.0.1", 9000)
    assert served_at(survey(facts, up), "chat@2") == ServedAt("qwen", "10.0.0.2", 8101)
    down = survey(facts, GatewayState("backing-off", listens=["0.0.0.0:9000"]))
    assert served_at(down, "chat") == ServedAt("qwen", "10.0.0.2", 8101)


def test_other_services_are_reached_where_they_listen(facts: HostFacts) -> None:
    found = survey(facts, GatewayState())
    assert served_at(found, "tiny") == ServedAt("tiny", SERVICE.host, SERVICE.port)
    with pytest.raises(UsageError, match="no service named x; services: chat, tiny"):
        served_at(found, "x")
