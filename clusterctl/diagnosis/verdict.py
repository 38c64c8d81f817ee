"""The verdict over one or several logs: the first cause, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clusterctl.diagnosis.logs import Evidence, Finding, search
from clusterctl.diagnosis.unknown import REQUEST, UNKNOWN
from clusterctl.errors import StepFailed


@dataclass(frozen=True)
class Cause:
    """A cause, with all lines that show it."""

    id: str
    certainty: str  # certain | likely | unknown: what failed is known, and not why
    cause: str
    fix: str
    evidence: tuple[Evidence, ...]
    follows_from: str | None  # the id of the cause that this one follows from


def verdict(findings: Iterable[Finding]) -> list[Cause]:
    """Order findings of all logs: the first cause first, then what else was found.

    A cause in itself goes before a failure between ranks, which mostly follows from one, and that
    before a line which only reports the end of a process. Within a level what is certain goes
    first, then what happened first by the logs' own clocks (their year and zone are not compared),
    then by the order of files and lines.
    """
    order = sorted(findings, key=_depth)
    groups: dict[str, list[Finding]] = {}
    for each in order:
        groups.setdefault(each.id, []).append(each)
    causes: list[Cause] = []
    for found in groups.values():
        first = found[0]
        follows = order[0].id if _level(first) > _level(order[0]) and not _asked(first) else None
        certainty = _certainty(first)
        evidence = tuple(each.evidence for each in found)
        causes.append(Cause(first.id, certainty, first.cause, first.fix, evidence, follows))
    return causes


def _certainty(finding: Finding) -> str:
    if finding.id in {UNKNOWN, REQUEST}:
        return "unknown"
    return "likely" if finding.pattern.likely else "certain"


def _level(finding: Finding) -> int:
    return finding.weight[0]


def _asked(finding: Finding) -> bool:
    """Whether a client's request was at fault, which no other cause explains."""
    return finding.pattern.level == "request"


def _depth(finding: Finding) -> tuple[int, bool, bool, str]:
    # Python's sort keeps the order of files and lines for what is equal.
    return *finding.weight, finding.time


def diagnose(lines: Iterable[str]) -> list[Cause]:
    """Return the verdict over one log that is at hand as text."""
    return verdict(search((line.encode(errors="replace") for line in lines), "log"))


def explain(service: str, lines: list[str], *, host: str | None = None) -> StepFailed:
    """Return the error for a service that did not start, with the cause if it is recognised."""
    tail = "\n".join(lines[-20:])
    causes = diagnose(lines)
    if not causes:
        return StepFailed(
            f"{service} did not start, and its log shows no known failure",
            host=host,
            hint=f"clusterctl logs {service}",
            detail=tail,
        )
    first = causes[0]
    said = f"{service} did not start: {first.cause}"
    return StepFailed(said, host=host, hint=first.fix, detail=tail)
