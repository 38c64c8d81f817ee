"""A failure that keeps something from several hosts at once, as each of them is told of it."""

from __future__ import annotations

from clusterctl.errors import ClusterctlError, Problems, StepFailed


def share_of(error: ClusterctlError, host: str, what: str) -> ClusterctlError:
    """The host's own part in `error`; without one, that `what` was not sent, and why."""
    found = error.errors if isinstance(error, Problems) else (error,)
    for single in found:
        if single.host in (host, None):
            return single
    return StepFailed(f"the {what} was not sent: {found[0]}", host=host, hint=found[0].hint)
