"""`serve`: plan a service, declare it on the head, follow it until it has proved itself.

Nothing is launched from here: the head's supervisor follows the document that this run writes, and
goes on following it when this run is long gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from clusterctl.engine.events import EventSink, Note, StageFinished, StageStarted
from clusterctl.errors import UsageError
from clusterctl.inventory.model import Inventory
from clusterctl.models.location import copy_from
from clusterctl.models.name import Model, resolve
from clusterctl.network.gate import GateScope, ensure_proven
from clusterctl.node.documents import ServiceDocument
from clusterctl.node.files import NodePaths
from clusterctl.planning.cluster_hardware import measurements
from clusterctl.planning.planner import FitReport
from clusterctl.planning.reported import (
    StartOutcome,
    keep,
    lessons,
    measured_file,
    outcome_of,
    with_lessons,
)
from clusterctl.planning.service_plan import ServicePlan, plan_service
from clusterctl.serving.config_file import read_config_file
from clusterctl.serving.declaration import HeadServices, read_key, service_file
from clusterctl.serving.proof import Proof, prove
from clusterctl.serving.request import Options, ServiceRequest, read_request
from clusterctl.serving.service import difference, needs_restart
from clusterctl.serving.vllm_flags import parse_arguments
from clusterctl.survey.survey import Survey, connected, read_head_state, take_survey
from clusterctl.transfer.weights.comparison import ComparedWeights, require_same
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
    """What serving would change, in words; no lines if it is served so already."""

    lines: tuple[str, ...]
    restarts: bool  # a running service is stopped and started anew
    notes: tuple[str, ...] = ()
    fit: FitReport | None = None  # predicted memory and speed


@dataclass(frozen=True)
class Decision:
    """What one look at the hosts leads to."""

    survey: Survey
    plan: ServicePlan
    old: ServiceDocument | None  # the service of that name as it is declared now
    changes: Changes
    # The cluster's API key from now on; None if it stays what it is
    new_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Served:
    """A service that answered."""

    plan: ServicePlan
    proof: Proof
    changed: bool
    head: str  # the host that the API runs on
    key_file: str  # path of the API key there
    sudo: bool  # root alone reads the key file, and the SSH user is not root
    # What vLLM reported beside the prediction; None if one of the two is missing
    outcome: StartOutcome | None = None


# Shows changes and returns, or raises if the user does not want them
Agree = Callable[[Changes], None]


def run(
    inventory: Inventory, asked: Asked, credentials: Credentials, *, agree: Agree, sink: EventSink
) -> Served:
    """Serve, and prove it. Serving the same thing twice changes nothing.

    Raises UsageError, RequirementsNotMet, DoesNotFit, RayNotFormed, StepFailed, LockHeld.
    """
    request = asked.request()
    model = resolve(request.model, inventory.models)  # refuses bad names before asking any host
    with connected(inventory.hosts, credentials) as transports:

        def decide() -> Decision:
            files = measurements(inventory.cluster)
            survey = take_survey(inventory, transports, files=files).require_answers()
            return _decide(survey, request, model)

        decision = decide()
        agree(decision.changes)
        if not decision.changes.lines:
            return _bring_up(decision, None, sink)
        with ClusterLock(transports[inventory.head.name], inventory.cluster, "serve") as lock:
            decision = settle(decision, decide, agree)
            weights = _compare_weights(decision, model, sink)
            _prove_links(decision, sink)
            served = _bring_up(decision, lock, sink)
            if weights:
                weights.hash_rest()
            return served


def _decide(survey: Survey, request: ServiceRequest, model: Model) -> Decision:
    inventory = survey.inventory
    survey.require_supervised_head()
    head = survey.transports[inventory.head.name]
    key = new_key(inventory, head, request, sorted(survey.services))
    plan = plan_service(survey, request, model)
    new, old = plan.document, survey.services.get(plan.document.name)
    lines = difference(old, new) if old else [f"start {new.name}: {' '.join(new.argv)}"]
    if key:
        file = NodePaths(inventory.cluster).api_key
        lines.append(f"API key: the config file's, kept in {file} (0600)")
    restarts = old is not None and needs_restart(old, new)
    changes = Changes(tuple(lines), restarts=restarts, notes=plan.notes, fit=plan.fit)
    return Decision(survey, plan, old, changes, key)


def new_key(
    inventory: Inventory, head: Transport, request: ServiceRequest, declared: Collection[str]
) -> str | None:
    """The config file's key, if it is not the cluster's yet; else None.

    One key protects all services, and vLLM reads it at its start. So a new one is accepted only
    while nothing is served: else clients of other services would lose theirs at some later
    restart, when nobody thinks of it. Raises UsageError then.
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


def settle(first: Decision, decide: Callable[[], Decision], agree: Agree) -> Decision:
    """Decide again under the lock: another run may have taken the port or the GPUs since `first`
    was decided. Asks the user again only about changes that were not shown yet."""
    again = decide()
    if again.changes.lines and again.changes.lines != first.changes.lines:
        agree(again.changes)
    return again


def _compare_weights(decision: Decision, model: Model, sink: EventSink) -> ComparedWeights | None:
    """Compare the model's files on the hosts that ranks span; None if there is nothing to
    compare."""
    survey, plan = decision.survey, decision.plan
    location, layout = plan.location, plan.layout
    if not decision.changes.lines or not layout.spans_hosts:
        return None
    if location is None or location.random_weights:
        return None

    def fix(source: str) -> str:
        return copy_from(model, survey.inventory.models, location.path, source)

    hosts = {name: survey.transports[name] for name in layout.hosts}
    head = survey.inventory.head.name
    return require_same(location.path, hosts, head=head, fix=fix, sink=sink)


def _prove_links(decision: Decision, sink: EventSink) -> None:
    """Run the fabric gate if ranks will talk over links that nothing has proven since the hosts'
    containers started."""
    survey, layout = decision.survey, decision.plan.layout
    if decision.changes.lines and layout.spans_hosts:
        scope = GateScope(survey.inventory, survey.topology, survey.transports, survey.facts)
        ensure_proven(scope.only({survey.inventory.head.name, *layout.hosts}), sink)


def _bring_up(decision: Decision, lock: ClusterLock | None, sink: EventSink) -> Served:
    """Declare the service if anything changes (then there is a `lock`), follow it, prove it."""
    survey, plan, started = decision.survey, decision.plan, time.monotonic()
    inventory, document = survey.inventory, plan.document
    head = survey.transports[inventory.head.name]
    key_file = str(NodePaths(inventory.cluster).api_key)
    title = f"Serve {document.name}"
    sink(StageStarted(title, (head.host.name,)))
    for note in plan.notes:
        sink(Note(note))
    if decision.new_key and lock:
        # Not `lock.replace`: the digest of a key that people chose has no place in arguments.
        lock.ensure_held()
        head.put(decision.new_key.encode(), key_file, mode=0o600, sudo=True)
    services = HeadServices(inventory, head, sink)
    if decision.changes.lines and lock:
        file = survey.head_file(service_file(inventory.cluster, document.name))
        services.declare(lock, document, decision.old, file)
    else:
        services.follow(decision.old or document)
    key = read_key(inventory, head)
    proof = prove(plan, key, head, lambda: read_head_state(inventory, head), sink)
    outcome = None
    if plan.fit:
        # What the log reports beside the prediction; what it teaches is kept on the head.
        outcome = outcome_of(head, inventory.cluster, document.name, plan.fit.plan)
    if plan.fit and outcome:
        kept = measured_file(inventory.cluster)
        learned = lessons(plan.fit.plan, outcome.reported, inventory.image)
        keep(head, kept, with_lessons(survey.head_file(kept), learned))
    sink(StageFinished(title, time.monotonic() - started))
    return Served(
        plan=plan,
        proof=proof,
        changed=bool(decision.changes.lines),
        head=head.host.name,
        key_file=key_file,
        sudo=survey.facts[head.host.name].user != "root",
        outcome=outcome,
    )
