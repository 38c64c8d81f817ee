"""Models as text and as JSON: the catalogue, and the hosts' models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from clusterctl.models.catalogue import CATALOGUE, by_directory, by_hub_id
from clusterctl.reporting.text import columns, size

if TYPE_CHECKING:
    from clusterctl.commands.model_list import ModelList
    from clusterctl.transfer.weights.on_host import Holding


def catalogue_lines() -> list[str]:
    """Return alias, Hub id, and the flags that `serve` adds."""
    return columns([(e.alias, e.hub_id, " ".join(e.tokens(None))) for e in CATALOGUE], indent="")


def holding_lines(listed: ModelList) -> list[str]:
    """Return one line per model: its size, its alias, and its state on each host."""
    if not listed.holdings:
        return [f"no host has a model in {listed.directory}"]
    rows = [
        (each.name, size(each.size), _alias(each) or "-", _where(each)) for each in listed.holdings
    ]
    return [f"in {listed.directory}:", *columns(rows)]


def listed_document(listed: ModelList | None) -> dict[str, object]:
    """Return the list for --json; sizes in bytes."""
    catalogue = [
        {"name": e.alias, "hub_id": e.hub_id, "flags": list(e.tokens(None))} for e in CATALOGUE
    ]
    if listed is None:
        return {"catalogue": catalogue}
    return {
        "catalogue": catalogue,
        "directory": listed.directory,
        "models": [_document(each) for each in listed.holdings],
        "errors": [{"host": error.host, "error": error.summary} for error in listed.errors],
    }


def _document(holding: Holding) -> dict[str, object]:
    return {
        "name": holding.name,
        "alias": _alias(holding),
        "bytes": holding.size,
        "origin": holding.origin,
        "hosts": dict(holding.hosts),
    }


def _alias(holding: Holding) -> str | None:
    hub_id = holding.name.removeprefix("models--").replace("--", "/")
    entry = by_hub_id(hub_id) or by_directory(hub_id.rpartition("/")[2])
    return entry.alias if entry else None


def _where(holding: Holding) -> str:
    """Return `complete on all 4 hosts`, or each state with its hosts."""
    states: dict[str, list[str]] = {}
    for host, state in holding.hosts.items():
        states.setdefault(state, []).append(host)
    if len(states) == 1 and len(holding.hosts) > 1:
        return f"{next(iter(states))} on all {len(holding.hosts)} hosts"
    return "; ".join(f"{state} on {_names(hosts)}" for state, hosts in states.items())


def _names(hosts: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(hosts[:most])
    return shown if len(hosts) <= most else f"{shown} and {len(hosts) - most} more"
