"""`check`: the inventory against what hosts report. Changes nothing; all problems at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clusterctl.errors import ClusterctlError
from clusterctl.facts.model import HostFacts
from clusterctl.facts.parse import Probe
from clusterctl.facts.requirements import notes, problems
from clusterctl.inventory.model import Host, Inventory
from clusterctl.ray_cluster.nodes import container_name
from clusterctl.ray_cluster.topology import resolve
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import failures, values
from clusterctl.workflows.reach import look, reach


@dataclass(frozen=True)
class Report:
    """What was found; `errors` empty means that bootstrap may begin."""

    facts: dict[str, HostFacts]
    choices: dict[str, tuple[str, ...]]
    """Which address and interfaces each host uses, and why."""
    notes: tuple[str, ...]
    errors: tuple[ClusterctlError, ...]


def run(inventory: Inventory, hosts: Iterable[Host], credentials: Credentials) -> Report:
    """Look at `hosts`; with all of them answering, at how they fit together too."""
    with reach(hosts, credentials) as transports:
        found = look(inventory, transports)
    answers = values(found)
    errors = [*failures(found), *requirements(inventory, answers)]
    choices: dict[str, tuple[str, ...]] = {}
    facts = {name: answer.facts for name, answer in answers.items()}
    if len(answers) == len(inventory.hosts) and not errors:
        try:
            nodes = resolve(inventory, facts).nodes
            choices = {node.host: node.explain for node in nodes}
        except ClusterctlError as error:
            errors.append(error)
    return Report(facts, choices, tuple(notes(inventory, facts)), tuple(errors))


def requirements(inventory: Inventory, answers: dict[str, Probe]) -> list[ClusterctlError]:
    """What the hosts that answered lack."""
    ours = container_name(inventory.cluster)
    running = {
        name
        for name, answer in answers.items()
        if any(c.name == ours and c.state == "running" for c in answer.containers)
    }
    with_image = {name for name, answer in answers.items() if answer.image is not None}
    facts = {name: answer.facts for name, answer in answers.items()}
    images = (answer.image for answer in answers.values())
    image_env = next((image.cuda for image in images if image), None)
    return list(
        problems(inventory, facts, ours=running, with_image=with_image, image_env=image_env)
    )
