"""Reads what the controller declared, again and again, while it is being changed."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Optional, Type, TypeVar

from clusterctl.node.documents import NodeDocument, ServiceDocument, from_json
from clusterctl.node.journal import Journal
from clusterctl.node.paths import NodePaths

T = TypeVar("T")


class Declared:
    """The documents on disk. One that cannot be read keeps its last good version: a mistake
    in a file must not stop what serves."""

    def __init__(self, paths: NodePaths, journal: Journal) -> None:
        self._paths = paths
        self._journal = journal
        self._texts: Dict[str, str] = {}
        self._good: Dict[str, object] = {}

    def node(self) -> Optional[NodeDocument]:
        """None until node.json is there and readable."""
        return self._read(NodeDocument, "node.json", self._paths.node_document)

    def services(self) -> Dict[str, ServiceDocument]:
        """By name. A directory that is missing declares nothing."""
        found: Dict[str, ServiceDocument] = {}
        for path in sorted(self._paths.services.glob("[!.]*.json")):
            document = self._read(ServiceDocument, path.name, path)
            if document:
                found[document.name] = document
        return found

    def _read(self, kind: Type[T], name: str, path: Path) -> Optional[T]:
        try:
            text = path.read_text("utf-8")
        except OSError:
            return None
        if text != self._texts.get(name):
            self._texts[name] = text
            self._parse(kind, name, text)
        good = self._good.get(name)
        return good if isinstance(good, kind) else None

    def _parse(self, kind: Type[T], name: str, text: str) -> None:
        try:
            self._good[name] = from_json(kind, text)
        except ValueError as error:
            self._journal.write("supervisor", "unreadable", f"{name}: {error}")
