"""Keeps Ray running on this node: `ray start --block` with all its vital parts, known to the GCS.

Neither the end of `ray start` nor a raylet that runs tells enough. `ray start` outlives its parts
(see `ray_parts`), and a raylet that was frozen for a while runs on and is dead to the cluster.
"""

from __future__ import annotations

import importlib.util
import os
import re
import time
from typing import List, Optional

from clusterctl.node.backoff import Backoff
from clusterctl.node.children import Child
from clusterctl.node.documents import NodeDocument
from clusterctl.node.head_probe import HeadProbe
from clusterctl.node.journal import Journal
from clusterctl.node.paths import NodePaths
from clusterctl.node.ray_parts import RayParts
from clusterctl.node.timing import Timing

# `ray start` prints it once its processes run and the node has joined.
STARTED_MARK = "Ray runtime started"

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TELLING = re.compile(r"PANIC|[Ee]rror")


class RayProcess:
    """`state` is waiting | starting | up | down | backing-off, as in NodeState.ray."""

    def __init__(
        self,
        document: NodeDocument,
        paths: NodePaths,
        timing: Timing,
        journal: Journal,
        extra_argv: List[str],
    ) -> None:
        """`extra_argv` is added to the document's `ray start`: what only the node knows."""
        self._document = document
        self._paths = paths
        self._timing = timing
        self._journal = journal
        self._extra = extra_argv
        self._backoff = Backoff(timing.ray_backoff_first, timing.ray_backoff_max)
        self._child: Optional[Child] = None
        self._parts = RayParts(0, timing.parts_every)
        self._next_start = 0.0
        self._marked = False
        self._losses = 0
        self._probe = self._new_probe()
        self.state = "starting"
        self.since = time.time()
        self.restarts = 0
        self.detail = ""

    def _new_probe(self) -> Optional[HeadProbe]:
        if self._document.role == "head":
            return None
        return HeadProbe(self._document.head_ip, self._document.gcs_port, self._timing.head_poll)

    def tick(self, now: float, fault: str = "") -> None:
        """Look, and do what is due. `now` is monotonic; never blocks. `fault`: what the GCS has
        against this node, or nothing."""
        child = self._child
        if child is None:
            self._maybe_start(now)
        elif child.exit_status() is not None:
            child.kill_all()  # it may hold the output open
            child.settle()
            self._fail(now, child, f"ended with status {child.exit_status()}: {_last_words(child)}")
        elif self._head_is_gone():
            self._drop("the head's GCS is gone")
        elif gone := self._parts.gone(now):
            self._fail(now, child, f"its {gone} ended")
        elif self.state == "up" and fault:
            self._fail(now, child, fault)
        elif self._marked and self.state != "up":
            self._parts.look()
            self._turn("up", f"pid {child.pid}")
        elif self.state == "up" and now - child.started > self._timing.ray_steady:
            self._backoff.succeeded()

    def follow(self, document: NodeDocument) -> None:
        """Take a new document; Ray is restarted when its part of it changed."""
        old, self._document = self._document, document
        if (old.ray_argv, old.env, old.head_ip) != (
            document.ray_argv, document.env, document.head_ip,
        ):  # fmt: skip
            self._drop("node.json was changed")
            if self._probe:
                self._probe.stop()
            self._probe = self._new_probe()

    def stop(self) -> None:
        """End Ray: SIGTERM, then SIGKILL to what is left. Blocks for `ray_stop` at most."""
        if self._probe:
            self._probe.stop()
        if self._child is None:
            return
        self._child.terminate()
        deadline = time.monotonic() + self._timing.ray_stop
        while self._child.exit_status() is None and time.monotonic() < deadline:
            time.sleep(self._timing.tick)
        self._child.kill_all()
        self._child = None
        self._turn("down", "stopped")

    def _maybe_start(self, now: float) -> None:
        if now < self._next_start:
            return
        if self._probe and self._probe.answer != "open":
            where = f"{self._document.head_ip}:{self._document.gcs_port}"
            self._turn("waiting", f"for the head's GCS at {where} ({self._probe.answer})")
            return
        self._start(now)

    def _start(self, now: float) -> None:
        self._marked = False
        self._losses = self._probe.losses if self._probe else 0
        has_client = importlib.util.find_spec("grpc") is not None
        argv = [*understood(self._document.ray_argv, has_client=has_client), *self._extra]
        env = {**os.environ, **self._document.env}
        try:
            self._child = Child(argv, env, self._paths.log("ray"), self._read)
        except OSError as error:
            self._back_off(now, f"{argv[0]} cannot be started: {error}")
            return
        self._parts = RayParts(self._child.pid, self._timing.parts_every)
        self._turn("starting", f"pid {self._child.pid}")

    def _read(self, line: str) -> None:
        if STARTED_MARK in line:
            self._marked = True

    def _head_is_gone(self) -> bool:
        return bool(self._probe and self._probe.losses != self._losses)

    def _fail(self, now: float, child: Child, why: str) -> None:
        # Ray's agents outlive a raylet that was killed, and hold its ports.
        child.kill_all()
        self.restarts += 1
        self._child = None
        self._back_off(now, why)

    def _back_off(self, now: float, why: str) -> None:
        delay = self._backoff.failed()
        self._next_start = now + delay
        self._turn("backing-off", f"{why}; again in {delay:g} s")

    def _drop(self, why: str) -> None:
        """End Ray at once, without a wait before the next start: it is not Ray that failed."""
        if self._child:
            self._child.kill_all()
            self.restarts += 1
        self._child = None
        self._next_start = 0.0
        self._turn("down", why)

    def _turn(self, state: str, detail: str) -> None:
        if state != self.state or detail != self.detail:
            self._journal.write("ray", state, detail)
        if state != self.state:
            self.since = time.time()
        self.state, self.detail = state, detail


def understood(argv: List[str], *, has_client: bool) -> List[str]:
    """`ray start` refuses the port of its client where that part (it needs grpc) is missing,
    as it is after a plain `pip install ray`."""
    if has_client:
        return argv
    return [word for word in argv if not word.startswith("--ray-client-server-port")]


def _last_words(child: Child) -> str:
    """The last line that says something. `ray start` prints some of its messages twice, the
    second time with `{}` where the names belong."""
    lines = [_COLOURS.sub("", line).strip() for line in child.tail() if line.strip(" -")]
    telling = [line for line in lines if _TELLING.search(line) and "{}" not in line]
    return (telling or lines or ["it wrote nothing"])[-1][:300]
