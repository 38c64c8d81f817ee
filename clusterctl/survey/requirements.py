"""What hosts lack, and which programs take the ports that Ray needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from clusterctl import deadlines
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.errors import ClusterctlError, Problems
from clusterctl.facts.network_requirements import PortsTaken
from clusterctl.facts.requirements import problems
from clusterctl.network.choice import resolve
from clusterctl.ray_cluster.topology import Topology
from clusterctl.survey.survey import Survey
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import fan_out, values

_RAY_PROGRAMS = ("gcs_server", "raylet")


def requirements(survey: Survey, hosts: Collection[str] | None = None) -> list[ClusterctlError]:
    """What the hosts that answered lack; of `hosts` alone, where given."""
    answers = {
        name: answer for name, answer in survey.answers.items() if hosts is None or name in hosts
    }
    images = [answer.image for answer in answers.values() if answer.image]
    return list(
        problems(
            survey.inventory,
            {name: answer.facts for name, answer in answers.items()},
            accelerator_named(survey.inventory.accelerator),
            ours=survey.running & set(answers),
            with_image={name for name, answer in answers.items() if answer.image},
            image_env=images[0].cuda if images else None,
        )
    )


def place(survey: Survey) -> tuple[Topology | None, list[ClusterctlError]]:
    """The topology of the hosts that answered, without those that have no place in it, and why
    these have none."""
    inventory, facts = survey.inventory, survey.facts
    hosts = tuple(host for host in inventory.hosts if host.name in facts)
    if not hosts:
        return None, []
    try:
        return resolve(inventory.model_copy(update={"hosts": hosts}), facts), []
    except ClusterctlError as error:
        errors = single(error)
    misplaced = {error.host for error in errors}
    placed = tuple(host for host in hosts if host.name not in misplaced)
    # Once only: what the others suffer from without these is told by the next run.
    if not placed or None in misplaced:
        return None, errors
    try:
        return resolve(inventory.model_copy(update={"hosts": placed}), facts), errors
    except ClusterctlError as error:
        return None, [*errors, *single(error)]


def single(error: ClusterctlError) -> list[ClusterctlError]:
    """The errors in `error`, one by one."""
    return list(error.errors) if isinstance(error, Problems) else [error]


def name_listeners(errors: Iterable[ClusterctlError], transports: Mapping[str, Transport]) -> None:
    """Add to every error about a taken port which program took it."""
    taken = {
        error.host: error
        for error in errors
        if isinstance(error, PortsTaken) and error.host in transports
    }
    found = values(fan_out({host: transports[host] for host in taken if host}, _listening))
    for host, listening in found.items():
        error = taken[host]
        own = [line for line in listening if _port(line) in error.ports]
        error.detail = "\n".join(own) or None
        if any(program in line for line in own for program in _RAY_PROGRAMS):
            error.summary = f"another Ray runs there already; {error.summary}"
            error.hint = (
                "end it, in a container (docker ps; docker stop NAME) or not: "
                "sudo pkill -x gcs_server; sudo pkill -x raylet"
            )


def _listening(transport: Transport) -> list[str]:
    """Listening sockets with their programs, a line each; nothing where there is no `ss`."""
    result = transport.run(["ss", "-Hltnp"], sudo=True, timeout=deadlines.SMALL_FILE)
    return result.stdout.splitlines() if result.ok else []


def _port(line: str) -> int:
    """Of a line of `ss`: LISTEN, two queues, the local address and port."""
    return int(line.split()[3].rpartition(":")[2])
