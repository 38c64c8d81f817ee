"""The gate's process on a node, started by Ray: it listens, connects, and runs the ranks.

Connections go to ephemeral ports, as Gloo, NCCL and vLLM's queues make them, and do not bind a
source address: as with those programs, routing chooses the outgoing interface, and it is reported.
A listener sends its host's name, so that an address that leads to the caller itself or to another
host is not taken for the peer. Then 64 KiB follow: where an MTU drops large packets, small ones
arrive and these do not.

Ranks are separate processes with the environment of Ray's worker on this node, which is the one
that vLLM's workers get. This process only waits for them, so it answers even if a rank hangs.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import socket
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence

from clusterctl.node.fabric_documents import Crossing, FabricAddress, RankReport, SeenNode
from clusterctl.node.fabric_nics import Interface, interfaces, places, telling
from clusterctl.node.ray_watch import own_argv

# Seconds for connecting and for each answer: TCP repeats a lost SYN after 1 s and after 3 s.
WITHIN = 3.0

_BULK = 2**16
_GOT = b"!"

_TAIL = 30
_LOG_LINES = 200
# Substrings of lines of NCCL's log to keep: interfaces and transports found and chosen, warnings.
_TELLING = ("NET/", "NET plugin", "Using network", " via ", "NVL[", "WARN", "NCCL version")

_GPU_MASK = "CUDA_VISIBLE_DEVICES"

# GRAPH is where NCCL logs whether GPUs of a host are connected by NVLink.
_NCCL_LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH"}


@dataclass
class _RankProcess:
    """A rank's process, and the events that it has reported so far."""

    report: RankReport
    process: subprocess.Popen[str]
    log: Optional[Path] = None
    tail: Deque[str] = field(default_factory=lambda: collections.deque(maxlen=_TAIL))
    events: List[Dict[str, Any]] = field(default_factory=list)
    readers: List[threading.Thread] = field(default_factory=list)

    def follow(self) -> None:
        """Read the process's stdout and stderr, in two threads that end with it."""

        def read(stream: Any, take: Callable[[str], None]) -> None:
            with stream:
                for line in stream:
                    take(line.rstrip())

        def event(line: str) -> None:
            with contextlib.suppress(ValueError):
                self.events.append(json.loads(line))

        def words(line: str) -> None:
            self.tail.append(line[:500])

        for stream, take in ((self.process.stdout, event), (self.process.stderr, words)):
            reader = threading.Thread(target=read, args=(stream, take), daemon=True)
            reader.start()
            self.readers.append(reader)

    def end(self) -> None:
        """Send SIGKILL: a rank may hang in a library. One that hangs in a driver remains."""
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        with contextlib.suppress(OSError):  # flushing orders that the rank never read
            if self.process.stdin:
                self.process.stdin.close()
        self.drain()

    def drain(self) -> None:
        """Wait until the readers have read what an ended rank left in its pipes."""
        for reader in self.readers:
            reader.join(1)


def _given_environment() -> Dict[str, str]:
    """Return this process's environment, with the container's CUDA_VISIBLE_DEVICES.

    Ray hides GPUs from a process that reserved none, and this one reserves none so that the gate
    also works on a cluster that serves. Ray changes only the variables of the running process:
    /proc still has those that it was started with.
    """
    text = Path("/proc/self/environ").read_text(errors="replace")
    started = dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)
    env = {name: value for name, value in os.environ.items() if name != _GPU_MASK}
    return {**env, _GPU_MASK: started[_GPU_MASK]} if _GPU_MASK in started else env


class Agent:
    """One node's part of the gate. Its methods return within seconds, even if a rank hangs."""

    def __init__(
        self,
        host: str,
        *,
        argv: Optional[Sequence[str]] = None,
        found: Callable[[], List[Interface]] = interfaces,
        env: Optional[Mapping[str, str]] = None,
    ) -> None:
        self._host = host
        self._argv = list(argv) if argv is not None else [*own_argv(), "fabric-rank"]
        self._found = found
        self._env = dict(_given_environment() if env is None else env)
        self._echoes: List[Echo] = []
        self._ranks: Dict[int, _RankProcess] = {}

    def look(self, node_ip: str) -> SeenNode:
        """Report the environment, the interfaces, and the addresses that others must reach."""
        found = self._found()
        return SeenNode(
            host=self._host,
            env=telling(self._env),
            interfaces={one.name: list(one.addresses) for one in found},
            places=places(self._env, node_ip, found),
        )

    def listen(self, wanted: Sequence[FabricAddress]) -> List[Crossing]:
        """Listen on each address, and return the targets for other nodes. A target whose address
        cannot be bound has `error` set."""
        offered = []
        for place in wanted:
            target = Crossing("", self._host, place.purpose, place.nic, place.ip, port=0)
            try:
                echo = Echo(self._host, place.ip)
                self._echoes.append(echo)
                offered.append(replace(target, port=echo.port))
            except OSError as failure:
                error = f"cannot listen there: {failure.strerror or failure}"
                offered.append(replace(target, error=error))
        return offered

    def cross(self, targets: Sequence[Crossing]) -> List[Crossing]:
        """Connect to all targets at once."""
        with ThreadPoolExecutor(max(1, len(targets))) as pool:
            return list(pool.map(cross, [replace(one, source=self._host) for one in targets]))

    def launch(self, devices: Mapping[int, int]) -> None:
        """Start the ranks of this node. `devices` maps each rank to its GPU, or to -1."""
        for rank, device in devices.items():
            self._ranks[rank] = self._start(rank, device)

    def _start(self, rank: int, device: int) -> _RankProcess:
        env, log = dict(self._env), None
        if device >= 0:
            log = Path(tempfile.mkdtemp(prefix="fabric-")) / "nccl.log"
            env.update(_NCCL_LOG, NCCL_DEBUG_FILE=str(log))
        process = subprocess.Popen(
            self._argv,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        started = _RankProcess(RankReport(rank, self._host, device, "started"), process, log)
        started.follow()
        return started

    def order(self, orders: Mapping[int, Mapping[str, Any]]) -> None:
        """Send orders to ranks; a rank that has ended is skipped, and `hear` reports it."""
        for rank, order in orders.items():
            stdin = self._ranks[rank].process.stdin
            with contextlib.suppress(OSError):
                if stdin:
                    stdin.write(json.dumps(order) + "\n")
                    stdin.flush()

    def hear(self) -> Dict[int, List[Dict[str, Any]]]:
        """Return every event that each rank has reported, with a final `ended` event if its process
        has exited."""
        heard = {}
        for rank, one in self._ranks.items():
            status = one.process.poll()
            if status is not None:  # its last event is the reason why it ended
                one.drain()
            gone = [] if status is None else [{"phase": "ended", "status": status}]
            heard[rank] = [*one.events, *gone]
        return heard

    def stop_ranks(self) -> List[RankReport]:
        """End all ranks, and return the last lines of stderr and NCCL's log of each."""
        reports = []
        for one in self._ranks.values():
            one.end()
            reports.append(replace(one.report, tail=list(one.tail), log=_telling_lines(one.log)))
        self._ranks = {}
        return reports

    def close(self) -> None:
        self.stop_ranks()
        for one in self._echoes:
            one.close()
        self._echoes = []


def _telling_lines(log: Optional[Path]) -> List[str]:
    """Return the lines of the log that matter to users, and remove the file."""
    if log is None:
        return []
    lines: List[str] = []
    with contextlib.suppress(OSError):
        text = log.read_text(errors="replace")
        lines = [line[:300] for line in text.splitlines() if any(word in line for word in _TELLING)]
        log.unlink()
        log.parent.rmdir()
    return list(dict.fromkeys(lines))[:_LOG_LINES]


class Echo:
    """A listener on one address and an ephemeral port. It sends its host's name, and confirms
    when all 64 KiB have arrived."""

    def __init__(self, host: str, ip: str) -> None:
        """Raise OSError if the address cannot be bound."""
        self._greeting = host.encode() + b"\n"
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        self._socket = socket.create_server((ip, 0), family=family, backlog=512)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # close() alone does not wake the thread that blocks in accept().
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            peer.settimeout(2 * WITHIN)
            peer.sendall(self._greeting)
            missing = _BULK
            while data := peer.recv(_BULK):
                missing -= len(data)
                if missing <= 0:
                    peer.sendall(_GOT)


def cross(target: Crossing) -> Crossing:
    """Try one connection, and return it with the error (if any) and the source address."""
    left_by, error = "", ""
    try:
        with socket.create_connection((target.ip, target.port), WITHIN) as connection:
            left_by = connection.getsockname()[0]
            error = _talk(connection, target.target)
    except socket.timeout:  # noqa: UP041 - Python 3.9 has it as a class of its own
        error = f"no answer within {WITHIN:g} s"
    except OSError as failure:
        error = failure.strerror or str(failure)
    return replace(target, error=error, left_by=left_by)


def _talk(connection: socket.socket, expected: str) -> str:
    """Read the target's name, send 64 KiB, and wait for its confirmation. Return the error; "" if
    all succeeded. `expected`: the name."""
    connection.settimeout(WITHIN)
    name = b""
    while not name.endswith(b"\n") and len(name) < 256:
        part = connection.recv(256)
        if not part:
            return "the connection was closed without an answer"
        name += part
    text = name.decode(errors="replace").strip()  # of any program, if the address leads elsewhere
    if text != expected:
        return f"{text} answers there"
    try:
        connection.sendall(b"#" * _BULK)
        return "" if connection.recv(1) == _GOT else "64 KiB did not arrive"
    except socket.timeout:  # noqa: UP041 - as above
        return f"it answers, and 64 KiB do not arrive within {WITHIN:g} s"
