"""Everything that can go wrong for a user, and the exit code each ends with.

    ClusterctlError                     1   a bug, when raised bare
    ├─ UsageError                       2   flags, model names
    ├─ InventoryError                   3   the inventory file; carries every problem found
    ├─ ConnectionFailed                 4
    │  ├─ Unreachable
    │  ├─ AuthenticationRejected
    │  └─ HostKeyProblem                    unknown, changed
    ├─ RequirementsNotMet               5   what hosts lack
    ├─ StepFailed                       6
    │  ├─ CommandFailed
    │  └─ CommandTimedOut
    ├─ LockHeld                         7
    ├─ RayNotFormed                     9
    ├─ DoesNotFit                      11
    ├─ Interrupted                    130
    └─ Problems                             several at once; ends with the earliest cause

    DEGRADED                            8   no error: the cluster runs, but not as promised
    CHANGES_PENDING                    10   no error: a dry run found changes

Every error names the host, the cause in one sentence (`summary`), the fix as a command
(`hint`) and, in `detail`, what a reader needs to see: the last lines of a log, the whole
message of a foreign library. Foreign exceptions are mapped once, where the library is used.
"""

from __future__ import annotations

from collections.abc import Iterable

DEGRADED = 8  # Exit code of `status` when something is not as the inventory promises

CHANGES_PENDING = 10  # Exit code of a dry run that found changes


class ClusterctlError(Exception):
    """An error meant for the user: `summary` is one sentence without the host's name."""

    exit_code = 1

    def __init__(
        self,
        summary: str,
        *,
        host: str | None = None,
        hint: str | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(summary)
        self.summary = summary
        self.host = host
        self.hint = hint
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.host}: {self.summary}" if self.host else self.summary


class UsageError(ClusterctlError):
    """Flags or names that make no sense together."""

    exit_code = 2


class InventoryError(ClusterctlError):
    """The inventory file cannot be used; `detail` has one `file:line:column: text` a line."""

    exit_code = 3


class ConnectionFailed(ClusterctlError):
    """A host could not be talked to."""

    exit_code = 4


class Unreachable(ConnectionFailed):
    """No TCP or SSH answer: name, route, port, or the host is down."""


class AuthenticationRejected(ConnectionFailed):
    """SSH answered and refused the user, or sudo refused the password."""


class HostKeyProblem(ConnectionFailed):
    """The host's key is unknown, or differs from the known one."""


class RequirementsNotMet(ClusterctlError):
    """A host lacks what the inventory promises or clusterctl needs."""

    exit_code = 5


class StepFailed(ClusterctlError):
    """A change could not be made."""

    exit_code = 6


class CommandFailed(StepFailed):
    """A command on a host ended with a status other than 0."""


class CommandTimedOut(StepFailed):
    """A command on a host ran past its time and was ended there."""


class LockHeld(ClusterctlError):
    """Another clusterctl works on this cluster."""

    exit_code = 7


class RayNotFormed(ClusterctlError):
    """Ray does not see what the inventory promises."""

    exit_code = 9


class DoesNotFit(ClusterctlError):
    """The model cannot run on these GPUs with these settings."""

    exit_code = 11


class Interrupted(ClusterctlError):
    """The user asked to stop."""

    exit_code = 130


class Problems(ClusterctlError):
    """Several errors at once; the exit code is the lowest of theirs, the earliest cause."""

    def __init__(self, errors: Iterable[ClusterctlError]) -> None:
        self.errors = tuple(errors)
        super().__init__(f"{len(self.errors)} problems")
        self.exit_code = min((error.exit_code for error in self.errors), default=1)


def raise_all(errors: Iterable[ClusterctlError]) -> None:
    """Raise nothing, the one error, or `Problems` with all of them."""
    found = tuple(dict.fromkeys(errors))  # one that ended several hosts' work is told once
    if len(found) == 1:
        raise found[0]
    if found:
        raise Problems(found)
