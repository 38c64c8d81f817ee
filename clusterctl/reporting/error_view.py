"""Errors as shown to the user: host, cause, details, fix, and path of the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clusterctl.errors import ClusterctlError, Problems
from clusterctl.reporting.escaping import one_line, quoted
from clusterctl.reporting.text import below_itself


def flatten(error: ClusterctlError) -> tuple[ClusterctlError, ...]:
    """Return the individual errors in `error`, in order."""
    if isinstance(error, Problems):
        return tuple(inner for nested in error.errors for inner in flatten(nested))
    return (error,)


def error_lines(
    error: ClusterctlError, log: Path | None = None, *, width: int | None = None
) -> list[str]:
    """Format `error`, wrapped at `width` characters; commands and quoted output are never wrapped.
    A fix that several hosts share is printed once, under the last."""
    found = flatten(error)
    lines = [f"{len(found)} problems:"] if len(found) > 1 else []
    for index, single in enumerate(found):
        following = found[index + 1] if index + 1 < len(found) else None
        lines += below_itself("error: ", str(single), width)
        if single.detail:
            lines += [f"    {line}" for line in quoted(single.detail)]
        if single.hint and (following is None or following.hint != single.hint):
            first, *rest = map(one_line, single.hint.splitlines())
            lines += [f"  fix: {first}", *(f"       {line}" for line in rest)]
    if log is not None:
        lines.append(f"  log: {log}")
    return lines


def error_document(error: ClusterctlError, log: Path | None = None) -> dict[str, Any]:
    """Return the error as a JSON document."""
    return {
        "exit_code": error.exit_code,
        "log": str(log) if log else None,
        "problems": [
            {
                "kind": type(single).__name__,
                "host": single.host,
                "summary": single.summary,
                "detail": single.detail,
                "hint": single.hint,
            }
            for single in flatten(error)
        ],
    }
