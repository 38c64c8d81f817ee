"""Step that restores unreadable documents of services from what the supervisor read last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusterctl.engine.step import Change, HostView
from clusterctl.node.documents import (
    DELETED,
    UnreadableDocument,
    config_dir,
    from_json,
    kind_of,
)
from clusterctl.steps.files import LOOK_AT_FILES, root_script
from clusterctl.transport.base import ABSENT

# The directory stays: `serve` writes documents into it.
REMOVE_FILE = 'rm -f -- "$1"'


class ServiceDocumentsReadable:
    """Step: each document of `unreadable`, by host, is readable again, or removed if no earlier
    version is known: then no service uses it."""

    title = "service documents"

    def __init__(
        self, cluster: str, unreadable: Mapping[str, Sequence[UnreadableDocument]]
    ) -> None:
        self._directory = config_dir(cluster)
        self._unreadable = unreadable

    def check(self, view: HostView) -> Change | None:
        words = [
            f"{'restore' if document.last_good else 'remove'} {document.file}, "
            + ("which was deleted" if document.why == DELETED else "which cannot be read")
            for document, _ in self._broken(view)
        ]
        return Change("; ".join(words)) if words else None

    def apply(self, view: HostView, change: Change) -> None:
        del change
        for document, before in self._broken(view):
            path = f"{self._directory}/{document.file}"
            if document.last_good:
                good = document.last_good.encode()
                view.transport.put(good, path, mode=0o600, sudo=True, before=before)
            else:
                root_script(view, REMOVE_FILE, path, doing=f"removing {path}")

    def _broken(self, view: HostView) -> list[tuple[UnreadableDocument, str]]:
        """Return documents still unreadable or deleted, with the digest of their content."""
        found = []
        for document in self._unreadable.get(view.host.name, ()):
            path = f"{self._directory}/{document.file}"
            seal = root_script(view, LOOK_AT_FILES, path, doing="looking at files")
            digest = seal.partition(" ")[2]
            if document.why == DELETED:
                found += [] if digest else [(document, ABSENT)]
            elif digest:
                try:
                    from_json(
                        kind_of(document.file), (view.transport.read_file(path) or b"").decode()
                    )
                except ValueError:
                    found.append((document, digest.strip()))
        return found
