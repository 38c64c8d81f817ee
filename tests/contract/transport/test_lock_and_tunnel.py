"""The lock and the tunnel over every transport: real flocks, real sockets, real SIGKILLs."""

from __future__ import annotations

import fcntl
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterctl.errors import ConnectionFailed, LockHeld, StepFailed, UsageError
from clusterctl.transport.base import Transport
from clusterctl.transport.lock import SILENCE, ClusterLock
from clusterctl.transport.tcp import Tunnel
from tests.contract.transport.sshd import eventually

HOLDING = """\
import json, sys, time
from clusterctl.inventory.model import Host
from clusterctl.transport.connect import Connections
from clusterctl.transport.lock import ClusterLock

with Connections() as connections:
    head = connections.to(Host(**json.loads(sys.argv[1])))
    with ClusterLock(head, "demo", "clusterctl bootstrap", directory=sys.argv[2]):
        print("held", flush=True)
        time.sleep(60)
"""


def is_free(transport: Transport, folder: Path) -> bool:
    try:
        with ClusterLock(transport, "demo", "test", directory=str(folder)):
            return True
    except LockHeld:
        return False


def test_two_operators_at_once(transport: Transport, tmp_path: Path) -> None:
    with ClusterLock(transport, "demo", "clusterctl serve m", directory=str(tmp_path)) as lock:
        lock.ensure_held()
        with pytest.raises(LockHeld) as caught:
            ClusterLock(transport, "demo", "other", directory=str(tmp_path)).__enter__()

    assert caught.value.host == transport.host.name
    assert "cluster demo is locked by" in caught.value.summary
    assert f"@{socket.gethostname()} (pid {os.getpid()}, since 20" in caught.value.summary
    assert caught.value.summary.endswith("): clusterctl serve m")
    assert is_free(transport, tmp_path), "and it is free again"


def test_other_clusters_are_not_locked(transport: Transport, tmp_path: Path) -> None:
    with (
        ClusterLock(transport, "one", "c", directory=str(tmp_path)),
        ClusterLock(transport, "two", "c", directory=str(tmp_path)) as second,
    ):
        second.ensure_held()


def test_the_lock_dies_with_a_killed_holder(transport: Transport, tmp_path: Path) -> None:
    data = json.dumps({"name": transport.host.name, **transport.host.model_dump(mode="json")})
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDING, data, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "HOME": str(tmp_path)},  # Without a user's SSH configuration
    )
    assert holder.stdout is not None
    with holder.stdout:
        assert holder.stdout.readline() == b"held\n"
        assert not is_free(transport, tmp_path)
        holder.send_signal(signal.SIGKILL)
        holder.wait()

        assert eventually(lambda: is_free(transport, tmp_path), within=SILENCE / 2)


def test_a_holder_that_falls_silent_loses_the_lock(transport: Transport, tmp_path: Path) -> None:
    """What a cut network looks like from the head: nothing arrives any more."""
    lock = ClusterLock(transport, "demo", "c", directory=str(tmp_path), beat=3600, silence=1)
    with lock:
        assert eventually(lambda: is_free(transport, tmp_path))
        with pytest.raises(ConnectionFailed, match="the lock of cluster demo was lost"):
            lock.ensure_held()


def test_signs_of_life_keep_the_lock(transport: Transport, tmp_path: Path) -> None:
    with ClusterLock(transport, "demo", "c", directory=str(tmp_path), beat=0.1, silence=4) as lock:
        # longer than the silence that would end it
        assert not eventually(lambda: is_free(transport, tmp_path), within=6)
        lock.ensure_held()


def test_files_are_replaced_while_the_lock_is_held_and_they_are_what_was_seen(
    transport: Transport, tmp_path: Path
) -> None:
    file = tmp_path / "services.json"
    with ClusterLock(transport, "demo", "c", directory=str(tmp_path)) as lock:
        lock.replace(str(file), b"one", before=None)
        assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"one", 0o600)
        lock.replace(str(file), b"two", before=b"one")
        for before in (None, b"one"):
            with pytest.raises(StepFailed, match="changed by someone else meanwhile"):
                lock.replace(str(file), b"three", before=before)
        with pytest.raises(StepFailed, match="changed by someone else meanwhile"):
            lock.replace(str(file), None, before=b"one")
        assert file.read_bytes() == b"two"
        lock.replace(str(file), None, before=b"two")
        with pytest.raises(StepFailed, match="cannot be written"):
            lock.replace(str(tmp_path / "absent" / "file"), b"one", before=None)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"demo.lock"}


def test_nothing_is_written_once_the_lock_is_another_s(
    transport: Transport, tmp_path: Path
) -> None:
    """Also before this side has heard that it lost it, as after a time in which it was frozen."""
    file = tmp_path / "services.json"
    frozen = ClusterLock(transport, "demo", "c", directory=str(tmp_path), beat=3600, silence=1)
    with frozen:
        assert eventually(lambda: is_free(transport, tmp_path))
        with pytest.raises(ConnectionFailed, match="the lock of cluster demo was lost"):
            frozen.replace(str(file), b"one", before=None)
        with (
            ClusterLock(transport, "demo", "another run", directory=str(tmp_path)),
            pytest.raises(ConnectionFailed, match=r"another run holds it now"),
        ):
            frozen.replace(str(file), b"one", before=None)
    assert not file.exists()


def test_a_name_that_is_not_there_yet(transport: Transport, tmp_path: Path) -> None:
    file = tmp_path / "demo.lock"
    file.touch()
    with file.open() as taken:
        fcntl.flock(taken, fcntl.LOCK_EX)
        with pytest.raises(LockHeld, match="a run that has not recorded its name yet"):
            ClusterLock(transport, "demo", "c", directory=str(tmp_path)).__enter__()


def test_a_folder_that_cannot_be_made(transport: Transport, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StepFailed, match="could not be opened") as caught:
        ClusterLock(transport, "demo", "c", directory=str(tmp_path / "file" / "x")).__enter__()

    assert f"{tmp_path}/file" in (caught.value.detail or "")


def test_no_other_user_can_block_the_lock(transport: Transport, tmp_path: Path) -> None:
    """flock needs a descriptor, also one for reading only; and the directory is root's."""
    folder = tmp_path / "run"
    with ClusterLock(transport, "demo", "c", directory=str(folder)):
        assert (folder / "demo.lock").stat().st_mode & 0o777 == 0o600
        assert folder.stat().st_mode & 0o777 == 0o755
        assert folder.stat().st_uid == os.getuid()


class Pages(http.server.BaseHTTPRequestHandler):
    """Answers every GET with 1 MiB that ends with the path."""

    def do_GET(self) -> None:
        body = b"x" * (1 << 20) + self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Tests are quiet."""


@pytest.fixture
def web() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def fetch(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        data: bytes = answer.read()
        return data


def test_a_tunnel_carries_many_connections(transport: Transport, web: int) -> None:
    paths = [f"/{n}" for n in range(8)]
    with Tunnel(transport, "127.0.0.1", web) as tunnel, ThreadPoolExecutor(8) as crew:
        bodies = list(crew.map(lambda path: fetch(tunnel.port, path), paths))

    assert [body[1 << 20 :].decode() for body in bodies] == paths


def test_a_tunnel_listens_on_this_machine_alone(transport: Transport, web: int) -> None:
    with Tunnel(transport, "127.0.0.1", web) as tunnel:
        listing = ["ss", "-Hltn", f"sport = :{tunnel.port}"]
        listening = subprocess.run(listing, capture_output=True, text=True, check=True).stdout

        assert listening.split()[3] == f"127.0.0.1:{tunnel.port}"


def test_a_closed_tunnel_takes_and_keeps_no_connection(transport: Transport, web: int) -> None:
    with Tunnel(transport, "127.0.0.1", web) as tunnel:
        port = tunnel.port
        idle = socket.create_connection(("127.0.0.1", port))
        assert fetch(port, "/")

    with idle:
        idle.settimeout(30)
        assert idle.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_tunnel_to_nothing_says_why(transport: Transport, closed_port: int) -> None:
    with Tunnel(transport, "127.0.0.1", closed_port) as tunnel:
        with socket.create_connection(("127.0.0.1", tunnel.port)) as connection:
            connection.settimeout(30)
            assert connection.recv(1) == b""
        assert eventually(lambda: tunnel.last_error is not None)

    assert str(closed_port) in str(tunnel.last_error)


def test_a_taken_port_is_named(transport: Transport, web: int) -> None:
    with pytest.raises(UsageError, match=f"port {web} of this machine is in use"):
        Tunnel(transport, "127.0.0.1", 1, local_port=web).__enter__()


def test_a_tunnel_leaves_commands_their_turns(transport: Transport, web: int) -> None:
    """A browser opens six connections and more: they are not counted as commands."""
    with Tunnel(transport, "127.0.0.1", web) as tunnel:
        idle = [socket.create_connection(("127.0.0.1", tunnel.port)) for _ in range(12)]
        assert transport.run(["echo", "still"]).stdout == "still\n"
        for connection in idle:
            connection.close()
