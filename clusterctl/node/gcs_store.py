"""Where the head's GCS keeps its tables, so that a returning head is the same head.

With the tables on the head's disk, a new GCS has its nodes, actors and placement groups again:

raylets of other hosts reconnect, and what runs on them continues. Without them it is a new cluster.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import Dict

from clusterctl.node.files import Journal

# The first Ray that was tried. 2.56.1 does not know the setting, and its GCS refuses to start.
FIRST_WITH_TABLES = (2, 60)

# Bytes. Tables of two nodes and their services take 1 MB, and what RocksDB logs beside them more.
LEAST_FREE = 64 * 2**20

# How often in a row a GCS may fail with its tables before they are taken for damaged. One start may
# fail on a busy machine.
FAILED_STARTS = 3

_OF = "of"  # The file with what the tables belong to


class GcsStore:
    """The directory of the tables, only on the head. It is emptied if its tables are unusable: from
    another Ray, from another cluster, or damaged."""

    def __init__(self, directory: Path, ray: str, journal: Journal) -> None:
        """`ray`: the installed release. A missing directory is not used."""
        self._directory = directory
        self._ray = ray
        self._journal = journal
        self._failed = 0  # Starts in a row that used the tables
        self._said = ""

    def env(self, token: str) -> Dict[str, str]:
        """Return the variables that make `ray start --head` use the tables; none if the GCS has to
        keep them in memory. `token`: the mark of the cluster's token."""
        numbers = re.match(r"(\d+)\.(\d+)", self._ray)
        known = numbers is not None and tuple(map(int, numbers.groups())) >= FIRST_WITH_TABLES
        if not known or not self._directory.is_dir():
            return {}
        try:
            self._empty_if_useless(f"Ray {self._ray}, token {token}\n")
        except OSError as error:
            return self._in_memory(f"{self._directory}: {error.strerror}")
        free = os.statvfs(self._directory)
        if free.f_bavail * free.f_frsize < LEAST_FREE:
            self._empty()  # By the time there is space again they are old
            return self._in_memory(f"{self._directory} is on a full file system")
        self._said = ""
        return {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(self._directory)}

    def started(self) -> None:
        self._failed = 0

    def failed(self) -> None:
        """Count a start that failed for the GCS."""
        self._failed += 1

    def _empty_if_useless(self, of: str) -> None:
        mark = self._directory / _OF
        before = mark.read_text("utf-8", "replace") if mark.exists() else ""
        if before == of and self._failed < FAILED_STARTS:
            return
        why = f"they are of {before.strip()[:100]}"
        if before == of:
            why = f"Ray did not start with them {self._failed} times in a row"
        if before:
            self._journal.write("ray", "tables", f"deleted: {why}; all nodes rejoin")
        self._failed = 0
        self._empty()
        mark.write_text(of)

    def _empty(self) -> None:
        for entry in self._directory.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    entry.unlink()

    def _in_memory(self, why: str) -> Dict[str, str]:
        if why != self._said:
            text = f"kept in memory: {why}; a restart of the head's Ray ends all services"
            self._journal.write("ray", "tables", text)
        self._said = why
        return {}
