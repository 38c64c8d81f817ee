"""A plan in a file: shown to someone now, and carried out later only if it is still the plan.

The file is not a signature: anyone who can edit it can approve different changes."""

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
from clusterctl.inventory.model import Inventory, PackageSource

FORMAT = 2  # Of the file; a newer one is refused

_READ_AGAIN = 64 * 2**20  # Bytes of a file whose content is compared


@dataclass(frozen=True)
class SavedPlan:
    """What `plan -o` wrote."""

    file: Path
    version: str  # The clusterctl that made it
    inventory: str  # SHA-256 of the inventory file
    changes: tuple[dict[str, Any], ...]  # As `change_document` makes them
    contents: dict[str, str]  # Of what the inventory names, as `contents` returns them


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


def contents(inventory: Inventory) -> dict[str, str]:
    """Return digests, by the key's name, of the local files that an inventory names, such as its
    CA, certificate, packages and image."""
    parts = {"": inventory, "packages.": inventory.packages, "gateway.": inventory.gateway}
    parts |= {
        f"packages.{name}.": part
        for name, part in inventory.packages
        if isinstance(part, PackageSource)
    }
    return {
        f"{section}{name}": _content(path)
        for section, part in parts.items()
        for name, path in part
        if isinstance(path, Path) and name != "source"
    }


def _content(path: Path) -> str:
    """Return a digest of a file; for a directory, or an archive too large to read again, a digest
    of names, sizes and times."""
    try:
        found = path.stat()
        if path.is_file() and found.st_size <= _READ_AGAIN:
            return _digest(path)
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        seen = [(str(each), each.stat().st_size, each.stat().st_mtime_ns) for each in files]
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return hashlib.sha256(repr(seen).encode()).hexdigest()


def save(plan: Plan, inventory: Inventory, made_for: Path, file: Path) -> None:
    """Write `plan`, made for the inventory file `made_for`. Raises UsageError."""
    document = {
        "format": FORMAT,
        "clusterctl": __version__,
        "inventory_sha256": _digest(made_for),
        "contents": contents(inventory),
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
            raise UsageError(f"{file} was written by a different release of clusterctl", hint=again)
        changes = tuple(document["changes"])
        for change in changes:
            hash((*_place(change), change["known"], change["summary"], change["disruptive"]))
        behind = dict(document["contents"])
        return SavedPlan(
            file, document["clusterctl"], document["inventory_sha256"], changes, behind
        )
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", hint=again) from error
    except MALFORMED as error:
        raise UsageError(f"{file} is not a plan of clusterctl: {error!r}", hint=again) from error


def require_same(saved: SavedPlan, plan: Plan, inventory: Inventory, made_for: Path) -> None:
    """Raise RequirementsNotMet, naming the differences, if `plan` has changes that `saved` does not
    have.

    Changes made since then do not count: an interrupted run can continue. A change that depended on
    an earlier one (`known` is false) may have become any change of that step, but not one that
    stops a service.
    """
    moved = []
    if saved.version != __version__:
        moved.append(f"clusterctl is now {__version__}, and was {saved.version}")
    if saved.inventory != _digest(made_for):
        moved.append(f"{made_for} was changed")
    now = contents(inventory)
    moved += [
        f"what {name} in the inventory names has changed"
        for name in sorted({*now, *saved.contents})
        if now.get(name) != saved.contents.get(name)
    ]
    planned = {_place(change): change for change in saved.changes}
    for change in map(change_document, plan.changes):
        before = planned.get(_place(change))
        foreseen = before and (not before["known"] or before["summary"] == change["summary"])
        if not foreseen or (change["disruptive"] and not (before and before["disruptive"])):
            was = f"; the plan had: {before['summary']}" if before else ""
            stops = " (stops running services)" if change["disruptive"] else ""
            moved.append(f"{change['host']}: {change['stage']}: {change['summary']}{stops}{was}")
    if moved:
        raise RequirementsNotMet(
            f"the plan in {saved.file} is out of date: it lacks changes that would be made now",
            hint=f"clusterctl plan {made_for} -o {saved.file}, and review it again",
            detail="\n".join(moved),
        )


def _place(change: dict[str, Any]) -> tuple[str, str, str]:
    return change["stage"], change["host"], change["step"]


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
