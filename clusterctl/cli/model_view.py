"""Models as text and as JSON: the catalogue, and the hosts' models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from clusterctl.models.catalogue import CATALOGUE, CatalogueEntry, by_directory, by_hub_id
from clusterctl.models.version import show_version
from clusterctl.planning.editions import FoundModel
from clusterctl.reporting.text import columns, size
from clusterctl.serving.release_flags import NEWEST_RELEASE

if TYPE_CHECKING:
    from clusterctl.commands.model_list import ModelList
    from clusterctl.transfer.weights.on_host import Holding

_MOST_PRECISIONS = 3  # In a line of the search
_MOST_NAMES = 6  # of hosts with the same state
_OTHERS = "models to pull or push: clusterctl model search"


def list_lines(listed: ModelList | None) -> list[str]:
    """Return a line per model on the hosts: its size, its alias, and its state on each host.
    Without hosts, the catalogue in 80 columns: alias and Hub id. --json has the flags."""
    if listed is None:
        return columns([(e.alias, e.hub_id) for e in CATALOGUE], indent="")
    if not listed.holdings:
        return [f"no host has a model in {listed.directory}", "", _OTHERS]
    held = []
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
        held.append((holding.name, size(holding.size), _alias(holding) or "-", where))
    return [f"in {listed.directory}:", *columns(held), "", _OTHERS]


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


def search_lines(found: Sequence[FoundModel]) -> list[str]:
    """Return a table of at most 80 columns: alias, kind, size, and the precisions with the minimum
    GB from their recipes, in brackets if they do not fit."""
    if not found:
        return ["no model in the catalogue matches; any other works by its Hub id"]
    rows = [("alias", "kind", "size", "GB needed by precision")]
    rows += [
        (each.entry.alias, each.entry.kind, _parameters(each.entry), _precisions(each))
        for each in found
    ]
    return columns(rows, indent="")


def _parameters(entry: CatalogueEntry) -> str:
    return f"{entry.billions:.3g}B" if entry.billions < 1000 else f"{entry.billions / 1000:.2g}T"


def _precisions(each: FoundModel) -> str:
    shown = []
    for edition in each.editions:
        text = f"{edition.entry.precision}:{edition.entry.least_gb}"
        shown.append(text if edition.fits else f"({text})")
    more = f" +{len(shown) - _MOST_PRECISIONS}" if len(shown) > _MOST_PRECISIONS else ""
    return " ".join(shown[:_MOST_PRECISIONS]) + more or "-"


def search_document(found: Sequence[FoundModel]) -> dict[str, object]:
    """Return the search for --json."""
    models = [
        {
            "name": each.entry.alias,
            "hub_id": each.entry.hub_id,
            "kind": each.entry.kind,
            "billions": each.entry.billions,
            "architecture": each.entry.architecture,
            "since": show_version(each.entry.since) if any(each.entry.since) else None,
            "served": each.entry.architecture in NEWEST_RELEASE["architectures"],
            "planned": bool(each.entry.config),
            "variants": [
                {
                    "name": edition.entry.alias,
                    "hub_id": edition.entry.hub_id,
                    "precision": edition.entry.precision,
                    "least_gb": edition.entry.least_gb,
                    "fits": edition.fits,
                }
                for edition in each.editions
            ],
        }
        for each in found
    ]
    return {"vllm": NEWEST_RELEASE["vllm"], "models": models}


def _alias(holding: Holding) -> str | None:
    hub_id = holding.name.removeprefix("models--").replace("--", "/")
    entry = by_hub_id(hub_id) or by_directory(hub_id.rpartition("/")[2])
    return entry.alias if entry else None
