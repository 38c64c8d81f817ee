"""A cluster that a run may change: a survey whose hosts meet the requirements, and its topology.

Topologies of a survey: `Survey.topology` needs the answers of all hosts; `topology_of` fills in
silent hosts from the inventory; `place` leaves out silent and misplaced hosts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

from clusterctl import deadlines
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.containers.spec import CLUSTER_LABEL
from clusterctl.engine.step import HostView
from clusterctl.errors import ClusterctlError, Problems, RequirementsNotMet, raise_all
from clusterctl.facts.model import HostFacts
from clusterctl.facts.network_requirements import PortsTaken
from clusterctl.facts.parse import Probe
from clusterctl.facts.requirements import problems
from clusterctl.inventory.model import Host, Inventory
from clusterctl.network.choice import public_addresses, resolve
from clusterctl.network.gate import GateScope
from clusterctl.ray_cluster.topology import Node, Topology, shared_addresses
from clusterctl.survey.survey import Survey
from clusterctl.survey.taking_over import rivals
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import fan_out, values

_RAY_PROGRAMS = ("gcs_server", "raylet")


@dataclass(frozen=True)
class Cluster:
    """The hosts of a survey that answered; those in `held` meet the requirements."""

    survey: Survey
    topology: Topology
    views: Mapping[str, HostView]
    held: tuple[str, ...]  # must meet the requirements: hosts of --limit, and the head

    @property
    def inventory(self) -> Inventory:
        return self.survey.inventory

    @property
    def answers(self) -> Mapping[str, Probe]:
        return self.survey.answers

    @property
    def left_out(self) -> tuple[str, ...]:
        return tuple(host.name for host in self.inventory.hosts if host.name not in self.held)

    @property
    def gate_scope(self) -> GateScope:
        """Scope of the fabric gate: the hosts in `held`."""
        transports = {name: view.transport for name, view in self.views.items()}
        facts = {name: view.facts for name, view in self.views.items()}
        return GateScope(self.inventory, self.topology, transports, facts).only(self.held)

    @property
    def head(self) -> HostView:
        return self.views[self.inventory.head.name]


def require_fit(survey: Survey, hosts: Iterable[Host]) -> Cluster:
    """Return the cluster, once `hosts` and the head answer and meet the requirements.

    Raises the errors of all these: ConnectionFailed, then RequirementsNotMet, also for any other
    host that does not answer if the inventory lacks its node IP or GPUs.
    """
    held = tuple(host.name for host in survey.inventory.with_head({host.name for host in hosts}))
    survey.require_answers(held)
    lacking = requirements(survey, held)
    name_listeners(lacking, survey.transports)
    raise_all([*lacking, *survey.strangers, *rivals(survey)])
    topology = topology_of(survey)
    raise_all(public_addresses(survey.inventory, topology))
    return Cluster(survey, topology, survey.views, held)


def requirements(survey: Survey, hosts: Collection[str] | None = None) -> list[ClusterctlError]:
    """Return the unmet requirements of the hosts that answered (only of `hosts`, if given)."""
    answers = {
        name: answer for name, answer in survey.answers.items() if hosts is None or name in hosts
    }
    images = [answer.image for answer in answers.values() if answer.image]
    return _of_other_clusters(
        survey,
        problems(
            survey.inventory,
            {name: answer.facts for name, answer in answers.items()},
            accelerator_named(survey.inventory.accelerator),
            ours=survey.running & set(answers),
            with_image={name for name, answer in answers.items() if answer.image},
            image_env=images[0].cuda if images else None,
        ),
    )


def image_problems(
    inventory: Inventory, facts: Mapping[str, HostFacts], env: Mapping[str, str]
) -> list[RequirementsNotMet]:
    """Return what keeps the hosts in `facts` from running an image with this environment, apart
    from what keeps them from running any image."""
    devices = accelerator_named(inventory.accelerator)
    found = []
    for host in inventory.hosts:
        its = facts.get(host.name)
        if its is None or not env:
            continue
        of_any = {problem.summary for problem in devices.problems(inventory, host, its, None)}
        for problem in devices.problems(inventory, host, its, env):
            if problem.summary not in of_any:
                problem.host = host.name
                found.append(problem)
    return found


def _of_other_clusters(survey: Survey, found: Iterable[ClusterctlError]) -> list[ClusterctlError]:
    """Replace errors about ports by one error per cluster of ours whose nodes use them, as happens
    after the cluster is renamed in the inventory."""
    belonging: dict[str, list[str]] = {}
    rest: list[ClusterctlError] = []
    for error in found:
        other = _other_cluster(survey, error.host) if isinstance(error, PortsTaken) else None
        if other is None:
            rest.append(error)
        else:
            belonging.setdefault(other, []).append(error.host or "")
    file, name = survey.inventory.file, survey.inventory.cluster
    for other, hosts in belonging.items():
        error = RequirementsNotMet(
            f"these hosts belong to cluster {other}, whose nodes run there: {', '.join(hosts)}",
            hint=f"to manage that cluster: write `cluster: {other}` in {file}. To put {name} in "
            f"its place: write that, run `clusterctl down -i {file}`, then write `cluster: "
            f"{name}` again. To keep both: different ray_ports for one of them",
        )
        rest.append(error)
    return rest


def _other_cluster(survey: Survey, host: str | None) -> str | None:
    """Return the cluster with a running container on `host`, if it is another one."""
    answer = survey.answers.get(host or "")
    running = (one for one in answer.containers if one.state == "running") if answer else ()
    names = (one.labels.get(CLUSTER_LABEL) for one in running)
    return next((name for name in names if name not in (None, survey.inventory.cluster)), None)


def name_listeners(errors: Iterable[ClusterctlError], transports: Mapping[str, Transport]) -> None:
    """Add the listening program to every error about a used port, if the host has `ss`."""
    taken = {
        error.host: error
        for error in errors
        if isinstance(error, PortsTaken) and error.host in transports
    }

    def listening(transport: Transport) -> list[str]:
        result = transport.run(["ss", "-Hltnp"], sudo=True, timeout=deadlines.SMALL_FILE)
        return result.stdout.splitlines() if result.ok else []

    found = values(fan_out({host: transports[host] for host in taken if host}, listening))
    for host, lines in found.items():
        error = taken[host]
        # A line has LISTEN, two queues, local address and port, ...
        own = [ln for ln in lines if int(ln.split()[3].rpartition(":")[2]) in error.ports]
        error.detail = "\n".join(own) or None
        if any(program in line for line in own for program in _RAY_PROGRAMS):
            error.summary = f"another Ray is already running on it; {error.summary}"
            error.hint = (
                "end it, in a container (docker ps; docker stop NAME) or not: "
                "sudo pkill -x gcs_server; sudo pkill -x raylet"
            )


def topology_of(survey: Survey) -> Topology:
    """Return the topology of all hosts. Only hosts that answered decide whether RDMA is used."""
    inventory = survey.inventory
    answered = tuple(host for host in inventory.hosts if host.name in survey.facts)
    known = resolve(inventory.model_copy(update={"hosts": answered}), survey.facts)
    nodes: list[Node] = []
    unknown: list[ClusterctlError] = []
    for host in inventory.hosts:
        try:
            nodes.append(known.node(host.name) if host in answered else unseen(inventory, host))
        except RequirementsNotMet as problem:
            unknown.append(problem)
    raise_all([*unknown, *shared_addresses(nodes)])
    return Topology(tuple(nodes))


def place(survey: Survey) -> tuple[Topology | None, list[ClusterctlError]]:
    """Return the topology of the hosts that answered, except those whose address or interfaces
    cannot be chosen, and the errors of those."""
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
    """Return the individual errors in `error`."""
    return list(error.errors) if isinstance(error, Problems) else [error]


def unseen(inventory: Inventory, host: Host) -> Node:
    """Return the node of a host that does not answer, from its inventory; its interfaces are empty.

    Raises RequirementsNotMet if the inventory does not give its node IP and GPUs.
    """
    address = host.node_ip
    subnet = inventory.network.subnet
    if not address and not host.nics.control:
        # The address that SSH connects to, if it can be the node IP (see `network.choice`)
        with suppress(ValueError):
            reached = ip_address(host.address)
            address = str(reached) if not subnet or reached in subnet else None
    counted = accelerator_named(inventory.accelerator).counted
    if address is None or (counted and not host.gpus):
        lacking, key = ("GPUs", "gpus") if address else ("node IP", "node_ip")
        raise RequirementsNotMet(
            f"it does not answer, so its {lacking}, needed by the other hosts, cannot be "
            "determined",
            host=host.name,
            hint=f"give hosts.{host.name}.{key} in the inventory, or take the host out of it",
        )
    return Node(host.name, host.role, address, "", (), "", (), len(host.gpus))
