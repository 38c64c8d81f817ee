"""The verdict on one or several logs: the first cause, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clusterctl.diagnosis.logs import Evidence, Finding, search, search_now
from clusterctl.diagnosis.rules import LEVELS
from clusterctl.diagnosis.unknown import REFUSED, REQUEST, UNKNOWN
from clusterctl.errors import StepFailed

LOST = "node-lost"
_BROKEN_BY_LOSS = ("nccl-", "gloo-", "gcs-", "ray-cgraph", "dist-", "peer-gone")

_LONGEST_MESSAGE = 40  # lines in which a message goes on, with what it was raised from


@dataclass(frozen=True)
class Cause:
    """A cause, with all lines that show it."""

    id: str
    certainty: str  # certain | likely | unknown: what failed is known, and not why
    cause: str
    fix: str
    evidence: tuple[Evidence, ...]
    follows_from: str | None  # the id of the cause that this one follows from
    before: tuple[Evidence, ...] = ()  # warnings and errors before the first line, if it is unknown
    over: bool = False  # it was the cause of a failure that is over
    by_clients: bool = False  # only a client did something wrong: the service works


def verdict(findings: Iterable[Finding]) -> list[Cause]:
    """Order findings of all logs: the first cause first, then what else was found, and last what is
    over.

    A root cause goes before a failure between ranks, which usually follows from one, and that
    before a line that only reports the end of a process. Within a level, certain causes go first,
    then the earliest by the logs' own clocks (year and zone are not compared), then by the order of
    files and lines.
    """
    found = list(findings)
    present = [each for each in found if not each.over]
    return [*_causes(present), *_causes([each for each in found if each.over])]


def _causes(findings: Sequence[Finding]) -> list[Cause]:
    lost = any(each.id == LOST for each in findings)
    order = sorted(findings, key=lambda finding: _depth(finding, lost=lost))
    known = {each.id for each in findings if not each.is_read}
    groups: dict[str, list[Finding]] = {}
    for each in order:
        apart = not _is_unknown(each) or each.id in known
        groups.setdefault(each.id if apart else UNKNOWN, []).append(each)

    causes = []
    for same in groups.values():
        first = same[0]
        follows = _depth(first, lost=lost)[0] > _depth(order[0], lost=lost)[0] or (
            first.pattern.level == "link" and order[0].pattern.level == "raised"
        )
        causes.append(
            Cause(
                first.id,
                _certainty(first, among=findings),
                first.cause,
                first.fix,
                tuple(each.evidence for each in same),
                order[0].id if follows and first.pattern.level != "request" else None,
                first.before,
                first.over,
                by_clients=first.rule.by_clients and first.pattern.level == "request",
            )
        )
    return causes


def _is_unknown(finding: Finding) -> bool:
    """Whether no rule knows it, and the line does not say all of it either."""
    return finding.is_read and finding.id not in {REFUSED, REQUEST}


def _certainty(finding: Finding, among: Sequence[Finding]) -> str:
    """Return how certain a cause is: a failure between ranks usually has another cause, a report of
    an end does not say why, and what stands long after another failure may follow from it."""
    level = finding.pattern.level
    if finding.id in {UNKNOWN, REQUEST} or level == "report":
        return "unknown"
    between = level == "link" and finding.id != LOST
    after = any(_long_before(other, finding) for other in among)
    return "likely" if finding.pattern.likely or between or after else "certain"


def _long_before(other: Finding, finding: Finding) -> bool:
    """Whether another failure, of which no rule knows what follows from it, stands in the same log
    before this one, and not in the same message."""
    if not _is_unknown(other) or other.pattern.level != "raised":
        return False
    here, there = finding.evidence, other.evidence
    return here.file == there.file and here.line - there.line > _LONGEST_MESSAGE


def _depth(finding: Finding, *, lost: bool) -> tuple[int, bool, bool, str]:
    """Return the sort key of findings: Python's sort keeps the order of files and lines for equal
    ones. `lost`: a node was lost, which breaks its connections."""
    level, likely, timeless = finding.weight
    if lost and (_is_unknown(finding) or finding.id.startswith(_BROKEN_BY_LOSS)):
        level = max(level, LEVELS["said"])
    return level, likely, timeless, finding.time


def diagnose(lines: Iterable[str]) -> list[Cause]:
    """Return the verdict on one log, given as text."""
    return verdict(search((line.encode(errors="replace") for line in lines), "log"))


def cause_of_failure(lines: Sequence[str]) -> Cause | None:
    """Return why the last start in a service's log failed; None if the log does not show it."""
    log = [f"{line}\n".encode(errors="replace") for line in lines]
    found = (cause for cause in verdict(search_now(log, "log")) if not cause.by_clients)
    return next(found, None)


def in_a_sentence(cause: Cause) -> str:
    """Return the cause with its certainty."""
    doubt = {"certain": "", "likely": "probably, "}.get(cause.certainty, "its cause is not known: ")
    return f"{doubt}{cause.cause}"


def explain(service: str, lines: Sequence[str], *, host: str | None = None) -> StepFailed:
    """Return the error for a service that did not start, with the cause of its last failure."""
    cause = cause_of_failure(lines)
    if cause is None:
        return StepFailed(
            f"{service} did not start, and its log shows no failure",
            host=host,
            hint=f"clusterctl logs {service}",
            detail="\n".join(lines[-20:]),
        )
    return StepFailed(
        f"{service} did not start: {in_a_sentence(cause)}",
        host=host,
        hint=cause.fix,
        detail="\n".join(each.text for each in cause.evidence[:3]),
    )
