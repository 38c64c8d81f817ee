"""Serving one service: plan it, declare its replicas, and wait until they are proven."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from clusterctl.engine.events import EventSink, Note, StageFinished, StageStarted
from clusterctl.errors import ClusterctlError, UsageError, raise_all
from clusterctl.inventory.model import Inventory
from clusterctl.models.name import Model, resolve
from clusterctl.node.files import NodePaths
from clusterctl.operations.adapters import require_adapters
from clusterctl.operations.preparing import prepare_hosts
from clusterctl.planning.cluster_hardware import measurements
from clusterctl.planning.report import FitReport
from clusterctl.planning.reported import (
    StartOutcome,
    keep,
    lessons,
    measured_file,
    outcome_of,
    with_lessons,
)
from clusterctl.planning.service_plan import ServicePlan, plan_service
from clusterctl.serving.adapters import LocalAdapter, with_adapters
from clusterctl.serving.brought_files import BroughtFile, bring, with_brought
from clusterctl.serving.declaration import read_key
from clusterctl.serving.notices import noticed
from clusterctl.serving.proof import Proof, await_gateway
from clusterctl.serving.request import ServiceRequest
from clusterctl.serving.rollout import Rollout
from clusterctl.serving.service import difference, dropped_flags
from clusterctl.survey.gateways import hosts_with_gateway
from clusterctl.survey.survey import Survey, read_reported_state, take_survey
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import failures, fan_out
from clusterctl.transport.lock import ClusterLock


@dataclass(frozen=True)
class Changes:
    """The changes that serving would make; no lines if the service already matches."""

    lines: tuple[str, ...]
    restarts: bool  # a running service is stopped and started again
    notes: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()  # Flags that replicas have now, and will not have
    fit: FitReport | None = None  # predicted memory and speed

    @property
    def shown(self) -> Set[object]:
        """What the user agrees to, for `carry_out`."""
        return {*self.lines, *(("restarts",) if self.restarts else ()), *self.drops}


@dataclass(frozen=True)
class Wanted:
    """A service to serve, before any host is contacted."""

    request: ServiceRequest
    model: Model
    brought: tuple[BroughtFile, ...] = ()
    adapters: tuple[LocalAdapter, ...] = ()

    @staticmethod
    def of(request: ServiceRequest, inventory: Inventory, base: Path = Path()) -> Wanted:
        """Raises UsageError for an invalid model, for missing files in flags, and for adapters that
        vLLM does not load; relative ones start at `base`."""
        model = resolve(request.model, inventory.models)
        request, brought = with_brought(request, inventory.cluster, base)
        request, adapters = with_adapters(request, inventory.models, base)
        return Wanted(request, model, brought, adapters)


@dataclass(frozen=True)
class Decision:
    """The result of one survey and its planning."""

    survey: Survey
    wanted: Wanted
    plan: ServicePlan
    changes: Changes
    # The cluster's new API key; None if it does not change
    new_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Served:
    """A service that has answered."""

    plan: ServicePlan
    proof: Proof  # of the first replica
    changed: bool
    proofs: Mapping[str, Proof]  # of each replica, by its name
    head: str  # the host that the API runs on
    key_file: str  # path of the API key on that host
    certificate_file: str  # path of the gateway's certificate there, for clients
    sudo: bool  # whether reading the key file needs sudo
    # vLLM's reported memory compared with the prediction; None if one of them is missing
    outcome: StartOutcome | None = None
    notices: tuple[str, ...] = ()  # from vLLM's log: why it is slower or answers otherwise


# Shows the changes and returns, or raises if the user declines
Agree = Callable[[Changes], None]


def look(inventory: Inventory, transports: Mapping[str, Transport]) -> Survey:
    """Survey the cluster for decisions about services, without dead hosts. Raises the errors of
    other hosts that do not answer, and RequirementsNotMet if no supervisor is alive on the head."""
    survey = take_survey(inventory, transports, files=measurements(inventory.cluster))
    survey = survey.without_dead().require_answers()
    survey.require_supervised_head()
    return survey


def decide_on(survey: Survey, wanted: Wanted, leaving: Collection[str] = ()) -> Decision:
    """Plan one service. `leaving`: replicas that will have stopped before it changes. Raises what
    `plan_service` raises, and all reasons against its adapters."""
    inventory = survey.inventory
    declared = {replica.document.service for replica in survey.replicas.values()}
    head = survey.transports[inventory.head.name]
    key = new_key(inventory, head, wanted.request, sorted(declared))

    plan = plan_service(survey, wanted.request, wanted.model, leaving)
    shape = plan.location.shape if plan.location else None
    require_adapters(survey, plan.document, shape, wanted.adapters)
    changes = changes_of(survey, plan)
    if key:
        file = NodePaths(inventory.cluster).api_key
        line = f"API key: the config file's, kept in {file} (0600)"
        changes = replace(changes, lines=(*changes.lines, line))
    return Decision(survey, wanted, plan, changes, key)


def prepare(decision: Decision, sink: EventSink) -> None:
    """Make sure that the hosts are ready for what will start on them, and copy the files that flags
    name."""
    if not decision.changes.lines:
        return
    survey, plan = decision.survey, decision.plan
    prepare_hosts(survey, plan.replicas, decision.wanted.model, plan.location, sink)
    bring(decision.wanted.brought, survey.inventory.cluster, survey.transports)


def new_key(
    inventory: Inventory, head: Transport, request: ServiceRequest, declared: Collection[str]
) -> str | None:
    """Return the config file's key if it differs from the cluster's; else None.

    One key protects all services, and vLLM reads it when it starts. So a new key is accepted only
    while no service is declared: otherwise clients of other services would be unexpectedly locked
    out at a later restart. Raises UsageError then.
    """
    key = request.api_key
    if key is None or key == read_key(inventory, head):
        return None
    if declared:
        raise UsageError(
            "the api-key in the config file differs from the cluster's key, which "
            f"{', '.join(declared)} already {'uses' if len(declared) == 1 else 'use'}",
            host=head.host.name,
            hint="remove api-key from the file, or first: "
            + " && ".join(f"clusterctl stop {name}" for name in declared),
        )
    return key


def keep_key(survey: Survey, key: str) -> None:
    """Write the cluster's new API key on every host with a gateway."""
    path = str(NodePaths(survey.inventory.cluster).api_key)
    hosts = {one.name: survey.transports[one.name] for one in survey.inventory.gateways}

    def put(host: Transport) -> None:
        # Not `lock.replace`: that would put the digest of a user-chosen key into arguments.
        host.put(key.encode(), path, mode=0o600, sudo=True)

    raise_all(failures(fan_out(hosts, put)))


def changes_of(survey: Survey, plan: ServicePlan) -> Changes:
    """Return what would change; a replica's lines begin with its name where there are several."""
    lines, replicas = list[str](), plan.replicas
    changed: dict[str, list[str]] = {}
    for each in replicas:
        new, name = each.document, each.name
        if each.old is None:
            lines.append(f"start {name} on {each.host}: {' '.join(new.argv)}")
        elif each.differs:
            changed[name] = difference(each.old, new)
    if len({tuple(each) for each in changed.values()}) == 1 and len(changed) == len(replicas):
        lines += next(iter(changed.values()))
    else:
        lines += [f"{name}: {line}" for name, each in changed.items() for line in each]
    restarted = [each for each in replicas if each.restarts]
    if restarted and len(replicas) > 1:
        names = ", ".join(each.name for each in restarted)
        lines.append(f"restart, one at a time while the others serve: {names}")
    lines += [
        f"stop {each.name} on {each.host}, after its running requests" for each in plan.surplus
    ]
    before = survey.service(plan.service)
    if plan.members.on != before.on:
        lines.append(f"hosts of the replicas: {plan.members.on or 'all'}")
    if before.listed and plan.members.ttft != before.listed.ttft:
        ttft = f"{plan.members.ttft:g} s" if plan.members.ttft else "any"
        lines.append(f"time to first token that wakes more replicas: {ttft}")
    if not lines and plan.members != before.listed:
        lines.append("gateway: its list of replicas")
    outage = bool(restarted) and len(replicas) == 1
    drops = (
        flag for each in restarted if each.old for flag in dropped_flags(each.old, each.document)
    )
    return Changes(tuple(lines), outage, plan.notes, tuple(dict.fromkeys(drops)), plan.fit)


def bring_up(decision: Decision, lock: ClusterLock | None, sink: EventSink) -> Served:
    """Declare the replicas if anything changes (then `lock` is set), wait for them, and prove
    them."""
    survey, plan, started = decision.survey, decision.plan, time.monotonic()
    head = survey.transports[survey.inventory.head.name]
    first, title = plan.replicas[0], f"Serve {plan.service}"
    gateways = hosts_with_gateway(survey) if plan.gateway_url else []
    hosts = (*(each.host for each in plan.replicas), *gateways)
    sink(StageStarted(title, tuple(dict.fromkeys(hosts))))
    for note in plan.notes:
        sink(Note(note))

    if decision.new_key and lock:
        lock.ensure_held()
        keep_key(survey, decision.new_key)
    key = read_key(survey.inventory, head)
    held = lock if decision.changes.lines else None
    rollout = Rollout(survey, plan.replicas, plan.surplus, plan.members, key, held, sink)
    proofs = rollout.run()
    _await_gateways(survey, plan, gateways, sink)
    outcome = _compared(survey, plan.fit, first.name, first.host, proofs) if plan.fit else None
    sink(StageFinished(title, time.monotonic() - started))

    paths = NodePaths(survey.inventory.cluster)
    return Served(
        plan=plan,
        proof=proofs[first.name],
        changed=bool(decision.changes.lines),
        proofs=proofs,
        head=head.host.name,
        key_file=str(paths.api_key),
        certificate_file=str(paths.public_certificate),
        sudo=survey.facts[head.host.name].user != "root",
        outcome=outcome,
        notices=noticed(survey.transports[first.host], survey.inventory.cluster, first.name),
    )


def _await_gateways(
    survey: Survey, plan: ServicePlan, gateways: Collection[str], sink: EventSink
) -> None:
    """Wait until all gateways pass requests on to the service."""

    def await_one(host: Transport) -> None:
        read = partial(read_reported_state, survey.inventory, host)
        await_gateway(plan.service, plan.members.port, host.host.name, read, sink)

    raise_all(failures(fan_out({each: survey.transports[each] for each in gateways}, await_one)))


def _compared(
    survey: Survey, fit: FitReport, name: str, host: str, proofs: Mapping[str, Proof]
) -> StartOutcome | None:
    """Compare the log of the replica with the prediction, and keep corrections on the head."""
    inventory, head = survey.inventory, survey.transports[survey.inventory.head.name]
    outcome = outcome_of(survey.transports[host], inventory.cluster, name, fit.plan)
    if outcome is None:
        return None
    on_hosts = {rank.host for rank in proofs[name].ranks}
    learned = lessons(fit.plan, outcome.reported, inventory.image, on_hosts)
    kept = measured_file(inventory.cluster)
    with suppress(ClusterctlError):
        # Read again: services of one `apply` start, and are learned from, at the same time.
        keep(head, kept, with_lessons(head.read_file(kept) if learned else None, learned))
    return outcome
