"""The contract of a step: check, then change. This module depends on neither Docker nor Ray.

Laws, tested for every step: `check` never writes; after `apply`, `check` finds nothing to do;
applying twice equals once; after a failed `apply`, check and apply still converge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Host
from clusterctl.transport.base import Transport


@dataclass(frozen=True)
class HostView:
    """A step's view of a host: its inventory entry, its facts, and the connection to it.

    Facts are from before the run: a step must reread what earlier steps may have changed.
    """

    host: Host
    facts: HostFacts
    transport: Transport
    # Report progress of a long apply, one short line at a time.
    say: Callable[[str], None] = lambda _: None


@dataclass(frozen=True)
class Change:
    """A change that a step would make, as shown in the plan."""

    summary: str
    before: str | None = None
    after: str | None = None
    disruptive: bool = False  # It stops or restarts a service


@dataclass(frozen=True)
class Unknown:
    """The change cannot be determined yet: an earlier step must run first."""

    reason: str


class Step(Protocol):
    """One property that a host must have. `check` raises RequirementsNotMet if the host cannot have
    it."""

    @property
    def title(self) -> str: ...

    def check(self, view: HostView, /) -> Change | Unknown | None:
        """Return the change to make, or None. Reads only."""

    def apply(self, view: HostView, change: Change, /) -> None:
        """Make the change. Raises StepFailed."""
