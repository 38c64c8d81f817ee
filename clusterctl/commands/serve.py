"""`serve`: plan a service, declare it on the head, follow it until it proved itself.

Nothing is launched from here: the head's supervisor follows the document that this run writes,
and keeps on following it when this run is long gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from clusterctl.commands.declared import (
    declare,
    follow,
    read_head_state,
    service_file,
    services_in,
)
from clusterctl.commands.launch import Prepared, prepare
from clusterctl.commands.proof import Proof, prove, read_key
from clusterctl.commands.reach import (
    look_at_all,
    node_files,
    reach,
    read_state,
    require_bootstrapped,
)
from clusterctl.commands.same_weights import Weights, require_same
from clusterctl.engine.events import EventSink, Note, StageFinished, StageStarted
from clusterctl.errors import UsageError
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Inventory
from clusterctl.models.location import copy_from
from clusterctl.models.name import Model, resolve
from clusterctl.network.choice import resolve as resolve_topology
from clusterctl.network.gate import GateScope, ensure_proven
from clusterctl.node.documents import NodeState, ServiceDocument
from clusterctl.node.paths import NodePaths
from clusterctl.planning.cluster_hardware import measurements
from clusterctl.planning.measured import (
    StartOutcome,
    keep,
    lessons,
    measured_file,
    outcome_of,
    with_lessons,
)
from clusterctl.planning.planner import FitReport
from clusterctl.serving.config_file import read_config_file
from clusterctl.serving.request import Options, ServiceRequest, read_request
from clusterctl.serving.service import difference, needs_restart
from clusterctl.serving.vllm_flags import parse_arguments
from clusterctl.transport.base import Transport
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.lock import ClusterLock


@dataclass(frozen=True)
class Asked:
    """What the user typed: clusterctl's own options, a config file, and what follows `--`."""

    options: Options
    config: Path | None = None
    extra: tuple[str, ...] = ()

    def request(self) -> ServiceRequest:
        """Raises UsageError with every problem of the three at once."""
        config = read_config_file(self.config) if self.config else ()
        return read_request(self.options, config, parse_arguments(self.extra))


@dataclass(frozen=True)
class Changes:
    """What serving would change, in words; nothing when it serves so already."""

    lines: tuple[str, ...]
    restarts: bool  # A running service is stopped and started anew
    notes: tuple[str, ...] = ()
    fit: FitReport | None = None  # What memory and speed are predicted to be


# Shows changes and returns, or raises when the user does not want them
Agree = Callable[[Changes], None]


@dataclass(frozen=True)
class Decision:
    """What one look at the hosts came to."""

    prepared: Prepared
    old: ServiceDocument | None  # The service of that name as it is declared now
    changes: Changes
    answer: Probe  # Of the head
    ground: GateScope | None = None  # The hosts whose links the service will use
    # The cluster's API key from now on; None where it stays what it is
    new_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Served:
    """A service that answered."""

    prepared: Prepared
    proof: Proof
    changed: bool
    head: str  # Name of the host that the API runs on
    key_file: str  # Path of the API key on it
    sudo: bool  # The key's file is read as root, and the SSH user is not
    # What vLLM reported beside the prediction; None where one of the two is missing
    outcome: StartOutcome | None = None


def run(
    inventory: Inventory, asked: Asked, credentials: Credentials, *, agree: Agree, sink: EventSink
) -> Served:
    """Serve, and prove it. Serving the same thing twice changes nothing.

    Raises UsageError, RequirementsNotMet, DoesNotFit, RayNotFormed, StepFailed, LockHeld.
    """
    request = asked.request()
    model = resolve(request.model, inventory.models)  # before any host is asked anything
    with reach(inventory.hosts, credentials) as transports:
        head = transports[inventory.head.name]

        def look() -> Decision:
            return _decide(inventory, request, model, transports)

        first = look()
        agree(first.changes)
        if first.changes.lines:
            with ClusterLock(head, inventory.cluster, "serve") as lock:
                decision = settle(first, look, agree)
                weights = _compare_weights(inventory, model, decision, sink)
                _prove_links(decision, sink)
                served = _bring_up(inventory, head, lock, decision, sink)
                if weights:
                    weights.hash_rest()
                return served
        return _bring_up(inventory, head, None, first, sink)


def settle(first: Decision, look: Callable[[], Decision], agree: Agree) -> Decision:
    """What holds under the lock: another run may have taken the port or the GPUs since `first`
    was decided. Asks again only for changes that were not shown yet."""
    again = look()
    if again.changes.lines and again.changes.lines != first.changes.lines:
        agree(again.changes)
    return again


def _prove_links(decision: Decision, sink: EventSink) -> None:
    """The fabric gate, where ranks will talk over links that nothing has proven since the hosts'
    containers started."""
    layout, ground = decision.prepared.layout, decision.ground
    if decision.changes.lines and ground and layout.spans_hosts:
        ensure_proven(ground.only({ground.topology.head.host, *layout.hosts}), sink)


def _compare_weights(
    inventory: Inventory, model: Model, decision: Decision, sink: EventSink
) -> Weights | None:
    """What hosts have of a model whose ranks span them; None where it is none of theirs."""
    layout, location, ground = (
        decision.prepared.layout,
        decision.prepared.location,
        decision.ground,
    )
    if not decision.changes.lines or not ground or not layout.spans_hosts:
        return None
    if location is None or location.random_weights:
        return None

    def fix(source: str) -> str:
        return copy_from(model, inventory.models, location.path, source)

    hosts = {name: ground.transports[name] for name in layout.hosts}
    return require_same(location.path, hosts, head=inventory.head.name, fix=fix, sink=sink)


def _decide(
    inventory: Inventory, request: ServiceRequest, model: Model, transports: Mapping[str, Transport]
) -> Decision:
    answers = _look(inventory, transports)
    answer = answers[inventory.head.name]
    state = _state(inventory, answer)
    declared = services_in(inventory.cluster, answer)
    key = new_key(inventory, transports[inventory.head.name], request, sorted(declared))
    prepared = prepare(inventory, request, model, transports, answers, state, declared)
    old = declared.get(prepared.document.name)
    facts = {name: answer.facts for name, answer in answers.items()}
    ground = GateScope(inventory, resolve_topology(inventory, facts), transports, facts)
    changes = _changes(prepared, old)
    if key:
        line = f"API key: the config file's, kept in {NodePaths(inventory.cluster).api_key} (0600)"
        changes = replace(changes, lines=(*changes.lines, line))
    return Decision(prepared, old, changes, answer, ground, key)


def _bring_up(
    inventory: Inventory,
    head: Transport,
    lock: ClusterLock | None,
    decision: Decision,
    sink: EventSink,
) -> Served:
    """`lock` is None where nothing was decided that would change anything."""
    prepared, old, started = decision.prepared, decision.old, time.monotonic()
    title = f"Serve {prepared.document.name}"
    sink(StageStarted(title, (head.host.name,)))
    for note in prepared.notes:
        sink(Note(note))
    if decision.new_key and lock:
        # Not `lock.replace`: the digest of a key that people chose has no place in arguments.
        lock.ensure_held()
        key_file = str(NodePaths(inventory.cluster).api_key)
        head.put(decision.new_key.encode(), key_file, mode=0o600, sudo=True)
    if decision.changes.lines and lock:
        file = decision.answer.files.get(service_file(inventory.cluster, prepared.document.name))
        declare(inventory, head, lock, prepared.document, old, file, sink)
    else:
        follow(inventory, head, old or prepared.document, sink)
    proof = prove(inventory, head, prepared, lambda: read_head_state(inventory, head), sink)
    outcome = _outcome(inventory, head, prepared, decision.answer)
    sink(StageFinished(title, time.monotonic() - started))
    return Served(
        prepared=prepared,
        proof=proof,
        changed=bool(decision.changes.lines),
        head=head.host.name,
        key_file=str(NodePaths(inventory.cluster).api_key),
        sudo=decision.answer.facts.user != "root",
        outcome=outcome,
    )


def new_key(
    inventory: Inventory, head: Transport, request: ServiceRequest, declared: Sequence[str]
) -> str | None:
    """The key of the config file where it is another one than the cluster's; None elsewhere.

    One key protects all services, and vLLM reads it when it starts. So it is taken while nothing
    is served: else clients of other services would lose theirs at some later restart, when
    nobody thinks of it. Raises UsageError then.
    """
    key = request.api_key
    if key is None or key == read_key(inventory, head):
        return None
    if declared:
        raise UsageError(
            "the api-key in the config file is not the key of this cluster, which "
            f"{', '.join(declared)} {'uses' if len(declared) == 1 else 'use'}",
            host=head.host.name,
            hint="take api-key out of the file, or first: "
            + " && ".join(f"clusterctl stop {name}" for name in declared),
        )
    return key


def _outcome(
    inventory: Inventory, head: Transport, prepared: Prepared, answer: Probe
) -> StartOutcome | None:
    """What the log says beside the prediction; what it teaches is kept on the head."""
    if prepared.fit is None:
        return None
    plan = prepared.fit.plan
    outcome = outcome_of(head, inventory.cluster, prepared.document.name, plan)
    if outcome is not None:
        file = measured_file(inventory.cluster)
        learned = lessons(plan, outcome.reported, inventory.image)
        keep(head, file, with_lessons(answer.files.get(file), learned))
    return outcome


def _look(inventory: Inventory, transports: Mapping[str, Transport]) -> dict[str, Probe]:
    cluster = inventory.cluster
    files = (*node_files(cluster), *measurements(cluster))
    return look_at_all(inventory, transports, files=files)


def _state(inventory: Inventory, answer: Probe) -> NodeState:
    state = read_state(answer.files.get(str(NodePaths(inventory.cluster).state)))
    return require_bootstrapped(inventory, state, answer.facts.clock)


def _changes(prepared: Prepared, old: ServiceDocument | None) -> Changes:
    new = prepared.document
    if old is None:
        lines: Sequence[str] = (f"start {new.name}: {' '.join(new.argv)}",)
        return Changes(tuple(lines), restarts=False, notes=prepared.notes, fit=prepared.fit)
    lines = difference(old, new)
    restarts = needs_restart(old, new)
    return Changes(tuple(lines), restarts=restarts, notes=prepared.notes, fit=prepared.fit)
