"""Showing a plan and asking for consent: only what stops something that serves is asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import typer

from clusterctl.cli.session import confirm
from clusterctl.engine.plan import Plan
from clusterctl.errors import ChangesPending, UsageError
from clusterctl.reporting.console import Progress
from clusterctl.reporting.plan_view import plan_document, plan_lines


def agreement(
    progress: Progress, *, yes: bool, dry_run: bool, as_json: bool
) -> Callable[[Plan], None]:
    """What a workflow calls with its plan; it raises to stop there."""

    def agree(plan: Plan) -> None:
        if dry_run:
            raise show_plan(plan, as_json=as_json)
        if plan.empty:
            return
        if not as_json:
            print("\n".join(plan_lines(plan)), file=sys.stderr)
        if plan.disruptive and not confirm(
            "Lines with ! stop what serves now. Go on?", yes=yes, progress=progress
        ):
            raise UsageError(
                "not confirmed: some changes stop what serves now",
                hint="add --yes to go on, or --dry-run to look only",
            )

    return agree


def show_plan(plan: Plan, *, as_json: bool) -> typer.Exit:
    """Print the plan; the exit that a dry run ends with."""
    text = json.dumps(plan_document(plan), indent=2) if as_json else "\n".join(plan_lines(plan))
    print(text)
    return typer.Exit(0 if plan.empty else ChangesPending.exit_code)
