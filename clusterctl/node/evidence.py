"""Evidence of a hang, collected before the hanging processes are ended: stacks, the state of each
process, the last lines of all logs, and NCCL's view of its communicators.

One supervisor finds a service stalled, but its ranks are on other hosts, too.

So it asks all hosts through a key in the GCS, which every ray-watch reads, and each supervisor
collects and keeps what is on its own host. `diagnose` reads them together.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set

from clusterctl.node.documents import Rank
from clusterctl.node.files import Journal, NodePaths, append_to
from clusterctl.node.readings import process_ids, process_name, process_state
from clusterctl.node.recorder import SUBJECT
from clusterctl.node.stacks import DIRECTORY, LONGEST, ask_for, call_of, forget, written_by
from clusterctl.node.timing import Timing

KEPT = 8  # Files on each host
LARGEST = 2**20  # Bytes of a file

_TOLD = ("raylet", "gcs_server")  # Processes without Python stacks whose state matters
_MOST_PROCESSES = 200
_LOG_END = 4096  # Bytes of each log
_MOST_LOGS = 60
_ID = re.compile(r"[\w@.-]{1,100}")

# Where NCCL 2.24 and newer answers for its Reliability, Availability and Serviceability subsystem.
_RAS = ("127.0.0.1", 28028)
_RAS_TIMEOUT = 3.0  # Seconds for NCCL to hear from its other ranks


@dataclass(frozen=True)
class AskedEvidence:
    """The request to all hosts. `id` names the files."""

    id: str
    time: float  # Unix seconds
    service: str
    why: str
    ranks: List[Rank]


class HangEvidence:
    """Collects evidence in a thread, one at a time."""

    def __init__(self, paths: NodePaths, host: str, timing: Timing, journal: Journal) -> None:
        self._paths = paths
        self._host = host
        self._timing = timing
        self._journal = journal
        self._thread: Optional[threading.Thread] = None
        self._heard = ""
        with contextlib.suppress(OSError):
            paths.stacks.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def env(self) -> Dict[str, str]:
        """The variables by which vLLM's processes find the directory of their stacks."""
        return {DIRECTORY: str(self._paths.stacks)}

    def ask(self, service: str, why: str, ranks: List[Rank], own: Sequence[int]) -> float:
        """Ask all hosts of the ranks, this one included. Return the seconds until they are done.
        `own`: pids of the service's other processes on this host."""
        now = time.time()
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        asked = AskedEvidence(f"{stamp}-{service}", now, service, why, ranks)
        here = [rank.pid for rank in ranks if rank.host == self._host]
        self._take(asked, {*here, *own})
        elsewhere = {rank.host for rank in ranks} - {self._host}
        if not elsewhere:
            return self._timing.evidence_here
        with contextlib.suppress(OSError):
            fresh = self._paths.asked.with_name(".asked.new")
            fresh.write_text(json.dumps(asdict(asked)), "utf-8")
            os.replace(fresh, self._paths.asked)  # noqa: PTH105 - atomic, also over an existing file
        return self._timing.evidence_everywhere

    def heard(self, text: str) -> None:
        """Collect what another host requested in the GCS, if the request is new."""
        if text == self._heard or (self._thread and self._thread.is_alive()):
            return
        self._heard = text
        with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError, RecursionError):
            word = json.loads(text)
            own_id, age = str(word["id"]), abs(time.time() - float(word["time"]))
            fresh = _ID.fullmatch(own_id) and age < self._timing.evidence_age
            if fresh and not self._file(own_id).exists():
                service, why = str(word["service"])[:100], str(word["why"])[:300]
                here = {int(rank["pid"]) for rank in word["ranks"] if rank["host"] == self._host}
                self._take(AskedEvidence(own_id, time.time(), service, why, []), here)

    def _file(self, asked: str) -> Path:
        return self._paths.logs / f"evidence-{asked}.json"

    def _take(self, asked: AskedEvidence, pids: Set[int]) -> None:
        if self._thread and self._thread.is_alive():
            return
        self._thread = threading.Thread(target=self._work, args=(asked, pids), daemon=True)
        self._thread.start()

    def _work(self, asked: AskedEvidence, pids: Set[int]) -> None:
        started = time.monotonic()
        processes = taken(self._paths.stacks, self._timing.evidence_pause, pids)
        document = {
            **asdict(asked),
            "host": self._host,
            "processes": processes,
            "nccl": nccl_status(),
            "logs": dict(log_ends([self._paths.logs, Path("/tmp/ray/session_latest/logs")])),  # noqa: S108
        }
        text = bounded(document)
        logs = self._paths.logs
        try:
            for old in sorted(logs.glob("evidence-*.json"))[: 1 - KEPT]:
                old.unlink()
            fresh = logs / f".evidence-{asked.service}.new"
            fresh.unlink(missing_ok=True)
            with append_to(fresh) as file:
                file.write(text.encode())
            os.replace(fresh, self._file(asked.id))  # noqa: PTH105 - atomic, also over a file
        except OSError as error:
            self._journal.write(SUBJECT, "evidence", f"of {asked.service} is not kept: {error}")
            return
        spent = time.monotonic() - started
        count = sum(bool(each["stacks"]) for each in processes)
        self._journal.write(
            SUBJECT,
            "evidence",
            f"of {asked.service} ({asked.why}): stacks of {count} of {len(processes)} processes, "
            f"in {spent:.1f} s: {self._file(asked.id)}",
        )


def bounded(document: Dict[str, Any]) -> str:
    """Return a document of evidence as JSON of at most LARGEST bytes: if necessary without logs,
    and with only the ends of stacks, where the main thread is."""
    text = json.dumps(document)
    kept = LONGEST
    while len(text) > LARGEST and kept:
        kept //= 2
        processes = [{**each, "stacks": each["stacks"][-kept:]} for each in document["processes"]]
        text = json.dumps({**document, "nccl": "", "logs": {}, "processes": processes})
    return text


def taken(directory: Path, pause: float, wanted: Set[int]) -> List[Dict[str, object]]:
    """Return the stacks and states of the processes `wanted`, and the states of Ray's core and of
    any that are stopped. `pause`: seconds in which CPU use is measured and stacks arrive.

    Only hanging processes get the signal: one whose threads keep running may crash.
    """
    forget(directory)
    pids = process_ids()
    before = {pid: _cpu_spent(pid) for pid in pids}
    asked = {pid for pid in pids if pid in wanted and ask_for(pid)}
    time.sleep(pause)
    found: List[Dict[str, object]] = []
    for pid in pids:
        name, state = process_name(pid), process_state(pid)
        if not state or not (pid in asked or name in _TOLD or state in "TtD"):
            continue
        stacks = written_by(directory, pid)
        found.append({
            "pid": pid,
            "name": name,
            "state": state,
            "cpu": cores_wanted(before[pid], _cpu_spent(pid), pause),
            "call": call_of(stacks),
            "stacks": stacks,
        })  # fmt: skip
    return found[:_MOST_PROCESSES]


def log_ends(directories: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yield the ends of the most recently written logs, by name."""
    logs: List[tuple[float, Path]] = []
    for directory in directories:
        with contextlib.suppress(OSError):
            found = [
                path for path in directory.iterdir() if path.suffix in (".log", ".out", ".err")
            ]
            logs += [(path.stat().st_mtime, path) for path in found if path.is_file()]
    for _, path in sorted(logs, reverse=True)[:_MOST_LOGS]:
        with contextlib.suppress(OSError), path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_END))
            end = file.read(_LOG_END)
            # Of a line that is cut, nobody could tell whether it has a secret or a prompt.
            whole = end if size <= _LOG_END else end.partition(b"\n")[2]
            yield path.name, whole.decode("utf-8", "replace")


def nccl_status() -> str:
    """Return what NCCL's own status service reports about all communicators; "" without one."""
    parts: List[bytes] = []
    with contextlib.suppress(OSError), socket.create_connection(_RAS, 0.5) as asked:
        asked.settimeout(_RAS_TIMEOUT + 1.0)
        asked.sendall(b"CLIENT PROTOCOL 2\n")
        asked.recv(100)
        asked.sendall(f"TIMEOUT {_RAS_TIMEOUT:g}\nVERBOSE STATUS\n".encode())
        while sum(map(len, parts)) < 2**16 and (data := asked.recv(65536)):
            parts.append(data)
    return b"".join(parts).decode("utf-8", "replace")


def _cpu_spent(pid: int) -> Dict[str, int]:
    """Return for how many nanoseconds each thread of a process ran or waited for a core: on a busy
    host, a loop gets little CPU."""
    spent = {}
    for each in Path("/proc", str(pid), "task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            ran, waited = each.read_text("ascii").split()[:2]
            spent[each.parent.name] = int(ran) + int(waited)
    return spent


def cores_wanted(before: Mapping[str, int], now: Mapping[str, int], pause: float) -> float:
    """Return how many cores the present threads wanted during `pause` seconds."""
    return round(sum(spent - before.get(name, 0) for name, spent in now.items()) / pause / 1e9, 2)
