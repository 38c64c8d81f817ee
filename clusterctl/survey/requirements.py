"""Requirements that hosts do not meet, and programs that occupy Ray's ports."""

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
    """Return the requirements that the hosts that answered (only `hosts`, if given) do not meet."""
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
    """Return the topology of the hosts that answered, less those without a valid place in it, and
    their errors."""
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
    # Retry only once: errors of the remaining hosts are reported by the next run.
    if not placed or None in misplaced:
        return None, errors
    try:
        return resolve(inventory.model_copy(update={"hosts": placed}), facts), errors
    except ClusterctlError as error:
        return None, [*errors, *single(error)]


def single(error: ClusterctlError) -> list[ClusterctlError]:
    """Return the single errors in `error`."""
    return list(error.errors) if isinstance(error, Problems) else [error]


def name_listeners(errors: Iterable[ClusterctlError], transports: Mapping[str, Transport]) -> None:
    """Add to every error about a used port the program that listens on it."""
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
    """Return a line for each listening socket with its program; empty if the host has no `ss`."""
    result = transport.run(["ss", "-Hltnp"], sudo=True, timeout=deadlines.SMALL_FILE)
    return result.stdout.splitlines() if result.ok else []


def _port(line: str) -> int:
    """Parse the port from a line of `ss`: LISTEN, two queues, local address and port."""
    return int(line.split()[3].rpartition(":")[2])
