"""Reads what the controller declared, again and again, while it is being changed."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Optional, Type, TypeVar

from clusterctl.node.documents import (
    NodeDocument,
    ServiceDocument,
    UnreadableDocument,
    from_json,
    to_json,
)
from clusterctl.node.journal import Journal
from clusterctl.node.paths import NodePaths

T = TypeVar("T")


class Declared:
    """The documents on disk. One that cannot be read keeps its last good version: a mistake
    in a file must not stop what serves; `unreadable` names it until it is mended or removed."""

    def __init__(self, paths: NodePaths, journal: Journal) -> None:
        self._paths = paths
        self._journal = journal
        self._read_last: Dict[str, bytes] = {}
        self._good: Dict[str, object] = {}
        self._unreadable: Dict[str, UnreadableDocument] = {}

    def node(self) -> Optional[NodeDocument]:
        """None until node.json is there and readable."""
        return self._read(NodeDocument, "node.json", self._paths.node_document)

    def services(self) -> Dict[str, ServiceDocument]:
        """By name. A directory that is missing declares nothing."""
        found: Dict[str, ServiceDocument] = {}
        paths = {f"services/{path.name}": path for path in self._paths.services.glob("[!.]*.json")}
        for name in [name for name in self._unreadable if name not in {"node.json", *paths}]:
            del self._unreadable[name]
        for name, path in sorted(paths.items()):
            document = self._read(ServiceDocument, name, path)
            if document:
                found[document.name] = document
        return found

    def unreadable(self) -> List[UnreadableDocument]:
        return list(self._unreadable.values())

    def _read(self, kind: Type[T], name: str, path: Path) -> Optional[T]:
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if data != self._read_last.get(name):
            self._read_last[name] = data
            self._parse(kind, name, data)
        good = self._good.get(name)
        return good if isinstance(good, kind) else None

    def _parse(self, kind: Type[T], name: str, data: bytes) -> None:
        try:
            self._good[name] = from_json(kind, data.decode())
            self._unreadable.pop(name, None)
        except ValueError as error:
            good = self._good.get(name)
            last_good = to_json(good) if good else ""
            self._unreadable[name] = UnreadableDocument(name, str(error), last_good)
            self._journal.write("supervisor", "unreadable", f"{name}: {error}")
