"""A plan in a file: shown to somebody now, and carried out later only if it is still the plan."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl import __version__
from clusterctl.engine.plan import Plan, PlannedChange
from clusterctl.engine.step import Change
from clusterctl.errors import MALFORMED, RequirementsNotMet, UsageError

FORMAT = 1  # Of the file; a newer one is refused


@dataclass(frozen=True)
class SavedPlan:
    """What `plan -o` wrote."""

    file: Path
    version: str  # The clusterctl that made it
    inventory: str  # SHA-256 of the inventory file
    changes: tuple[dict[str, Any], ...]  # As `change_document` makes them


def change_document(planned: PlannedChange) -> dict[str, Any]:
    """Return one line of a plan as JSON."""
    change = planned.change
    known = isinstance(change, Change)
    return {
        "stage": planned.stage,
        "host": planned.host,
        "step": planned.step,
        "known": known,
        "summary": change.summary if isinstance(change, Change) else change.reason,
        "disruptive": isinstance(change, Change) and change.disruptive,
    }


def save(plan: Plan, inventory: Path, file: Path) -> None:
    """Write `plan`, made for the inventory file `inventory`. Raises UsageError."""
    document = {
        "format": FORMAT,
        "clusterctl": __version__,
        "inventory_sha256": _digest(inventory),
        "changes": [change_document(planned) for planned in plan.changes],
    }
    try:
        file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}", hint="-o FILE") from error


def read(file: Path) -> SavedPlan:
    """Read a file of `save`. Raises UsageError."""
    again = f"clusterctl plan -o {file}"
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            raise UsageError(f"{file} was written by another release of clusterctl", hint=again)
        changes = tuple(document["changes"])
        for change in changes:
            hash((*_place(change), change["known"], change["summary"], change["disruptive"]))
        return SavedPlan(file, document["clusterctl"], document["inventory_sha256"], changes)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", hint=again) from error
    except MALFORMED as error:
        raise UsageError(f"{file} is not a plan of clusterctl: {error!r}", hint=again) from error


def require_same(saved: SavedPlan, plan: Plan, inventory: Path) -> None:
    """Raise RequirementsNotMet, naming what moved, if `plan` would do what `saved` does not have.

    Changes that were made since are no difference: a run that was interrupted continues. A change
    that depended on an earlier one (`known` is false) may have become any change of that step,
    but none that stops a service.
    """
    moved = []
    if saved.version != __version__:
        moved.append(f"clusterctl is {__version__} now, and was {saved.version}")
    if saved.inventory != _digest(inventory):
        moved.append(f"{inventory} was changed")
    planned = {_place(change): change for change in saved.changes}
    for now in map(change_document, plan.changes):
        before = planned.get(_place(now))
        foreseen = before and (not before["known"] or before["summary"] == now["summary"])
        if not foreseen or (now["disruptive"] and not (before and before["disruptive"])):
            was = f", where the plan had: {before['summary']}" if before else ""
            stops = " (stops running services)" if now["disruptive"] else ""
            moved.append(f"{now['host']}: {now['stage']}: {now['summary']}{stops}{was}")
    if moved:
        raise RequirementsNotMet(
            f"the plan in {saved.file} is out of date: it does not have what would be done now",
            hint=f"clusterctl plan {inventory} -o {saved.file}, and look at it again",
            detail="\n".join(moved),
        )


def _place(change: dict[str, Any]) -> tuple[str, str, str]:
    return change["stage"], change["host"], change["step"]


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
