"""The causes that `diagnose` found, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from clusterctl.diagnosis.logs import MOST, Evidence
from clusterctl.diagnosis.verdict import Cause
from clusterctl.reporting.escaping import one_line

_SURE = {"certain": "", "likely": "probably: ", "unknown": "cause not known: "}
# What it costs to do what a fix names
_COSTS = {
    "--enforce-eager": "answers come slower",
    "--disable-custom-all-reduce": "ranks exchange data more slowly",
    "--max-model-len": "longer requests are refused",
    "--max-num-seqs": "fewer requests run at once",
    "lower -- --gpu-memory-utilization": "fewer tokens fit in the KV cache",
    "clusterctl bootstrap": "node containers that it recreates stop their services meanwhile",
    "NCCL_IB_DISABLE=1": "traffic between hosts is slower",
    "reboot the host": "all that runs there stops",
}
_SHOWN = 3  # lines of evidence for each cause
_WIDTH = 200  # characters of such a line


def cause_lines(causes: Sequence[Cause]) -> Iterator[str]:
    """Yield the verdict with its evidence and fix, other causes, consequences of the verdict, and
    past problems."""
    present = [cause for cause in causes if not cause.over]
    if present and all(cause.by_clients for cause in present):
        yield "no failure of the service; clients' mistakes:"
    for cause in present:
        if not cause.follows_from:
            yield from _whole(cause)

    followers = [cause for cause in present if cause.follows_from]
    if followers:
        yield "what follows from it:"
        yield from map(_in_brief, followers)

    ended = [cause for cause in causes if cause.over and not cause.follows_from]
    if ended:
        yield "nothing is failing now; earlier:" if not present else "over, not the cause of this:"
        yield from map(_in_brief, ended)


def unfinished_lines(unfinished: Mapping[str, str]) -> Iterator[str]:
    """Yield what logs do not show that end in the middle of a start; by file what was running."""
    for file, running in unfinished.items():
        yield f"{one_line(file)} ends while {running}, before the service is ready"
    if unfinished:
        yield "  if its process is gone, the kernel may tell: clusterctl exec -- sudo dmesg -T"


def _whole(cause: Cause) -> Iterator[str]:
    yield f"{_SURE[cause.certainty]}{one_line(cause.cause)}  [{cause.id}]"
    for each in cause.evidence[:_SHOWN]:
        yield f"    {_place(each)}: {one_line(each.text, _WIDTH)}"
    if len(cause.evidence) > _SHOWN:
        least = "at least " if len(cause.evidence) >= MOST else ""
        yield f"    and {least}{len(cause.evidence) - _SHOWN} more"
    for each in cause.before:
        yield f"  before it: {_place(each)}: {one_line(each.text, _WIDTH)}"
    yield f"  fix: {cause.fix}"
    if costs := [cost for step, cost in _COSTS.items() if step in cause.fix]:
        yield f"  costs: {'; '.join(costs)}"


def _in_brief(cause: Cause) -> str:
    return f"    {_place(cause.evidence[0])}: {one_line(cause.cause)}  [{cause.id}]"


def _place(evidence: Evidence) -> str:
    where = f"{evidence.file}:{evidence.line}"
    return one_line(f"{evidence.host} {where}" if evidence.host else where)
