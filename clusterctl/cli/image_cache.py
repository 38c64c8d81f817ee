"""`image cache`: layers that wait on this machine, and how to be rid of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded

if TYPE_CHECKING:
    from clusterctl.transfer.blob_store import StoreUsage


@guarded
def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Remove them all; what is needed again comes again.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Show what image layers take up on this machine, and where. Needs no cluster."""
    from clusterctl.transfer.blob_store import BlobStore

    store = BlobStore()
    found = store.usage()
    if clear:
        store.clear()
    show = _document if as_json else _text
    print(show(found, cleared=clear))


def _text(found: StoreUsage, *, cleared: bool) -> str:
    from clusterctl.reporting.text import size

    if not found.size:
        return f"{found.directory}: no image layers"
    layers = f"{found.directory}: {size(found.size)} of image layers"
    if cleared:
        return f"{layers} removed"
    return f"{layers}, {size(found.free)} free\nremove them: clusterctl image cache --clear"


def _document(found: StoreUsage, *, cleared: bool) -> str:
    """Sizes in bytes, as they were before anything was removed."""
    return json.dumps(
        {
            "directory": str(found.directory),
            "size": found.size,
            "free": found.free,
            "cleared": cleared,
        },
        indent=2,
    )
