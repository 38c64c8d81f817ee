"""The contract of a step: look, then change. Knows no Docker and no Ray.

Laws, tested for every step: `check` never writes; after `apply`, `check` finds nothing to
do; applying twice equals once; after a failed `apply`, check and apply still converge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Host
from clusterctl.transport.base import Transport


def _silent(_: str) -> None:
    return None


@dataclass(frozen=True)
class HostView:
    """A host as a step sees it: what it is meant to be, what it said, and how to reach it.

    Facts are from before the run: a step reads anew what earlier steps may have changed.
    """

    host: Host
    facts: HostFacts
    transport: Transport
    # Report progress of a long apply, one short line at a time.
    say: Callable[[str], None] = field(default=_silent)


@dataclass(frozen=True)
class Change:
    """What a step would do, and why, in words for the plan."""

    summary: str
    before: str | None = None
    after: str | None = None
    disruptive: bool = False  # It stops or restarts something that serves


@dataclass(frozen=True)
class Unknown:
    """It cannot be told yet: an earlier step must run first."""

    reason: str


class Step(Protocol):
    """One thing that a host must have. Raise RequirementsNotMet from `check` when it never can."""

    @property
    def title(self) -> str: ...

    def check(self, view: HostView) -> Change | Unknown | None:
        """None when nothing needs doing. Reads only."""

    def apply(self, view: HostView, change: Change) -> None:
        """Make the change. Raises StepFailed."""
