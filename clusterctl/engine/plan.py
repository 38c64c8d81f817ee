"""A run as data: stages of steps on hosts, and the changes that they would make."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from clusterctl.engine.step import Change, Step, Unknown


class OnFailure(Enum):
    """Effect of a failed host on the rest of the run."""

    STOP = "stop"
    SET_HOST_ASIDE = "set host aside"


@dataclass(frozen=True)
class Stage:
    """Steps on hosts: hosts run in parallel, a host's steps in order, with a barrier at the end."""

    title: str
    hosts: tuple[str, ...]
    steps: tuple[Step, ...]
    on_failure: OnFailure = OnFailure.STOP


@dataclass(frozen=True)
class PlannedChange:
    """One line of a plan."""

    stage: str
    host: str
    step: str
    change: Change | Unknown


@dataclass(frozen=True)
class Plan:
    """All changes that a run would make, in order."""

    changes: tuple[PlannedChange, ...]

    @property
    def empty(self) -> bool:
        return not self.changes

    @property
    def disruptive(self) -> tuple[PlannedChange, ...]:
        """The changes that stop or restart a service."""
        return tuple(
            planned
            for planned in self.changes
            if isinstance(planned.change, Change) and planned.change.disruptive
        )
