"""From the log of a start that failed to its cause and fix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clusterctl.errors import StepFailed
from clusterctl.serving.cluster_failures import CLUSTER, CONTAINER, WRAPPERS
from clusterctl.serving.failure_signature import Signature
from clusterctl.serving.start_failures import MEMORY, MODEL

# The first that matches a line names it, so the more telling stand first
SIGNATURES = (*MEMORY, *MODEL, *CLUSTER, *CONTAINER, *WRAPPERS)

# Characters of a line that are looked at: progress bars and dumps of settings are longer, and some
# patterns would take long over them.
_LONGEST_LINE = 4000


@dataclass(frozen=True)
class Diagnosis:
    """A failure that was recognised."""

    id: str
    cause: str
    fix: str
    line: str  # The line that says it
    number: int  # Its place in the log, from 1
    wrapper: bool  # It only says that something failed before


def diagnose(lines: Iterable[str]) -> Diagnosis | None:
    """The cause of a failure: the earliest line that names one, else one that says that
    something failed; None when nothing is known. Later ones mostly follow from the first."""
    found = findings(lines)
    return min(found, key=lambda one: (one.wrapper, one.number), default=None)


def findings(lines: Iterable[str]) -> list[Diagnosis]:
    """Every known failure in the log, each cause once, in the order of the log."""
    seen: dict[tuple[str, str], Diagnosis] = {}
    for number, line in enumerate(lines, start=1):
        one = _recognise(line, number)
        if one is not None:
            seen.setdefault((one.id, one.cause), one)
    return list(seen.values())


def explain(service: str, lines: list[str], *, host: str | None = None) -> StepFailed:
    """The error to end with when a service did not come up: the cause if it is known."""
    tail = "\n".join(lines[-20:])
    one = diagnose(lines)
    if one is None:
        return StepFailed(
            f"{service} did not start, for a reason not known here",
            host=host,
            hint=f"clusterctl logs {service}",
            detail=tail,
        )
    return StepFailed(f"{service} did not start: {one.cause}", host=host, hint=one.fix, detail=tail)


def _recognise(line: str, number: int) -> Diagnosis | None:
    text = line[:_LONGEST_LINE]
    for signature in SIGNATURES:
        match = signature.pattern.search(text)
        if match is not None:
            return _diagnosis(signature, match.groupdict(), text.strip(), number)
    return None


def _diagnosis(
    signature: Signature, groups: dict[str, str | None], line: str, number: int
) -> Diagnosis:
    values = {name: value or "unknown" for name, value in groups.items()}
    return Diagnosis(
        signature.id,
        signature.cause.format(**values),
        signature.fix.format(**values),
        line,
        number,
        signature.wrapper,
    )
