"""A plan as text and as JSON."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from clusterctl.engine.plan import Plan, PlannedChange
from clusterctl.engine.step import Change
from clusterctl.reporting.text import columns, count

NOTHING = "Nothing to change: every host is as the inventory says."


def plan_lines(plan: Plan, nothing: str = NOTHING, *, width: int | None = None) -> list[str]:
    """Return the changes stage by stage, or the line `nothing` if there are none. `width`:
    characters in a line of the terminal; None does not wrap."""
    if plan.empty:
        return [nothing]
    hosts = {planned.host for planned in plan.changes}
    lines = [f"{count(len(plan.changes), 'change')} on {count(len(hosts), 'host')}:"]
    for stage, changes in groupby(plan.changes, key=lambda planned: planned.stage):
        lines.append(f"  {stage}")
        lines += columns([_row(planned) for planned in changes], indent="    ", width=width)
    return lines


def _row(planned: PlannedChange) -> tuple[str, str, str]:
    change = planned.change
    if not isinstance(change, Change):
        return planned.host, "?", f"{planned.step}: known once this is there: {change.reason}"
    sign = "!" if change.disruptive else "+"
    both = change.before is not None and change.after is not None
    values = f" ({change.before} → {change.after})" if both else ""
    return planned.host, sign, f"{change.summary}{values}"


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return the plan as a JSON document."""
    return {
        "changes": [
            {
                "stage": planned.stage,
                "host": planned.host,
                "step": planned.step,
                "known": isinstance(planned.change, Change),
                "summary": planned.change.summary
                if isinstance(planned.change, Change)
                else planned.change.reason,
                "disruptive": isinstance(planned.change, Change) and planned.change.disruptive,
            }
            for planned in plan.changes
        ]
    }
