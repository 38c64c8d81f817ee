"""A survey of the cluster: every host is probed once, in parallel, and commands use the resulting
Survey. Changes nothing on hosts."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

from clusterctl import deadlines
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.containers.reference import tagged
from clusterctl.containers.spec import CLUSTER_LABEL
from clusterctl.engine.step import HostView
from clusterctl.errors import (
    AuthenticationRejected,
    ClusterctlError,
    HostKeyProblem,
    RequirementsNotMet,
    raise_all,
)
from clusterctl.facts.gather import probe
from clusterctl.facts.model import ContainerFacts, HostFacts
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Host, Inventory
from clusterctl.network.choice import resolve
from clusterctl.node.documents import (
    DELETED,
    DrainedHosts,
    MembersDocument,
    NodeState,
    Rank,
    ServiceDocument,
    ServiceState,
    UnreadableDocument,
    config_dir,
    declared_dir,
    from_json,
    is_standby,
    replica_name,
    run_dir,
    service_of,
)
from clusterctl.node.files import LEAST_FREE, NodePaths
from clusterctl.ray_cluster.nodes import container_name
from clusterctl.ray_cluster.topology import Topology
from clusterctl.steps.image_digest import parse_record, record_file
from clusterctl.steps.virtual_address import KeepalivedFiles
from clusterctl.survey.declared_documents import (
    documents_in,
    is_document,
    members_in,
    read_state,
    services_in,
    unreadable_in,
)
from clusterctl.survey.services import Replica, Service, declared_replicas, services_of
from clusterctl.survey.taking_over import TakeOver, copies_in, taking_over
from clusterctl.transport.base import Transport
from clusterctl.transport.connect import Connections
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import Done, Outcome, failures, fan_out, values
from clusterctl.transport.head_copy import HeadCopy, copy_file, serial_file

# NVML's message if a control group denies access to the device nodes: with the toolkit's classic
# mode, `systemctl daemon-reload` causes that in running containers (nvidia-docker issue 1730).
TAKEN_AWAY = "Unknown Error"


@contextmanager
def connected(
    hosts: Iterable[Host], credentials: Credentials, *, connect_timeout: float | None = None
) -> Iterator[dict[str, Transport]]:
    """Yield a transport per host, by name. Each connects at first use; all are closed at the end.

    Raises nothing itself: a host that cannot be reached fails at first use.
    """
    with Connections(credentials, connect_timeout=connect_timeout) as connections:
        yield {host.name: connections.to(host) for host in hosts}


def take_survey(
    inventory: Inventory,
    transports: Mapping[str, Transport],
    *,
    files: Iterable[str] = (),
    limit: int = deadlines.FACTS_COMMAND,
    timeout: float = deadlines.FACTS,
) -> Survey:
    """Probe the hosts of `transports` in one round trip each; errors are kept per host.

    files    further files to read, besides the node's own documents; shell patterns allowed
    limit    whole seconds that one command on a host may take
    timeout  seconds for all of one host's probe
    """
    paths = NodePaths(inventory.cluster)
    own = (
        str(paths.node_document),
        str(paths.state),
        f"{paths.services}/*.json",
        f"{paths.members}/*.json",
        str(paths.keys),
        drained_file(inventory.cluster),
        f"{declared_dir(inventory.cluster)}/*.json",
        f"{declared_dir(inventory.cluster)}/*/*.json",
        record_file(inventory.image),
        *KeepalivedFiles(inventory.cluster).paths,
        copy_file(inventory.cluster),
        serial_file(inventory.cluster),
    )
    wanted = (*own, *files)
    gpu_probe = accelerator_named(inventory.accelerator).gpu_probe

    def look(transport: Transport) -> Probe:
        return probe(
            transport,
            disks=("/", run_dir(inventory.cluster), inventory.models),
            files=wanted,
            image=tagged(inventory.image),
            gpu_probe=gpu_probe,
            limit=limit,
            timeout=timeout,
        )

    return Survey(inventory, transports, fan_out(transports, look)).with_earlier_documents()


def look_twice(
    look: Callable[[Mapping[str, Transport]], Survey],
    transports: Mapping[str, Transport],
    pause: float = deadlines.SECOND_LOOK,
) -> Survey:
    """Return what `look` finds, and look again at hosts whose node container seems gone."""
    survey = look(transports)
    if not survey.vanished:
        return survey
    time.sleep(pause)
    again = look({name: transports[name] for name in survey.vanished})
    return replace(survey, outcomes={**survey.outcomes, **again.outcomes})


@dataclass(frozen=True)
class Survey:
    """The answers of the probed hosts, and values derived from them. Does no I/O."""

    inventory: Inventory
    transports: Mapping[str, Transport]
    outcomes: Mapping[str, Outcome[Probe]]
    # Dead hosts by name, of which `inventory` knows nothing
    left_out: Mapping[str, Host] = field(default_factory=dict)
    taking_over: TakeOver | None = None  # What the head lacks that is a worker yet

    # Who answered

    @cached_property
    def answers(self) -> dict[str, Probe]:
        """The answers of the hosts that answered, without the gateways' shared address, which moves
        between hosts."""
        shared, found = self.inventory.gateway.virtual_ip, values(self.outcomes)
        if shared is None:
            return found
        return {
            name: replace(answer, facts=answer.facts.without(str(shared)))
            for name, answer in found.items()
        }

    @cached_property
    def virtual_ip_at(self) -> tuple[str, ...]:
        """Hosts that currently have the gateways' shared address."""
        shared = str(self.inventory.gateway.virtual_ip)
        return tuple(
            name
            for name, answer in values(self.outcomes).items()
            if any(each.ip == shared for nic in answer.facts.nics for each in nic.addresses)
        )

    @cached_property
    def with_keepalived(self) -> frozenset[str]:
        """Hosts with files of a keepalived that clusterctl set up there."""
        paths = KeepalivedFiles(self.inventory.cluster).paths
        return frozenset(
            name
            for name, answer in self.answers.items()
            if any(answer.files.get(path) is not None for path in paths)
        )

    @cached_property
    def facts(self) -> dict[str, HostFacts]:
        return {name: answer.facts for name, answer in self.answers.items()}

    @cached_property
    def errors(self) -> dict[str, ClusterctlError]:
        """Errors of the hosts that did not answer."""
        return {error.host or "": error for error in failures(self.outcomes)}

    def require_answers(self, hosts: Collection[str] | None = None) -> Survey:
        """Return this survey. Raises the errors of all hosts (or `hosts`) that did not answer."""
        raise_all(error for name, error in self.errors.items() if hosts is None or name in hosts)
        return self

    @cached_property
    def views(self) -> dict[str, HostView]:
        """The views that steps work on, in the inventory's order; only of hosts that answered."""
        return {
            host.name: HostView(host, self.facts[host.name], self.transports[host.name])
            for host in self.inventory.hosts
            if host.name in self.facts
        }

    @property
    def head(self) -> Probe | None:
        """The head's answer; None if it did not answer."""
        return self.answers.get(self.inventory.head.name)

    def head_file(self, path: str) -> bytes | None:
        """Return a file of the head; None if the head does not have it, or did not answer."""
        return self.head.files.get(path) if self.head else None

    @cached_property
    def topology(self) -> Topology:
        """The topology of all hosts. Raises RequirementsNotMet if a host did not answer or has no
        suitable interface; Problems for several."""
        return resolve(self.inventory, self.facts)

    def without_dead(self) -> Survey:
        """Return the survey as if the inventory had no dead workers: those that do not answer and
        that Ray has lost. A host that only SSH cannot reach may still serve, and is not dead."""
        head = self.inventory.head.name
        state = self.fresh_state(head)
        alive = {node.name for node in (state.nodes if state else ()) if node.alive}
        dead = {
            name
            for name, error in self.errors.items()
            if head in alive
            and name not in alive
            and not isinstance(error, AuthenticationRejected | HostKeyProblem)
        }
        hosts = tuple(host for host in self.inventory.hosts if host.name not in dead)
        return Survey(
            self.inventory.model_copy(update={"hosts": hosts}) if dead else self.inventory,
            {name: each for name, each in self.transports.items() if name not in dead},
            {name: each for name, each in self.outcomes.items() if name not in dead},
            {host.name: host for host in self.inventory.hosts if host.name in dead},
        )

    def with_files(self, written: Mapping[str, Mapping[str, bytes | None]]) -> Survey:
        """Return the survey as it would be with these files, by host and path; None: no file."""
        outcomes = dict(self.outcomes)
        for name, files in written.items():
            found = outcomes.get(name)
            if isinstance(found, Done):
                probe = replace(found.value, files={**found.value.files, **files})
                outcomes[name] = Done(probe)
        return replace(self, outcomes=outcomes)

    def with_earlier_documents(self) -> Survey:
        """Return the survey as it would be once a head that is a worker yet has the documents of
        the earlier one."""
        found = taking_over(self)
        if found is None:
            return self
        files: dict[str, bytes | None] = {**found.files, **dict.fromkeys(found.gone)}
        written = self.with_files({self.inventory.head.name: files})
        return replace(written, taking_over=found)

    def as_if_run_wrote(self, written: Mapping[str, Mapping[str, bytes | None]]) -> Survey:
        """Return the survey as it would be after a run wrote these documents: the head keeps a copy
        of each, as with `ClusterLock.replace`."""
        documents, copies = (of(self.inventory.cluster) for of in (config_dir, declared_dir))
        files = [one for of_host in written.values() for one in of_host.items()]
        on_head = {path.replace(documents, copies, 1): data for path, data in files}
        return self.with_files(written).with_files({self.inventory.head.name: on_head})

    # Node containers

    @cached_property
    def containers(self) -> dict[str, ContainerFacts]:
        """The node container of each host that has one, in any state."""
        cluster, ours = self.inventory.cluster, container_name(self.inventory.cluster)
        found = {
            name: next((c for c in answer.containers if c.name == ours), None)
            # A renamed container still uses Ray's ports, and serves.
            or next((c for c in answer.containers if c.labels.get(CLUSTER_LABEL) == cluster), None)
            for name, answer in self.answers.items()
        }
        return {name: container for name, container in found.items() if container}

    @cached_property
    def running(self) -> frozenset[str]:
        """Hosts whose node container is running, according to the engine, or to the supervisor if
        the engine was too busy to list any."""
        listed = {name for name, c in self.containers.items() if c.state == "running"}
        busy = {name for name, answer in self.answers.items() if not answer.listed}
        return frozenset(listed | {name for name in busy if self.fresh_state(name)})

    @property
    def vanished(self) -> list[str]:
        """Hosts whose engine lists no node container although its supervisor just reported: it is
        being replaced, or was removed within the last seconds. A second look shows which."""
        return [
            name
            for name, answer in self.answers.items()
            if answer.facts.engine.running
            and name not in self.running | self.containers.keys()
            and self.fresh_state(name)
        ]

    @cached_property
    def image_digests(self) -> dict[str, str]:
        """The digest of the inventory's image in its registry when each host got it from there;
        only for hosts that still have that image."""
        file, found = record_file(self.inventory.image), {}
        for name, answer in self.answers.items():
            record = parse_record(answer.files.get(file)) if answer.image else None
            digest = record.of(answer.image.layers) if record and answer.image else None
            if digest:
                found[name] = digest
        return found

    # What supervisors report

    @cached_property
    def states(self) -> dict[str, NodeState]:
        """The supervisors' last reports, however old."""
        path = str(NodePaths(self.inventory.cluster).state)
        found = {name: read_state(answer.files.get(path)) for name, answer in self.answers.items()}
        return {name: state for name, state in found.items() if state}

    def state_age(self, host: str) -> float | None:
        """Seconds since the supervisor's last report, by the host's own clock; None without one."""
        state = self.states.get(host)
        # A report from the future was written before the clock was set back: use the difference.
        return abs(self.facts[host].clock - state.time) if state else None

    def cannot_report(self, host: str) -> bool:
        """Whether the file system with the supervisor's report is full."""
        disk = self.facts[host].disk(run_dir(self.inventory.cluster))
        return disk is not None and disk.free < LEAST_FREE

    def why_silent(self, host: str) -> str:
        """Why the supervisor's report is old or missing, as far as the probe shows."""
        if self.cannot_report(host):
            directory = run_dir(self.inventory.cluster)
            return f"{directory} is on a full file system, so the supervisor cannot report"
        age = self.state_age(host)
        if age is None:
            return "the supervisor has not written any state yet"
        return f"the supervisor last wrote {age:.0f} s ago"

    def fresh_state(self, host: str) -> NodeState | None:
        """Return the supervisor's report unless it is missing or `deadlines.STALE` seconds old."""
        age = self.state_age(host)
        return self.states[host] if age is not None and age < deadlines.STALE else None

    def require_supervised_head(self) -> NodeState:
        """Return the head's state. Raises RequirementsNotMet if its supervisor is not alive, since
        it would not process any change."""
        head = self.inventory.head.name
        self.require_answers((head,))
        if head in self.config_deleted:
            raise RequirementsNotMet(
                "node.json was deleted while its container ran: the supervisor keeps its "
                "services running, but accepts no changes",
                host=head,
                hint=f"clusterctl bootstrap {self.inventory.file}",
            )
        if self.fresh_state(head) is None and self.cannot_report(head):
            raise RequirementsNotMet(
                self.why_silent(head),
                host=head,
                hint=f"clusterctl exec --limit {head} -- df -h {run_dir(self.inventory.cluster)}",
            )
        return require_bootstrapped(self.inventory, self.states.get(head), self.facts[head].clock)

    def gpus_lost(self, host: str) -> str | None:
        """Describe the problem if the running container sees fewer GPUs than declared."""
        state, declared = self.fresh_state(host), len(self.inventory.host(host).gpus)
        if host not in self.running or state is None or not 0 <= state.gpus_visible < declared:
            return None
        seen = f"{state.gpus_visible} of {declared}"
        if TAKEN_AWAY in state.gpus_said:
            return f"a daemon-reload took the container's GPUs (NVML: {TAKEN_AWAY}): it sees {seen}"
        said = f": {state.gpus_said}" if state.gpus_said else ""
        return f"the container sees {seen} GPUs{said}"

    @cached_property
    def strangers(self) -> tuple[RequirementsNotMet, ...]:
        """Errors for hosts in Ray that are not in the inventory, from the head's current report.

        Their containers keep running ranks of services, out of reach of commands that read the
        inventory.
        """
        state = self.fresh_state(self.inventory.head.name)
        known = {host.name for host in self.inventory.hosts}
        file, found = self.inventory.file, []
        for node in state.nodes if state else ():
            if not node.alive or node.name in known:
                continue
            ranks = [
                f"rank {rank.rank} of {name}"
                for name, its in self.ranks.items()
                for rank in its
                if rank.host == node.name
            ]
            error = RequirementsNotMet(
                "is not in the inventory, but its container still runs in this cluster at "
                f"{node.node_ip}{', with ' if ranks else ''}{', '.join(ranks)}",
                host=node.name or node.node_ip,
                hint=f"put {node.name or 'it'} back into {file}, run `clusterctl down --limit "
                f"{node.name} -i {file}`, and remove it again",
            )
            found.append(error)
        return tuple(found)

    # Documents

    @cached_property
    def copies(self) -> dict[str, HeadCopy]:
        """The copies of the head's documents that other hosts keep, by host."""
        return copies_in(self)

    @cached_property
    def config_deleted(self) -> dict[str, str]:
        """By host, the ID of the container whose directory of documents was deleted. Its supervisor
        keeps the documents that it last read; even if the directory is recreated, the container may
        still have the deleted one mounted."""
        return {
            name: self.containers[name].id
            for name, state in self.states.items()
            if name in self.running & self.containers.keys()
            and any(one.file == "node.json" and one.why == DELETED for one in state.unreadable)
        }

    @cached_property
    def written(self) -> dict[str, str]:
        """The documents that commands wrote on any host, by their path below `config_dir`: the
        copies in the head's own directory, which no container sees."""
        cluster = self.inventory.cluster
        found = documents_in(declared_dir(cluster), self.head.files if self.head else {})
        return {file: text for file, text in found.items() if is_document(file, text)}

    def written_for(self, host: str) -> dict[str, str]:
        """Return the documents that belong on `host`."""
        on_head = host == self.inventory.head.name
        return {
            file: text
            for file, text in self.written.items()
            if (self._named_host(file) == host if file.startswith("services/") else on_head)
        }

    def _named_host(self, file: str) -> str:
        """Return the host that a service's document belongs on: the replica's in the head's list of
        members, else the head."""
        name = file.rpartition("/")[2].removesuffix(".json")
        known = self._lists.get(service_of(name))
        for member in known.members if known else ():
            if replica_name(service_of(name), member.replica) == name:
                return member.host
        return self.inventory.head.name

    @cached_property
    def not_copied(self) -> dict[str, bytes]:
        """Documents without a copy on the head, by their path below `config_dir`: an earlier
        version wrote them."""
        config = str(NodePaths(self.inventory.cluster).config)
        return {
            file: text.encode()
            for host, answer in self.answers.items()
            for file, text in documents_in(config, answer.files).items()
            if file not in self.written and file != "node.json" and is_document(file, text)
            and (self._named_host(file) if file.startswith("services/")
                 else self.inventory.head.name) == host
        }  # fmt: skip

    @cached_property
    def unreadable(self) -> dict[str, tuple[UnreadableDocument, ...]]:
        """Unreadable documents by host; hosts without any are left out."""
        cluster = self.inventory.cluster
        found = {
            name: tuple(unreadable_in(cluster, probe, self.written_for(name)))
            for name, probe in self.answers.items()
        }
        return {name: documents for name, documents in found.items() if documents}

    @cached_property
    def documents(self) -> dict[str, dict[str, ServiceDocument]]:
        """The documents of services and replicas on each host that answered, by name."""
        cluster = self.inventory.cluster
        return {
            name: services_in(cluster, probe, self.written_for(name))
            for name, probe in self.answers.items()
        }

    @cached_property
    def replicas(self) -> dict[str, Replica]:
        """The declared replicas by name, grouped by service; a service without replicas counts as
        one."""
        head = self.inventory.head.name
        return declared_replicas(self.documents, self._lists, self._reported, head)

    @cached_property
    def services(self) -> dict[str, Service]:
        """The services of all hosts that answered, by name."""
        return services_of(self.replicas.values(), self._lists, self.left_out)

    def service(self, name: str) -> Service:
        """Return the service; an empty one if it is not declared."""
        return self.services.get(name) or Service(name)

    @cached_property
    def _reported(self) -> dict[str, dict[str, ServiceState]]:
        """The current reports of the supervisors, by host and name; standbys, too."""
        fresh = {host: self.fresh_state(host) for host in self.states}
        return {
            host: {each.name: each for each in state.engines}
            for host, state in fresh.items()
            if state
        }

    @cached_property
    def ranks(self) -> dict[str, list[Rank]]:
        """Ranks that supervisors report, by replica, including those no longer declared; without
        those of standbys, which have the same GPUs."""
        found: dict[str, list[Rank]] = {}
        for host, services in self._reported.items():
            replicas = {name: one for name, one in services.items() if not is_standby(name)}
            for name, state in replicas.items():
                declared = self.replicas.get(name)
                if declared is None or declared.host == host:
                    found.setdefault(name, state.ranks)
        return found

    @cached_property
    def drained(self) -> tuple[str, ...]:
        """Hosts that must not have replicas."""
        data = self.head_file(drained_file(self.inventory.cluster))
        try:
            return tuple(from_json(DrainedHosts, data.decode()).hosts) if data else ()
        except ValueError:  # `status` reports it, and the next `drain` replaces it
            return ()

    @cached_property
    def _lists(self) -> dict[str, MembersDocument]:
        """The list of members of each service with replicas, by the service's name; if it was
        deleted or damaged, what a command wrote."""
        config = str(NodePaths(self.inventory.cluster).config)
        on_head = documents_in(config, self.head.files if self.head else {})
        return {**members_in(self.written), **members_in(on_head)}


def drained_file(cluster: str) -> str:
    """Return the path on the head of the file that names the drained hosts."""
    return str(NodePaths(cluster).config / "drained.json")


def read_reported_state(inventory: Inventory, head: Transport) -> NodeState | None:
    """Read the head's state from its file only, for commands that poll it."""
    file = str(NodePaths(inventory.cluster).state)
    return read_state(head.read_file(file))


def require_bootstrapped(inventory: Inventory, state: NodeState | None, clock: float) -> NodeState:
    """Return the head's state. Raises RequirementsNotMet, with a fix, if it is missing or old.

    `clock`: Unix seconds on the head, by whose clock the supervisor writes.
    """
    host = inventory.head.name
    if state is None:
        raise RequirementsNotMet(
            "no node container reports: the cluster is not up",
            host=host,
            hint=f"clusterctl bootstrap {inventory.file}",
        )
    age = abs(clock - state.time)
    if age > deadlines.STALE:
        raise RequirementsNotMet(
            f"the supervisor last wrote {age:.0f} s ago: it has ended, or hangs",
            host=host,
            hint=f"clusterctl bootstrap {inventory.file}",
        )
    return state
