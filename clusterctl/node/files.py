"""The supervisor's files on its host: documents, the state file, the journal."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import stat
import sys
import threading
import time
from pathlib import Path
from typing import IO, Dict, FrozenSet, List, Optional, Set, TextIO, Type, TypeVar

from clusterctl.node.documents import (
    DELETED,
    KeysDocument,
    MembersDocument,
    NodeDocument,
    NodeState,
    ServiceDocument,
    UnreadableDocument,
    config_dir,
    from_json,
    log_dir,
    read_document,
    run_dir,
    tables_dir,
    to_json,
)

T = TypeVar("T")

JOURNAL_LIMIT = 5 * 2**20  # Bytes; a larger journal is moved to journal.jsonl.1

_LARGEST_STATE = 64 * 2**20  # Bytes

# Bytes. A file system with less free space counts as full: the next lines may not fit.
LEAST_FREE = 2**20


class NodePaths:
    """Paths of a cluster's files on a node. Tests use another root."""

    def __init__(self, cluster: str, root: Path = Path("/")) -> None:
        self.cluster = cluster
        self.root = root
        self.etc = root / "etc"
        self.config = root / config_dir(cluster).lstrip("/")
        self.logs = root / log_dir(cluster).lstrip("/")
        self.state = root / run_dir(cluster).lstrip("/") / "state.json"
        self.node_document = self.config / "node.json"
        # The names and addresses of the cluster, in the format of /etc/hosts
        self.declared_hosts = self.config / "hosts"
        self.services = self.config / "services"
        self.members = self.config / "members"
        self.api_key = self.config / "api.key"
        self.keys = self.config / "keys.json"
        self.certificate = self.config / "gateway.pem"  # With its key
        self.public_certificate = self.config / "gateway.crt"
        self.gateway = self.state.parent / "gateway"
        self.gateway_counts = self.logs / "gateway-counts.json"
        self.ray_token = self.config / "ray.token"
        self.tables = root / tables_dir(cluster).lstrip("/")
        self.journal = self.logs / "journal.jsonl"
        self.ledger = self.logs / "ledger.jsonl"
        self.stacks = self.state.parent / "stacks"
        self.asked = self.state.parent / "asked.json"
        self.shared_gateway = self.state.parent / "shared-gateway.json"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"


def append_to(path: Path) -> IO[bytes]:
    """Open a log for appending; only root may read it. Raises OSError also for a link, and for a
    pipe, which would block until someone reads it."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{path} is a pipe")
    return os.fdopen(descriptor, "ab", buffering=0)


def read_file(path: Path, most: int) -> bytes:
    """Return the content of a file. Raises OSError if it has more than `most` bytes, and for a
    pipe, which would block until someone writes to it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - of a descriptor
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > most:
            raise OSError(errno.EINVAL, f"{path} is not a file, or too large")
        return file.read(most)


class Journal:
    """Appends a JSON line per event to the journal and prints a readable line on `stream`.

    Thread-safe. Errors of writing, such as a full disk, are printed and never raised.
    """

    def __init__(self, path: Path, host: str, stream: TextIO = sys.stdout) -> None:
        self._path = path
        self._host = host
        self._stream = stream
        self._lock = threading.Lock()
        self._torn = False  # The disk was full before the end of the last line

    def write(self, subject: str, event: str, text: str = "") -> None:
        """Record that `event` (one word) happened to `subject`: `ray`, `supervisor` or a
        service."""
        now = time.time()
        entry = {"time": now, "host": self._host, "subject": subject, "event": event, "text": text}
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        with self._lock:
            print(f"{stamp} {subject} {event} {text}".rstrip(), file=self._stream, flush=True)
            try:
                if self._path.exists() and self._path.stat().st_size > JOURNAL_LIMIT:
                    self._path.replace(self._path.with_name(self._path.name + ".1"))
                line = b"\n" * self._torn + json.dumps(entry).encode() + b"\n"
                with append_to(self._path) as file:
                    self._torn = file.write(line) < len(line)
            except OSError as error:
                print(f"{stamp} journal not written: {error}", file=self._stream, flush=True)


def why_not_written(directory: Path) -> str:
    """Return why logs in `directory` cannot be written, or an empty string if they can."""
    try:
        found = os.statvfs(directory)
    except OSError as error:
        return f"{directory}: {error.strerror}"
    if found.f_flag & os.ST_RDONLY:
        return f"{directory} is on a read-only file system"
    if found.f_bfree * found.f_frsize < LEAST_FREE:
        return f"{directory} is on a full file system"
    if found.f_files and not found.f_ffree:
        return f"{directory} is on a file system without free inodes"
    return ""


class Declared:
    """The documents on disk, reread in every round of the supervisor.

    When a document becomes unreadable its last good version stays in effect, since neither a typo
    nor an I/O error may stop a running service; `unreadable` lists it until it is fixed or removed.

    A service is stopped by removing its document, and all named keys are revoked by removing
    keys.json. If node.json is missing too, the whole directory was deleted by mistake, and the last
    good versions stay in effect.
    """

    def __init__(self, paths: NodePaths, journal: Journal) -> None:
        self._paths = paths
        self._journal = journal
        self._read_last: Dict[str, bytes] = {}
        self._good: Dict[str, object] = {}
        self._unreadable: Dict[str, UnreadableDocument] = {}
        self._missing: Dict[str, FrozenSet[str]] = {}  # By prefix, in the last read

    def node(self) -> Optional[NodeDocument]:
        """Return node.json, or None until it exists and is readable."""
        document = self._read(NodeDocument, "node.json", self._paths.node_document)
        if document is None and "node.json" in self._good:
            self._keep("node.json", DELETED)
        return document

    def services(self) -> Dict[str, ServiceDocument]:
        """Return the services in effect, by name."""
        found = self._all("services", self._paths.services, ServiceDocument)
        return {document.name: document for document in found}

    def members(self) -> Dict[str, MembersDocument]:
        """Return the members in effect, by service behind the gateway."""
        found = self._all("members", self._paths.members, MembersDocument)
        return {document.service: document for document in found}

    def keys(self) -> KeysDocument:
        """Return the named keys in effect; none if their file was deleted, as services then are."""
        found = self._all("keys.json", self._paths.config, KeysDocument)
        return found[0] if found else KeysDocument()

    def _all(self, prefix: str, directory: Path, kind: Type[T]) -> List[T]:
        """Return the documents in effect, by the names of their files. `prefix`: a directory below
        the configuration, or a file in it."""
        try:
            deleted = not self._paths.node_document.exists()
            # Not by glob, which takes a directory that cannot be read for an empty one.
            names = os.listdir(directory) if directory.exists() else []  # noqa: PTH208
        except OSError as error:
            for name in self._known(prefix) & self._good.keys():
                self._keep(name, f"its directory: {error.strerror}")
            return self._in_effect(prefix, kind)
        files = [directory / name for name in names if name.endswith(".json") and name[0] != "."]
        below = {path.relative_to(self._paths.config).as_posix(): path for path in files}
        paths = {name: path for name, path in below.items() if _is_at(prefix, name)}
        missing = frozenset(self._known(prefix) - paths.keys())
        if "node.json" in self._good and deleted:
            for name in missing & self._good.keys():
                self._keep(name, DELETED)
        else:
            # `rm -r` may delete another document a moment before node.json, so a document
            # counts as removed only if it is missing in two reads in a row.
            twice = self._missing.get(prefix, frozenset())
            for name in missing & (twice | (self._unreadable.keys() - self._good.keys())):
                for held in (self._good, self._unreadable, self._read_last):
                    held.pop(name, None)
        self._missing[prefix] = missing
        for name, path in sorted(paths.items()):
            self._read(kind, name, path)
        return self._in_effect(prefix, kind)

    def _known(self, prefix: str) -> Set[str]:
        known = self._good.keys() | self._unreadable.keys()
        return {name for name in known if _is_at(prefix, name)}

    def _in_effect(self, prefix: str, kind: Type[T]) -> List[T]:
        names = sorted(self._known(prefix) & self._good.keys())
        return [good for name in names if isinstance(good := self._good[name], kind)]

    def _keep(self, name: str, why: str) -> None:
        """Report an unreadable document; its last good version stays in effect."""
        if name not in self._unreadable or self._unreadable[name].why != why:
            good = self._good.get(name)
            last_good = to_json(good) if good else ""
            self._unreadable[name] = UnreadableDocument(name, why, last_good)
            self._journal.write("supervisor", "unreadable", f"{name}: {why}")
        self._read_last.pop(name, None)

    def unreadable(self) -> List[UnreadableDocument]:
        return list(self._unreadable.values())

    def _read(self, kind: Type[T], name: str, path: Path) -> Optional[T]:
        """Return the document in effect; None if it does not exist, or it was never readable."""
        try:
            data = path.read_bytes()
            if data != self._read_last.get(name):
                self._good[name] = read_document(name, data.decode())
                self._unreadable.pop(name, None)
                self._read_last[name] = data
        except FileNotFoundError:
            return None
        except OSError as error:
            self._keep(name, error.strerror or str(error))
        except ValueError as error:
            self._keep(name, str(error))
            self._read_last[name] = data
        good = self._good.get(name)
        return good if isinstance(good, kind) else None


def _is_at(prefix: str, name: str) -> bool:
    return prefix in (name, name.rpartition("/")[0])


class StateFile:
    """state.json, replaced atomically on every change and at least every `every` seconds."""

    def __init__(self, path: Path, every: float) -> None:
        """`every`: seconds after which even an unchanged state is rewritten, since its timestamp
        shows that the supervisor is alive."""
        self._path = path
        self._every = every
        self._last: Optional[NodeState] = None
        self._written = 0.0  # Monotonic seconds, which a change of the host's clock does not affect

    def before(self) -> Optional[NodeState]:
        """Return the state in the file that the previous supervisor left, or None.

        The file is on the host, so it survives the container but not a reboot.
        """
        try:
            return from_json(NodeState, read_file(self._path, _LARGEST_STATE).decode())
        except (OSError, ValueError):
            return None

    def write(self, state: NodeState) -> None:
        """Replace the file atomically, if the state changed or the last write is `every` seconds
        old.

        Write errors are ignored: the file is in memory, which may be full, and readers notice the
        old timestamp.
        """
        now, last = time.monotonic(), self._last
        if last and now - self._written < self._every:
            same = dataclasses.replace(state, time=last.time, nodes_time=last.nodes_time)
            if same == last:
                return
        self._last, self._written = state, now
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # After a reboot the engine made it, for all to read.
            self._path.parent.chmod(0o700)
            fresh = self._path.with_name(f".{self._path.name}.new")
            fresh.write_text(to_json(state), "utf-8")
            os.replace(fresh, self._path)  # noqa: PTH105 - atomic, also over an existing file
        except OSError:
            return
