"""Find the cause and fix of a failed start in its log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clusterctl.errors import StepFailed
from clusterctl.serving.failures import SIGNATURES

# Number of characters searched per line: progress bars and dumps of settings are longer, and some
# patterns would take long on them.
_LONGEST_LINE = 4000


@dataclass(frozen=True)
class Diagnosis:
    """A recognised failure."""

    id: str
    cause: str
    fix: str
    line: str
    number: int  # of the line in the log, from 1
    wrapper: bool  # it only reports that something failed earlier


def diagnose(lines: Iterable[str]) -> Diagnosis | None:
    """Return the earliest line that names a cause, else the earliest that only reports a failure;
    None if none is recognised. Later failures mostly follow from the first."""
    found = findings(lines)
    return min(found, key=lambda one: (one.wrapper, one.number), default=None)


def findings(lines: Iterable[str]) -> list[Diagnosis]:
    """Return every recognised failure in the log, each cause once, in order."""
    seen: dict[tuple[str, str], Diagnosis] = {}
    for number, line in enumerate(lines, start=1):
        text = line[:_LONGEST_LINE]
        matches = ((one, one.pattern.search(text)) for one in SIGNATURES)
        known, match = next(((one, match) for one, match in matches if match), (None, None))
        if known is None or match is None:
            continue
        values = {name: value or "unknown" for name, value in match.groupdict().items()}
        cause, fix = known.cause.format(**values), known.fix.format(**values)
        one = Diagnosis(known.id, cause, fix, text.strip(), number, known.wrapper)
        seen.setdefault((one.id, one.cause), one)
    return list(seen.values())


def explain(service: str, lines: list[str], *, host: str | None = None) -> StepFailed:
    """Return the error for a service that did not start, with the cause if it is recognised."""
    tail = "\n".join(lines[-20:])
    one = diagnose(lines)
    if one is None:
        return StepFailed(
            f"{service} did not start, and its log shows no known failure",
            host=host,
            hint=f"clusterctl logs {service}",
            detail=tail,
        )
    return StepFailed(f"{service} did not start: {one.cause}", host=host, hint=one.fix, detail=tail)
