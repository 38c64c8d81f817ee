"""Models as text and as JSON: the catalogue, and the hosts' models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.models.catalogue import CATALOGUE, by_directory, by_hub_id
from clusterctl.reporting.text import columns, size

if TYPE_CHECKING:
    from clusterctl.commands.model_list import ModelList
    from clusterctl.transfer.weights.on_host import Holding

_MOST_NAMES = 6  # of hosts with the same state


def list_lines(listed: ModelList | None) -> list[str]:
    """Return alias, Hub id, and the flags that `serve` adds; then a line per model on hosts: its
    size, its alias, and its state on each host."""
    lines = columns([(e.alias, e.hub_id, " ".join(e.tokens(None))) for e in CATALOGUE], indent="")
    if listed is None:
        return lines
    if not listed.holdings:
        return [*lines, "", f"no host has a model in {listed.directory}"]
    rows = []
    for holding in listed.holdings:
        states: dict[str, list[str]] = {}
        for host, state in holding.hosts.items():
            states.setdefault(state, []).append(host)
        where = f"{next(iter(states), '')} on all {len(holding.hosts)} hosts"
        if len(states) != 1 or len(holding.hosts) == 1:
            where = "; ".join(
                f"{state} on {', '.join(hosts[:_MOST_NAMES])}"
                + (f" and {len(hosts) - _MOST_NAMES} more" if len(hosts) > _MOST_NAMES else "")
                for state, hosts in states.items()
            )
        rows.append((holding.name, size(holding.size), _alias(holding) or "-", where))
    return [*lines, "", f"in {listed.directory}:", *columns(rows)]


def listed_document(listed: ModelList | None) -> dict[str, object]:
    """Return the list for --json; sizes in bytes."""
    catalogue = [
        {"name": e.alias, "hub_id": e.hub_id, "flags": list(e.tokens(None))} for e in CATALOGUE
    ]
    if listed is None:
        return {"catalogue": catalogue}
    models = [
        {
            "name": holding.name,
            "alias": _alias(holding),
            "bytes": holding.size,
            "origin": holding.origin,
            "hosts": dict(holding.hosts),
        }
        for holding in listed.holdings
    ]
    errors = [{"host": error.host, "error": error.summary} for error in listed.errors]
    return {
        "catalogue": catalogue,
        "directory": listed.directory,
        "models": models,
        "errors": errors,
    }


def _alias(holding: Holding) -> str | None:
    hub_id = holding.name.removeprefix("models--").replace("--", "/")
    entry = by_hub_id(hub_id) or by_directory(hub_id.rpartition("/")[2])
    return entry.alias if entry else None
