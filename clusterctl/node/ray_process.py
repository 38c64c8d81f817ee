"""Keeps Ray running on this node: `ray start --block` with all its vital parts, known to the GCS.

Neither a running `ray start` nor a running raylet is sufficient. When one of its processes ends by
SIGTERM or with status 0, `ray start --block` takes that for a `ray stop` and continues without it
(Ray 2.60). A raylet that was frozen for a while keeps running, but the GCS counts it as dead.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Dict, FrozenSet, List, Mapping, Optional, Tuple

from clusterctl.node.children import Child, session_members
from clusterctl.node.documents import NodeDocument
from clusterctl.node.files import Journal, NodePaths
from clusterctl.node.gcs_store import GcsStore
from clusterctl.node.secret_files import marks, why_no_ray
from clusterctl.node.timing import Backoff, Timing
from clusterctl.node.vllm_plugins import plugin_env

# `ray start` prints this once its processes run and the node has joined.
STARTED_MARK = "Ray runtime started"

CONNECT_TIMEOUT = 2.0  # Seconds for a connection to the head's GCS

# Name of each part, and how a word of its command line ends (agents rename themselves). A node
# needs all of these, but not Ray's monitor, log monitor or dashboard.
GCS = "gcs_server"
VITAL = {
    GCS: ("/gcs_server",),
    "raylet": ("/raylet",),
    "dashboard agent": ("ray::DashboardAgent", "dashboard/agent.py"),
    "runtime_env agent": ("ray::RuntimeEnvAgent", "runtime_env/agent/main.py"),
}

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# Failures for which tables may be the reason. A raylet may fail to start on a busy machine.
_BY_THE_GCS = re.compile(r"start GCS|gcs_server|did not start within")
_TELLING = re.compile(r"PANIC|[Ee]rror")


class RayProcess:
    """`ray start` on this node. `state` is waiting | starting | up | down | backing-off."""

    def __init__(
        self,
        document: NodeDocument,
        paths: NodePaths,
        timing: Timing,
        journal: Journal,
        extra_argv: List[str],
        extra_env: Mapping[str, str],
        store: GcsStore,
        was_up: float = 0.0,
    ) -> None:
        """`extra_argv` and `extra_env`: options and variables that only the node knows, for `ray
        start` and so for all workers. `store`: of the head's GCS. `was_up`: Unix seconds at which
        Ray last ran in an earlier container, unless it was stopped."""
        self._document = document
        self._paths = paths
        self._timing = timing
        self._journal = journal
        self._extra = extra_argv
        self._extra_env = extra_env
        self._store = store
        self._tables: Dict[str, str] = {}  # Variables of a GCS that keeps its tables on disk
        self._gcs: Optional[Child] = None  # The one that was started again, alone
        self._hung_at: Optional[float] = None  # When the GCS was ended because it was silent
        self._backoff = Backoff(timing.ray_backoff_first, timing.ray_backoff_max)
        self._child: Optional[Child] = None
        self._parts = RayParts(0, timing.parts_every)
        self._next_start = time.monotonic() + self._still_counted(time.time() - was_up)
        self._marked = False  # Whether this `ray start` printed STARTED_MARK
        self._probe = self._new_probe()
        self.state = "starting"
        self.since = time.time()
        self.restarts = 0
        self.detail = ""

    @property
    def keeps_tables(self) -> bool:
        return bool(self._tables)

    def _new_probe(self) -> Optional[HeadProbe]:
        if self._document.role == "head":
            return None
        return HeadProbe(self._document.head_ip, self._document.gcs_port, self._timing.head_poll)

    def tick(self, now: float, fault: str = "", silent: str = "") -> None:
        """Start, check or end Ray as needed, without blocking. `now`: monotonic seconds. `fault`:
        why Ray must be restarted although it runs, or ""; `silent`: how long its GCS has been."""
        child = self._child
        if not silent:
            self._hung_at = None
        if child is None:
            if now >= self._next_start:
                self._start(now)
        elif self._has_ended(child):
            child.kill_all()  # processes that it left may hold its output open
            child.drain()
            # `ray start` prints some messages twice, the second time with `{}` in place of names.
            lines = [_COLOURS.sub("", line).strip() for line in child.tail() if line.strip(" -")]
            telling = [line for line in lines if _TELLING.search(line) and "{}" not in line]
            last = (telling or lines or ["it wrote nothing"])[-1][:300]
            self._fail(now, f"ended with status {child.exit_status()}: {last}")
        elif gone := self._parts.gone(now):
            if not (gone.startswith(f"{GCS} (") and "," not in gone and self._revive_gcs(now)):
                self._fail(now, f"its {gone} ended")
        elif self.state == "up" and fault:
            self._fail(now, fault)
        elif self.state == "up" and silent:
            self._end_hung_gcs(now, silent)
        elif self._marked and self.state != "up":
            self._parts.look()
            self._turn("up", f"pid {child.pid}")
        elif self.state == "starting" and now - child.started > self._timing.ray_start:
            self._fail(now, f"it did not start within {self._timing.ray_start:g} s")
        elif self.state == "up" and now - child.started > self._timing.ray_steady:
            self._backoff.succeeded()
            self._store.started()

    def follow(self, document: NodeDocument) -> None:
        """Apply a changed document, and restart Ray if Ray's part of it changed."""
        old, self._document = self._document, document
        if old.of_ray != document.of_ray:
            self._drop("node.json was changed")
            if self._probe:
                self._probe.stop()
            self._probe = self._new_probe()

    def stop(self) -> None:
        """End Ray: SIGTERM, then SIGKILL after at most `ray_stop` seconds. Blocks until then."""
        if self._probe:
            self._probe.stop()
        if self._child is None:
            return
        self._child.terminate()
        deadline = time.monotonic() + self._timing.ray_stop
        while self._child.exit_status() is None and time.monotonic() < deadline:
            time.sleep(self._timing.tick)
        self._kill(self._child)
        self._turn("down", "stopped")

    def _start(self, now: float) -> None:
        if self._probe and self._probe.answer != "open":
            where = f"{self._document.head_ip}:{self._document.gcs_port}"
            self._turn("waiting", f"for the head's GCS at {where} ({self._probe.answer})")
            return
        refusal = why_no_ray(self._document.env, self._paths)
        if refusal:
            self._turn("waiting", f"for its token: {refusal}")
            return
        self._marked = False
        has_client = importlib.util.find_spec("grpc") is not None
        argv = [*supported_argv(self._document.ray_argv, has_client=has_client), *self._extra]
        token = marks(self._paths)[0].get(self._paths.ray_token.name, "")
        self._tables = self._store.env(token) if self._document.role == "head" else {}
        if self._tables:
            # It would end the raylet with the GCS, which can come back alone.
            argv.remove("--block")
        env = {**os.environ, **self._document.env}
        env = {**env, **plugin_env(env), **self._extra_env, **self._tables}
        try:
            self._child = Child(argv, env, self._paths.log("ray"), self._read)
        except OSError as error:
            self._fail(now, f"{argv[0]} cannot be started: {error}")
            return
        self._parts = RayParts(self._child.pid, self._timing.parts_every)
        self._turn("starting", f"pid {self._child.pid}")

    def _read(self, line: str) -> None:
        if STARTED_MARK in line:
            self._marked = True

    def _has_ended(self, child: Child) -> bool:
        """Whether `ray start` ended although it should have stayed, or did not start Ray."""
        status = child.exit_status()
        if status == 0 and self._tables:
            child.drain()
            return not self._marked
        return status is not None

    def _revive_gcs(self, now: float) -> bool:
        """Start only the GCS, with its tables: raylets and what runs on them do not end with it.
        Return whether that is possible: not without tables, nor if it was just tried."""
        last, found = self._gcs, self._parts.gcs
        steady = last is None or now - last.started > self._timing.gcs_steady
        if not (self._tables and found and steady):
            return False
        argv, env = found
        try:
            self._gcs = Child(argv, env, self._paths.log("ray"), lambda _: None)
        except OSError:
            return False
        self._parts.add(self._gcs.pid)
        self._journal.write("ray", "gcs", f"ended, and is started again alone: pid {self._gcs.pid}")
        return True

    def _end_hung_gcs(self, now: float, why: str) -> None:
        """End the GCS alone, which may hang while it opens its tables; `tick` then finds that it is
        gone. All of Ray is restarted where that is impossible, or did not help."""
        if self._hung_at is None and self._tables and self._parts.gcs:
            self._hung_at = now
            self._journal.write("ray", "gcs", f"{why}, and is ended")
            self._parts.kill(GCS)
        elif self._hung_at is None or now - self._hung_at > self._timing.gcs_silence:
            self._fail(now, why)

    def _kill(self, child: Child) -> None:
        # Ray's agents survive a raylet that was killed, and keep its ports.
        child.kill_all()
        if self._gcs:
            self._gcs.kill_all()
        self._child = self._gcs = None

    def _fail(self, now: float, why: str) -> None:
        """End Ray; `tick` starts it again after a delay."""
        if self._tables and _BY_THE_GCS.search(why):
            self._store.failed()
        delay = max(self._backoff.failed(), self._still_counted() if self._marked else 0.0)
        self._end("backing-off", f"{why}; retrying in {delay:g} s", now + delay)

    def _drop(self, why: str) -> None:
        """End Ray; `tick` starts it again as soon as it may: the cause is outside this Ray."""
        self._end("down", why, time.monotonic() + self._still_counted())

    def _still_counted(self, ended: float = 0.0) -> float:
        """Return how many seconds the GCS may still count a worker's raylet that was killed as
        alive. `ended`: seconds since then. A head's tables are read by a new GCS."""
        if self._document.role == "head":
            return 0.0
        return min(max(0.0, self._timing.raylet_counted - ended), self._timing.raylet_counted)

    def _end(self, state: str, detail: str, next_start: float) -> None:
        if self._child:
            self._kill(self._child)
            self.restarts += 1
        self._next_start = next_start
        self._turn(state, detail)

    def _turn(self, state: str, detail: str) -> None:
        if state != self.state or detail != self.detail:
            self._journal.write("ray", state, detail)
        if state != self.state:
            self.since = time.time()
        self.state, self.detail = state, detail


def supported_argv(argv: List[str], *, has_client: bool) -> List[str]:
    """Drop the option for the Ray client's port from `argv` if the client is missing (it needs
    grpc, which a plain `pip install ray` does not install): `ray start` would refuse the option."""
    if has_client:
        return argv
    return [word for word in argv if not word.startswith("--ray-client-server-port")]


class RayParts:
    """The vital processes of one `ray start`, found by its session ID. `every`: seconds between
    checks."""

    def __init__(self, session: int, every: float) -> None:
        self._sessions = [session]
        self._every = every
        self._next = 0.0
        self._seen: Dict[str, int] = {}  # The last pid of each part that ever ran
        self._missing: FrozenSet[str] = frozenset()
        self.gcs: Optional[Tuple[List[str], Dict[str, str]]] = None  # Its argv and environment

    def add(self, session: int) -> None:
        """Also look for parts in this session, that of a restarted one."""
        self._sessions = [self._sessions[0], session]
        self._missing = frozenset()

    def kill(self, name: str) -> None:
        """Kill a part that runs."""
        self.look()
        if name not in self._missing:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._seen[name], signal.SIGKILL)

    def gone(self, now: float) -> str:
        """Return the parts that used to run and were missing in two checks in a row, or ""."""
        if now < self._next:
            return ""
        self._next = now + self._every
        before = self._missing
        self.look()
        lost = sorted(before & self._missing)
        return ", ".join(f"{name} (pid {self._seen[name]})" for name in lost)

    def look(self) -> None:
        """Record which parts are running, and which of the earlier ones are missing."""
        found: Dict[str, int] = {}
        for pid in [pid for session in self._sessions for pid in session_members(session)]:
            try:
                words = Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace").split("\0")
            except OSError:
                continue  # it has ended in the meantime
            for name, ends in VITAL.items():
                if any(word.rstrip().endswith(ends) for word in words[:4]):
                    found.setdefault(name, pid)
            if found.get(GCS) == pid != self._seen.get(GCS):
                with contextlib.suppress(OSError):
                    lines = Path(f"/proc/{pid}/environ").read_text("utf-8", "replace").split("\0")
                    self.gcs = words[:-1], dict(line.split("=", 1) for line in lines if line)
        self._missing = frozenset(self._seen.keys() - found.keys())
        self._seen.update(found)


class HeadProbe:
    """A worker's check that its head's GCS listens, every `every` seconds in a thread: it may take
    seconds. `answer` is the last outcome: unknown | open | refused | silent."""

    def __init__(self, ip: str, port: int, every: float) -> None:
        self._address = (ip, port)
        self._every = every
        self._ended = threading.Event()
        self.answer = "unknown"
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while True:
            try:
                socket.create_connection(self._address, CONNECT_TIMEOUT).close()
                self.answer = "open"
            except ConnectionRefusedError:
                self.answer = "refused"
            except OSError:
                self.answer = "silent"
            if self._ended.wait(self._every):
                return
