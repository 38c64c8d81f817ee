"""Where the files of a cluster are on a node. Another root is for tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clusterctl.node.documents import config_dir, log_dir, run_dir


@dataclass(frozen=True)
class NodePaths:
    cluster: str
    root: Path = Path("/")

    @property
    def config(self) -> Path:
        return self.root / config_dir(self.cluster).lstrip("/")

    @property
    def logs(self) -> Path:
        return self.root / log_dir(self.cluster).lstrip("/")

    @property
    def node_document(self) -> Path:
        return self.config / "node.json"

    @property
    def declared_hosts(self) -> Path:
        """The names and addresses of the cluster, as lines of a hosts file."""
        return self.config / "hosts"

    @property
    def etc(self) -> Path:
        return self.root / "etc"

    @property
    def services(self) -> Path:
        return self.config / "services"

    @property
    def api_key(self) -> Path:
        return self.config / "api.key"

    @property
    def state(self) -> Path:
        return self.root / run_dir(self.cluster).lstrip("/") / "state.json"

    @property
    def journal(self) -> Path:
        return self.logs / "journal.jsonl"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"
