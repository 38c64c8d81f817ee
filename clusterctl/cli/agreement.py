"""Show a plan and ask for consent, which only changes that stop a running service need."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection

import typer

from clusterctl.cli.session import confirm, current_log
from clusterctl.engine.plan import Plan
from clusterctl.errors import CHANGES_PENDING, ClusterctlError, Problems, UsageError, raise_all
from clusterctl.reporting.console import Progress
from clusterctl.reporting.error_view import error_document
from clusterctl.reporting.plan_view import NOTHING, plan_document, plan_lines
from clusterctl.reporting.text import line_width


def agreement(
    progress: Progress, *, yes: bool, as_json: bool, agreed: Callable[[], object] = lambda: None
) -> Callable[[Plan], None]:
    """Return the function that a command calls with its plan; it raises if the user declines.
    `agreed` is called once consent is given or not needed. With `as_json`, nobody can be asked."""

    def agree(plan: Plan) -> None:
        if not plan.empty and not as_json:
            print("\n".join(plan_lines(plan, width=line_width(sys.stderr))), file=sys.stderr)
        if plan.disruptive and not _confirmed(progress, yes=yes, as_json=as_json):
            raise UsageError(
                "not confirmed: some changes stop running services",
                hint="add --yes to continue, or --dry-run to only show the changes",
            )
        agreed()

    return agree


def _confirmed(progress: Progress, *, yes: bool, as_json: bool) -> bool:
    if yes or as_json:
        return yes
    return confirm("Changes marked ! stop running services. Continue?", yes=yes, progress=progress)


def show_plan(
    plan: Plan,
    *,
    as_json: bool,
    nothing: str = NOTHING,
    errors: Collection[ClusterctlError] = (),
) -> typer.Exit:
    """Print the plan; return the exit of a dry run.

    `nothing` is printed for an empty plan. Raises the `errors` of hosts without a plan after
    printing the plan of the others; with JSON they are part of the document.
    """
    if as_json:
        print(json.dumps({**plan_document(plan), **_error(errors)}, indent=2))
    elif plan.changes or not errors:
        print("\n".join(plan_lines(plan, nothing, width=line_width(sys.stdout))))
    if errors and as_json:
        return typer.Exit(min(error.exit_code for error in errors))
    raise_all(errors)
    return typer.Exit(0 if plan.empty else CHANGES_PENDING)


def _error(errors: Collection[ClusterctlError]) -> dict[str, object]:
    """Return the errors in the form that `guard` uses for a failed run."""
    return {"error": error_document(Problems(errors), current_log())} if errors else {}
