"""What hosts that answered lack, and who stands in the way of those that have it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from clusterctl import deadlines
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.errors import ClusterctlError, Problems
from clusterctl.facts.network_requirements import PortsTaken
from clusterctl.facts.parse import Probe
from clusterctl.facts.requirements import problems
from clusterctl.inventory.model import Inventory
from clusterctl.network.choice import resolve
from clusterctl.ray_cluster.nodes import container_name
from clusterctl.ray_cluster.topology import Topology
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import fan_out, values

_RAY_PROGRAMS = ("gcs_server", "raylet")


def requirements(inventory: Inventory, answers: Mapping[str, Probe]) -> list[ClusterctlError]:
    """What the hosts that answered lack."""
    with_image = {name for name, answer in answers.items() if answer.image is not None}
    facts = {name: answer.facts for name, answer in answers.items()}
    images = (answer.image for answer in answers.values())
    image_env = next((image.cuda for image in images if image), None)
    ours = running(inventory, answers)
    devices = accelerator_named(inventory.accelerator)
    return list(
        problems(inventory, facts, devices, ours=ours, with_image=with_image, image_env=image_env)
    )


def running(inventory: Inventory, answers: Mapping[str, Probe]) -> set[str]:
    """Hosts whose node container runs."""
    return _with_container(inventory, answers, lambda state: state == "running")


def made(inventory: Inventory, answers: Mapping[str, Probe]) -> set[str]:
    """Hosts that have their node container, whatever became of it."""
    return _with_container(inventory, answers, lambda _: True)


def _with_container(
    inventory: Inventory, answers: Mapping[str, Probe], fits: Callable[[str], bool]
) -> set[str]:
    ours = container_name(inventory.cluster)
    return {
        name
        for name, answer in answers.items()
        if any(c.name == ours and fits(c.state) for c in answer.containers)
    }


def place(
    inventory: Inventory, answers: Mapping[str, Probe]
) -> tuple[Topology | None, list[ClusterctlError]]:
    """The topology of the hosts that answered, without those that have no place in it, and why
    these have none."""
    facts = {name: answer.facts for name, answer in answers.items()}
    hosts = tuple(host for host in inventory.hosts if host.name in facts)
    if not hosts:
        return None, []
    try:
        return resolve(inventory.model_copy(update={"hosts": hosts}), facts), []
    except ClusterctlError as error:
        errors = single(error)
    misplaced = {error.host for error in errors}
    left = {name: answer for name, answer in answers.items() if name not in misplaced}
    # Once only: what the others suffer from without these is told by the next run.
    if not left or None in misplaced:
        return None, errors
    hosts = tuple(host for host in hosts if host.name in left)
    try:
        return resolve(inventory.model_copy(update={"hosts": hosts}), facts), errors
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
