"""Everything that can go wrong for a user, and the exit code each ends with.

    ClusterctlError                     1   a bug, when raised bare
    ├─ UsageError                       2   flags, model names
    ├─ InventoryError                   3   the inventory file; carries every problem found
    ├─ ConnectionFailed                 4
    │  ├─ Unreachable
    │  ├─ AuthenticationRejected
    │  └─ HostKeyProblem                    unknown, changed
    ├─ RequirementsNotMet               5   hosts lack something
    ├─ StepFailed                       6
    │  ├─ CommandFailed
    │  └─ CommandTimedOut
    ├─ LockHeld                         7
    ├─ RayNotFormed                     9
    ├─ DoesNotFit                      11
    ├─ Interrupted                    130
    └─ Problems                             several at once; the lowest exit code of theirs

    DEGRADED                            8   no error: the cluster runs, but not as specified
    CHANGES_PENDING                    10   no error: a dry run found changes
    UNPROVEN                           12   no error: the forecast of `fit` is not proven

Every error names the host, the cause in one sentence (`summary`) and the fix as a command
(`hint`). `detail` has more for the reader, such as the last lines of a log or the complete
message of a library. Exceptions of libraries are translated once, where the library is used.
"""

from __future__ import annotations

from collections.abc import Iterable

DEGRADED = 8  # Exit code of `status` if the cluster is not as the inventory specifies

UNPROVEN = 12  # Exit code of `fit` if its figures were not compared with vLLM's for such a model

CHANGES_PENDING = 10  # Exit code of a dry run that found changes


# What parsing raises for an answer that has not the form agreed on, such as JSON of lists in lists
# without end. Whoever parses what another machine says catches all of them.
MALFORMED = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip


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
    """Invalid flags or names, or a combination of them that makes no sense."""

    exit_code = 2


class InventoryError(ClusterctlError):
    """The inventory is invalid; `detail` has one problem per line, as `file:line:column: text`."""

    exit_code = 3


class ConnectionFailed(ClusterctlError):
    """clusterctl could not connect to a host, or log in there."""

    exit_code = 4


class Unreachable(ConnectionFailed):
    """No answer over TCP or SSH: a wrong name, route or port, or the host is down."""


class AuthenticationRejected(ConnectionFailed):
    """SSH rejected the user, or sudo rejected the password."""


class HostKeyProblem(ConnectionFailed):
    """The host's key is unknown, or differs from the known one."""


class RequirementsNotMet(ClusterctlError):
    """A host lacks something that the inventory specifies or clusterctl requires."""

    exit_code = 5


class StepFailed(ClusterctlError):
    """A change could not be made."""

    exit_code = 6


class CommandFailed(StepFailed):
    """A command on a host exited with a status other than 0."""


class CommandTimedOut(StepFailed):
    """A command on a host exceeded its timeout and was ended there."""


class LockHeld(ClusterctlError):
    """Another run of clusterctl is changing this cluster."""

    exit_code = 7


class RayNotFormed(ClusterctlError):
    """Ray does not have the nodes and GPUs that the inventory specifies."""

    exit_code = 9


class DoesNotFit(ClusterctlError):
    """The model cannot run on these GPUs with these settings."""

    exit_code = 11


class Interrupted(ClusterctlError):
    """The user interrupted the run."""

    exit_code = 130


class Problems(ClusterctlError):
    """Several errors at once; the exit code is the lowest one, since it has the earliest cause."""

    def __init__(self, errors: Iterable[ClusterctlError]) -> None:
        self.errors = tuple(errors)
        super().__init__(f"{len(self.errors)} problems")
        self.exit_code = min((error.exit_code for error in self.errors), default=1)


def raise_all(errors: Iterable[ClusterctlError]) -> None:
    """Raise the error if there is one, or `Problems` with all of them if there are several."""
    found = tuple(dict.fromkeys(errors))  # an error that affects several hosts is raised once
    if len(found) == 1:
        raise found[0]
    if found:
        raise Problems(found)
