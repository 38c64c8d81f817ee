"""What the supervisor did, a JSON object a line, and the same for people on its stdout."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

LIMIT = 5 * 2**20  # Bytes after which the journal is moved to journal.jsonl.1

# Bytes free below which a file system counts as full: the next lines may not fit whole.
LEAST_FREE = 2**20


def why_not_written(directory: Path) -> str:
    """Why nothing is written to logs in `directory`; nothing when it is."""
    try:
        found = os.statvfs(directory)
    except OSError as error:
        return f"{directory}: {error.strerror}"
    if found.f_flag & os.ST_RDONLY:
        return f"{directory} is on a file system that is read-only"
    if found.f_bfree * found.f_frsize < LEAST_FREE:
        return f"{directory} is on a file system that is full"
    if found.f_files and not found.f_ffree:
        return f"{directory} is on a file system without free inodes"
    return ""


class Journal:
    """Safe to write to from several threads; a full disk never stops the supervisor."""

    def __init__(self, path: Path, host: str, stream: TextIO = sys.stdout) -> None:
        self._path = path
        self._host = host
        self._stream = stream
        self._lock = threading.Lock()

    def write(self, subject: str, event: str, text: str = "") -> None:
        """`subject` is `ray`, `supervisor` or a service; `event` one word; `text` a sentence."""
        now = time.time()
        entry = {"time": now, "host": self._host, "subject": subject, "event": event, "text": text}
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        with self._lock:
            print(f"{stamp} {subject} {event} {text}".rstrip(), file=self._stream, flush=True)
            try:
                self._append(json.dumps(entry) + "\n")
            except OSError as error:
                print(f"{stamp} journal not written: {error}", file=self._stream, flush=True)

    def _append(self, line: str) -> None:
        if self._path.exists() and self._path.stat().st_size > LIMIT:
            self._path.replace(self._path.with_name(self._path.name + ".1"))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line)
