"""Steps for the documents of services: damaged, deleted or changed ones are restored from the
head's copies, and the head has a copy of each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from clusterctl.engine.step import Change, HostView
from clusterctl.node.documents import (
    CHANGED,
    DELETED,
    UnreadableDocument,
    config_dir,
    declared_dir,
    read_document,
)
from clusterctl.steps.files import FilesPresent, RemoteFile, root_script
from clusterctl.transport.base import ABSENT

# The directory stays: `serve` writes documents into it.
REMOVE_FILE = 'rm -f -- "$1"'

_WHY = {DELETED: "which was deleted", CHANGED: f"which {CHANGED.removeprefix('it ')}"}


class ServiceDocumentsReadable:
    """Step: each document in `unreadable`, by host, is as a command wrote it; an unreadable one
    that no command wrote is removed."""

    title = "service documents"

    def __init__(
        self, cluster: str, unreadable: Mapping[str, Sequence[UnreadableDocument]]
    ) -> None:
        self._directory = config_dir(cluster)
        self._unreadable = unreadable

    def check(self, view: HostView) -> Change | None:
        words = [
            f"{'restore' if document.last_good else 'remove'} {document.file}, "
            + _WHY.get(document.why, "which cannot be read")
            for document, _ in self._broken(view)
        ]
        return Change("; ".join(words)) if words else None

    def apply(self, view: HostView, _change: Change) -> None:
        for document, before in self._broken(view):
            path = f"{self._directory}/{document.file}"
            if document.last_good:
                good = document.last_good.encode()
                view.transport.put(good, path, mode=0o600, sudo=True, before=before)
            else:
                root_script(view, REMOVE_FILE, path, doing=f"removing {path}")

    def _broken(self, view: HostView) -> list[tuple[UnreadableDocument, str]]:
        """Return the documents that are still not as they should be, with digests of their current
        content."""
        found = []
        for document in self._unreadable.get(view.host.name, ()):
            data = view.transport.read_file(f"{self._directory}/{document.file}")
            good = document.last_good.encode()
            if data is None and good:
                found.append((document, ABSENT))
            elif data is not None and (data != good if good else not _is_readable(document, data)):
                found.append((document, hashlib.sha256(data).hexdigest()))
        return found


def _is_readable(document: UnreadableDocument, data: bytes) -> bool:
    try:
        read_document(document.file, data.decode())
    except ValueError:
        return False
    return True


def documents_copied(cluster: str, copies: Mapping[str, bytes]) -> FilesPresent:
    """Return the step that copies to the head the documents, by path, that an earlier version
    wrote."""
    files = [
        RemoteFile(f"{declared_dir(cluster)}/{file}", data, 0o600) for file, data in copies.items()
    ]
    return FilesPresent("copies of documents", lambda _: files)
