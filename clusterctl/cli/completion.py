"""What a shell offers for the word being typed: names that need no host to be asked."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import typer


def hosts(context: typer.Context, incomplete: str) -> list[str]:
    """Hosts of the inventory meant, for the last of names parted by commas; none where there is no
    inventory, or one with mistakes in it."""
    from clusterctl.errors import ClusterctlError
    from clusterctl.inventory.current import current
    from clusterctl.inventory.load import load

    before, comma, last = incomplete.rpartition(",")
    typed = before.split(",")
    names: tuple[str, ...] = ()
    with suppress(ClusterctlError):
        names = tuple(host.name for host in load(current(_inventory(context))).hosts)
    fresh = (name for name in names if name.startswith(last) and name not in typed)
    return [f"{before}{comma}{name}" for name in fresh]


def _inventory(context: typer.Context) -> Path | None:
    """The -i typed so far, the command's own first."""
    typed = (where.params.get("inventory") for where in (context, context.find_root()))
    return next((Path(path) for path in typed if path), None)


def models(incomplete: str) -> list[str]:
    """Aliases of the catalogue."""
    from clusterctl.models.catalogue import CATALOGUE

    return [entry.alias for entry in CATALOGUE if entry.alias.startswith(incomplete)]
