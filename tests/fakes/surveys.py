"""Surveys as hosts would have answered them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clusterctl.containers.spec import CLUSTER_LABEL
from clusterctl.errors import ClusterctlError, ConnectionFailed
from clusterctl.facts.model import ContainerFacts, HostFacts
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Inventory
from clusterctl.node.documents import NodeState, ServiceDocument, to_json
from clusterctl.node.files import NodePaths
from clusterctl.survey.survey import Survey
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import Done, Failed


@dataclass(frozen=True)
class Said:
    """What a host of the cluster `demo` says; `problem`: why it says nothing."""

    facts: HostFacts | None = None
    state: NodeState | None = None
    container: str = "missing"
    named: str = "clusterctl-demo"
    services: tuple[ServiceDocument, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    problem: str | None = None
    listed: bool = True  # Its engine says which containers there are

    def outcome(self) -> Done[Probe] | Failed:
        if self.facts is None:
            return Failed(ConnectionFailed(self.problem or "timed out"))
        paths = NodePaths("demo")
        files: dict[str, bytes | None] = {
            str(paths.services / f"{service.name}.json"): to_json(service).encode()
            for service in self.services
        }
        if self.state:
            files[str(paths.state)] = to_json(self.state).encode()
        labels = {CLUSTER_LABEL: "demo"}
        ours = ContainerFacts("1", self.named, "i", labels, self.container, 0, "", 0)
        containers = () if self.container == "missing" else (ours,)
        return Done(Probe(self.facts, {**files, **self.files}, (), containers, None, self.listed))


def survey_of(
    inventory: Inventory,
    answers: Mapping[str, Probe | ClusterctlError | Said],
    transports: Mapping[str, Transport] | None = None,
) -> Survey:
    """The survey that these answers make, by host."""
    outcomes: dict[str, Done[Probe] | Failed] = {}
    for name, answer in answers.items():
        found = answer.outcome() if isinstance(answer, Said) else answer
        if isinstance(found, Probe):
            found = Done(found)
        elif isinstance(found, ClusterctlError):
            found = Failed(found)
        if isinstance(found, Failed):
            found.error.host = found.error.host or name
        outcomes[name] = found
    return Survey(inventory, transports or {}, outcomes)
