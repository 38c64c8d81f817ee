"""`adapter`: LoRA adapters of a service, copied to all hosts and loaded on every replica."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from clusterctl.errors import ClusterctlError, UsageError, raise_all
from clusterctl.operations.adapters import copy_adapters, require_adapters
from clusterctl.operations.changing import change
from clusterctl.operations.session import Session
from clusterctl.planning.question import question_again
from clusterctl.planning.replicas import as_declared
from clusterctl.serving.adapters import LocalAdapter
from clusterctl.serving.declaration import read_key, require_service
from clusterctl.serving.rollout import Rollout
from clusterctl.survey.services import Service
from clusterctl.survey.survey import Survey, take_survey
from clusterctl.transport.base import Transport
from clusterctl.transport.lock import ClusterLock


@dataclass(frozen=True)
class ListedAdapter:
    """An adapter of a service."""

    service: str
    name: str
    path: str  # On hosts
    missing: Mapping[str, str]  # By replica that does not offer it: why
    replicas: int


@dataclass(frozen=True)
class AdapterPlan:
    """The adapters that a service is to have."""

    survey: Survey
    service: Service
    adapters: Mapping[str, str]  # Paths on hosts, by name

    @property
    def added(self) -> list[str]:
        before = self.service.require_list().adapters
        return [name for name, path in self.adapters.items() if before.get(name) != path]

    @property
    def lines(self) -> list[str]:
        before = self.service.require_list().adapters
        left = [name for name in before if name not in self.adapters]
        return [*(f"load {name}" for name in self.added), *(f"unload {name}" for name in left)]


def add(session: Session, service: str, adapters: Sequence[LocalAdapter]) -> AdapterPlan:
    """Copy adapters to all hosts and load them on every replica. One that a replica cannot load is
    withdrawn everywhere. A second run changes nothing.

    Raises UsageError with all reasons against it, before anything is sent.
    """

    def decided(survey: Survey) -> AdapterPlan:
        return plan_adding(survey, service, adapters)

    with session.connected() as transports:
        before = decided(take_survey(session.inventory, transports).require_answers())
    copy_adapters(session.inventory, adapters, session.credentials, session.progress)
    try:
        return _carry_out(session, decided)
    except ClusterctlError:
        with suppress(ClusterctlError):
            remove(session, service, before.added)
        raise


def plan_adding(survey: Survey, service: str, adapters: Sequence[LocalAdapter]) -> AdapterPlan:
    """Decide on the adapters that the service is to have. Raises all reasons against these."""
    found = _service(survey, service)
    first = found.documents[0]
    require_adapters(survey, first, question_again(survey, first).shape, adapters)
    added = {each.name: f"{survey.inventory.models}/{each.path}" for each in adapters}
    return AdapterPlan(survey, found, {**found.require_list().adapters, **added})


def remove(session: Session, service: str, names: Sequence[str]) -> AdapterPlan:
    """Unload adapters everywhere; their files stay on the hosts. Raises UsageError."""

    def decided(survey: Survey) -> AdapterPlan:
        found = _service(survey, service)
        has = found.require_list().adapters
        raise_all(
            UsageError(f"{service} has no adapter {name}", hint="clusterctl adapter ls")
            for name in names
            if name not in has
        )
        left = {name: path for name, path in has.items() if name not in names}
        return AdapterPlan(survey, found, left)

    return _carry_out(session, decided)


def list_adapters(session: Session) -> list[ListedAdapter]:
    """Return the adapters of all services, with the replicas that do not offer them."""
    with session.connected() as transports:
        survey = take_survey(session.inventory, transports)
    found = []
    for service in survey.services.values():
        for name, path in (service.listed.adapters if service.listed else {}).items():
            states = {each.name: each.state for each in service.replicas}
            missing = {
                replica: (state.adapters.get(name, "not loaded yet") if state else "not started")
                for replica, state in states.items()
            }
            lacking = {replica: why for replica, why in missing.items() if why}
            found.append(ListedAdapter(service.name, name, path, lacking, len(states)))
    return found


def _carry_out(session: Session, decided: Callable[[Survey], AdapterPlan]) -> AdapterPlan:
    inventory = session.inventory

    def look(transports: Mapping[str, Transport]) -> AdapterPlan:
        return decided(take_survey(inventory, transports).require_answers())

    def ask(plan: AdapterPlan) -> None:
        """Nothing: all of it is on the command line."""

    def act(plan: AdapterPlan, lock: ClusterLock | None) -> AdapterPlan:
        if lock:
            head = plan.survey.transports[inventory.head.name]
            _roll(plan, read_key(inventory, head), lock, session)
        return plan

    return change(session, "adapter", look, ask, act, lambda plan: set(plan.lines))


def _roll(plan: AdapterPlan, key: str, lock: ClusterLock, session: Session) -> None:
    adapters = dict(plan.adapters)
    replicas = []
    for each in plan.service.replicas:
        planned = as_declared(plan.survey, each)
        replicas.append(replace(planned, document=replace(each.document, adapters=adapters)))
    members = replace(plan.service.require_list(), adapters=adapters)
    Rollout(plan.survey, replicas, (), members, key, lock, session.progress).run()


def _service(survey: Survey, name: str) -> Service:
    found = survey.service(name)
    if not found.replicas:
        require_service(name, {each: one.document for each, one in survey.replicas.items()})
    found.require_list()
    return found
