"""A stream of `docker save`, split into the blob store of this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager

from clusterctl.containers.meter import Meter
from clusterctl.transfer.archives.members import SplitMembers
from clusterctl.transfer.archives.split import Read, Row, Splitter, clean, still_true
from clusterctl.transfer.blob_store import BlobStore, disk_errors


def split_into(
    store: BlobStore,
    name: str,
    stream: Callable[[], AbstractContextManager[Read]],
    meter: Meter,
    *,
    needed: int,
) -> SplitMembers:
    """What the tar of `stream` holds. The stream is opened only when the store does not have
    what an earlier one of that `name` held, and has room for `needed` bytes.

    Raises Broken, RequirementsNotMet, and what the stream raises.
    """
    told = store.recall(name)
    if not isinstance(told, str) or not still_true(told, str(store.blobs), None):
        store.require_room(needed)
        lines: list[str] = []

        def listen(row: Row) -> None:
            if row[0] == "at":
                meter.reached(row[1])
            else:
                lines.append(json.dumps(row))

        with disk_errors(store.directory):
            store.blobs.mkdir(parents=True, exist_ok=True)
            clean(str(store.blobs))
            with stream() as read:
                Splitter(str(store.blobs), None, listen).split(read)
        told = "\n".join(lines)
        store.remember(name, told)
    return SplitMembers(told, store.blobs)
