"""A plan as text and as JSON."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from clusterctl.engine.plan import Plan
from clusterctl.engine.saved_plan import change_document
from clusterctl.engine.step import Change
from clusterctl.reporting.text import columns, count

NOTHING = "Nothing to change: every host matches the inventory."


def plan_lines(plan: Plan, nothing: str = NOTHING, *, width: int | None = None) -> list[str]:
    """Return the changes stage by stage, or the line `nothing` if there are none. `width`:
    characters in a line of the terminal; None does not wrap."""
    if plan.empty:
        return [nothing]
    hosts = {planned.host for planned in plan.changes}
    lines = [f"{count(len(plan.changes), 'change')} on {count(len(hosts), 'host')}:"]
    for stage, changes in groupby(plan.changes, key=lambda planned: planned.stage):
        rows = []
        for planned in changes:
            change = planned.change
            if isinstance(change, Change):
                both = change.before is not None and change.after is not None
                values = f" ({change.before} → {change.after})" if both else ""
                sign, text = "!" if change.disruptive else "+", f"{change.summary}{values}"
            else:
                sign, text = "?", f"{planned.step}: not known yet: {change.reason}"
            rows.append((planned.host, sign, text))
        lines += [f"  {stage}", *columns(rows, indent="    ", width=width)]
    return lines


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return the plan as a JSON document."""
    return {"changes": [change_document(planned) for planned in plan.changes]}
