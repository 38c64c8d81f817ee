"""A stream of `docker save`, split into the blob store of this machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from clusterctl.containers.meter import Meter
from clusterctl.transfer.archives.members import SplitMembers
from clusterctl.transfer.archives.split import Splitter, clean, still_true
from clusterctl.transfer.archives.tar_stream import Read
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
        told = _split(store, stream, meter)
        store.remember(name, told)
    return SplitMembers(told, store.blobs)


def _split(
    store: BlobStore, stream: Callable[[], AbstractContextManager[Read]], meter: Meter
) -> str:
    lines: list[str] = []

    def listen(line: str) -> None:
        kind, _, count = line.partition("\t")
        if kind == "at":
            meter.reached(int(count))
        else:
            lines.append(line)

    with disk_errors(store.directory):
        store.blobs.mkdir(parents=True, exist_ok=True)
        clean(str(store.blobs))
        with stream() as read:
            Splitter(str(store.blobs), None, listen).split(read)
    return "\n".join(lines)
