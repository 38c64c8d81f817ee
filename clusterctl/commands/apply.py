"""`apply`: make all services of the cluster match a fleet file, as `serve` does for one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from clusterctl.engine.events import EventSink
from clusterctl.errors import ClusterctlError, DoesNotFit, Problems, UsageError, raise_all
from clusterctl.node.documents import to_json
from clusterctl.operations.adapters import copy_adapters
from clusterctl.operations.changing import change
from clusterctl.operations.serving import (
    Agree,
    Changes,
    Decision,
    Served,
    Wanted,
    bring_up,
    decide_on,
    look,
    prepare,
)
from clusterctl.operations.session import Session
from clusterctl.operations.stopping import end
from clusterctl.planning.replicas import as_if_declared
from clusterctl.serving.declaration import members_file, service_file
from clusterctl.serving.request import ServiceRequest
from clusterctl.survey.services import Replica
from clusterctl.survey.survey import Survey
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import failures, fan_out, values
from clusterctl.transport.lock import ClusterLock


@dataclass(frozen=True)
class FleetDecision:
    """The outcome of one survey and of planning all services."""

    survey: Survey
    services: Mapping[str, Decision]  # In the order of planning: those that free GPUs come first
    pruned: Mapping[str, Sequence[Replica]]
    changes: Changes

    def changed(self, name: str) -> bool:
        return bool(self.services[name].changes.lines)

    def unproven(self, name: str) -> bool:
        """Whether the service changes, or is not serving yet, as after an interrupted run."""
        declared = self.survey.service(name)
        serving = {replica.name for replica in declared.replicas if replica.serves}
        planned = {replica.name for replica in self.services[name].plan.replicas}
        return self.changed(name) or not planned <= serving


@dataclass(frozen=True)
class Applied:
    """The services of the file that changed or were not ready, with their proofs."""

    served: Mapping[str, Served]
    decision: FleetDecision


def run(
    session: Session,
    requests: Sequence[ServiceRequest],
    base: Path,
    *,
    prune: bool,
    agree: Agree,
) -> Applied:
    """Make the cluster run these services. Running it twice changes nothing, and after an
    interruption it continues. A service that fails does not keep the others from changing.

    base   the directory at which relative paths of flags start
    prune  whether services that are not among these are stopped

    Raises the errors of all services: before anything changes those of `serve`, later those of
    `Rollout.run`.
    """
    wanted, problems = list[Wanted](), list[ClusterctlError]()
    for request in requests:
        try:
            wanted.append(Wanted.of(request, session.inventory, base))
        except ClusterctlError as error:
            problems += _named(error, request)
    raise_all(problems)

    def decide(transports: Mapping[str, Transport]) -> FleetDecision:
        return decide_all(look(session.inventory, transports), wanted, prune=prune)

    def ask(found: FleetDecision) -> None:
        agree(found.changes)

    def act(decision: FleetDecision, lock: ClusterLock | None) -> Applied:
        return Applied(_bring_about(decision, lock, session), decision)

    return change(session, "apply", decide, ask, act, lambda it: it.changes.shown)


def decide_all(survey: Survey, wanted: Sequence[Wanted], *, prune: bool) -> FleetDecision:
    """Plan all services, each on what the previous ones leave free. Raises the problems of all."""
    names = {each.request.name or "": each for each in wanted}
    others = [name for name in survey.services if name not in names]
    pruned = {name: survey.service(name).replicas for name in (others if prune else ())}
    leaving = [replica for replicas in pruned.values() for replica in replicas]
    ahead = _without(survey, leaving, pruned)
    decisions, problems = dict[str, Decision](), list[ClusterctlError]()
    for name, each in sorted(names.items(), key=lambda item: _order(survey, item[1].request)):
        try:
            found = decide_on(ahead, each, [replica.name for replica in leaving])
        except ClusterctlError as error:
            holding = [other for other in others if ahead.service(other).replicas]
            problems += _named(error, each.request, () if prune else holding)
            continue
        if found.new_key and len(wanted) > 1:
            # Services that start together would get different ones.
            problems.append(
                UsageError(
                    f"{name}: the api-key in its config file differs from the cluster's key, "
                    "which all services share",
                    hint="remove api-key from the file; or, before any service runs, set the "
                    "cluster's key by serving this one alone with `serve --config`",
                )
            )
        decisions[name] = found
        leaving += found.plan.surplus
        ahead = _with(_without(ahead, found.plan.surplus), found)
    raise_all(problems)
    lines = [
        f"{name}: stop {replica.name} on {replica.host}, after its running requests"
        for name, replicas in pruned.items()
        for replica in replicas
    ]
    lines += [f"{name}: take it out of the gateway" for name, left in pruned.items() if not left]
    notes = [f"{name} is not in the file, so it stays as it is" for name in others if not prune]
    notes += [
        f"{name}: its replica on {member.host} will start again with that host: then run --prune "
        "again"
        for name in pruned
        for member in survey.service(name).lost
    ]
    for name, one in decisions.items():
        lines += [f"{name}: {line}" for line in one.changes.lines]
        notes += [f"{name}: {note}" for note in one.changes.notes]
    outage = any(one.changes.restarts for one in decisions.values())
    changes = Changes(tuple(lines), restarts=outage or bool(pruned), notes=tuple(notes))
    return FleetDecision(survey, decisions, pruned, changes)


def _order(survey: Survey, request: ServiceRequest) -> tuple[bool, int]:
    """Return the place of a service among those that are planned: after that which it swaps with,
    and by how many more replicas it requests than it has; `max` takes what others leave."""
    there = len(survey.service(request.name or "").replicas)
    more = 2**31 if request.replicas == "max" else (request.replicas or 1) - there
    return bool(request.swap_with), more


def _with(survey: Survey, decision: Decision) -> Survey:
    """Return the survey as it would be once the service runs as planned."""
    plan = decision.plan
    survey = as_if_declared(survey, plan.replicas)
    path = members_file(survey.inventory.cluster, plan.service)
    head = {path: to_json(plan.members).encode()}
    return survey.as_if_run_wrote({survey.inventory.head.name: head})


def _without(survey: Survey, leaving: Sequence[Replica], services: Collection[str] = ()) -> Survey:
    """Return the survey as it would be without these replicas, and without all of `services`."""
    cluster = survey.inventory.cluster
    written: dict[str, dict[str, bytes | None]] = {}
    for replica in leaving:
        written.setdefault(replica.host, {})[service_file(cluster, replica.name)] = None
    for name in services:
        head = written.setdefault(survey.inventory.head.name, {})
        head[members_file(cluster, name)] = None
    return survey.as_if_run_wrote(written)


def _bring_about(
    decision: FleetDecision, lock: ClusterLock | None, session: Session
) -> dict[str, Served]:
    """Stop pruned services, then change the others: first those that free GPUs, then the rest
    together.

    Raises the errors of all services that failed."""
    errors: list[ClusterctlError] = []
    survey, sink = decision.survey, session.progress
    if lock:

        def stop(name: str) -> None:
            end(survey, name, decision.pruned[name], lock, sink)

        errors += failures(fan_out({name: name for name in decision.pruned}, stop))
    todo = {name: one for name, one in decision.services.items() if decision.unproven(name)}
    for name, one in list(todo.items()):
        try:
            prepare(one, sink)
            if one.changes.lines:
                copy_adapters(survey.inventory, one.wanted.adapters, session.credentials, sink)
        except ClusterctlError as error:
            errors += _named(error, one.wanted.request)
            del todo[name]
    served: dict[str, Served] = {}
    for number in range(3):
        wave = {name: one for name, one in todo.items() if _wave(one) == number}
        outcomes = fan_out(wave, partial(_bring_up, lock=lock, sink=sink))
        served |= values(outcomes)
        errors += failures(outcomes)
    raise_all(errors)
    return served


def _wave(decision: Decision) -> int:
    """Return when a service changes: those that free GPUs, others, those that swap with these."""
    if decision.plan.surplus:
        return 0
    return 2 if decision.plan.document.swap_with else 1


def _bring_up(decision: Decision, *, lock: ClusterLock | None, sink: EventSink) -> Served:
    return bring_up(decision, lock if decision.changes.lines else None, sink)


def _named(
    error: ClusterctlError, request: ServiceRequest, holding: Sequence[str] = ()
) -> list[ClusterctlError]:
    """Return the individual errors, with the service's name, and the file's keys instead of flags.
    `holding`: services that are not in the file but hold GPUs."""
    found = list(error.errors) if isinstance(error, Problems) else [error]
    for one in found:
        if isinstance(one, DoesNotFit) and (one.hint or "").startswith("--replicas "):
            number = (one.hint or "").partition(" ")[2]
            one.hint = f"services.{request.name}.replicas: {number}"
        if isinstance(one, DoesNotFit) and holding:
            # What holds the GPUs is the likelier reason than a number that is too high.
            prune = f"--prune stops {', '.join(holding)}, not in the file, and frees these GPUs"
            one.hint = "; or ".join(filter(None, (prune, one.hint)))
    return found
