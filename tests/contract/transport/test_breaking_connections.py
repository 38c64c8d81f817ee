"""Connections that break again and again: a run goes on from what is there."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterctl.engine.events import Event, StepProgress
from clusterctl.engine.executor import execute
from clusterctl.engine.plan import Stage
from clusterctl.engine.step import Change, HostView
from clusterctl.errors import ConnectionFailed, LockHeld
from clusterctl.transport.base import Transport
from clusterctl.transport.dialer import Dialer
from clusterctl.transport.lock import ClusterLock
from clusterctl.transport.ssh import SshTransport
from tests.contract.transport.conftest import StartSshd
from tests.contract.transport.sshd import Sshd, descendants, eventually
from tests.fakes.host_facts import host_facts

pytestmark = pytest.mark.sshd

PARTS = 5


@dataclass(frozen=True)
class InParts:
    """Step: a file with PARTS lines, of which each run of the command adds one and then stays."""

    file: Path
    title = "parts"

    def check(self, view: HostView) -> Change | None:
        done = len((view.transport.read_file(str(self.file)) or b"").split())
        return Change(f"add {PARTS - done} parts") if done < PARTS else None

    def apply(self, view: HostView, change: Change) -> None:
        script = f'echo part >>"$1"; [ "$(wc -l <"$1")" -ge {PARTS} ] || sleep 60'
        view.transport.run(["sh", "-c", script, "part", str(self.file)])


def cut(sshd: Sshd) -> None:
    """End all of its connections, with what runs on them."""
    for pid in descendants(sshd.process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def cut_at_each_part(sshd: Sshd, file: Path) -> Iterator[None]:
    over = threading.Event()

    def watch() -> None:
        seen = 0
        while not over.wait(0.05):
            parts = len(file.read_text().split()) if file.exists() else 0
            if seen < parts < PARTS:
                cut(sshd)
            seen = parts

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def run(transport: Transport, file: Path, lock: ClusterLock, events: list[Event]) -> int:
    view = HostView(transport.host, host_facts(), transport)
    stage = Stage("Parts", (transport.host.name,), (InParts(file),))
    views = {transport.host.name: view}
    return execute([stage], views, events.append, before_change=lock.ensure_held).changed


def test_a_step_goes_on_from_what_is_there_and_says_so(
    start_sshd: StartSshd, dialer: Dialer, tmp_path: Path
) -> None:
    """The lock's connection breaks each time, too, and nobody else takes it meanwhile."""
    sshd, file, events = start_sshd(), tmp_path / "parts", list[Event]()
    transport = SshTransport(sshd.host(), dialer)
    with (
        cut_at_each_part(sshd, file),
        ClusterLock(transport, "demo", "c", directory=str(tmp_path)) as lock,
    ):
        assert run(transport, file, lock, events) == 1
        assert not lock_is_free(sshd, dialer, tmp_path)
    assert file.read_text().split() == ["part"] * PARTS
    said = [event.text for event in events if isinstance(event, StepProgress)]
    assert said == [
        f"the connection broke, time {n}: continuing from the current state"
        for n in range(1, PARTS)
    ]
    assert lock_is_free(sshd, dialer, tmp_path)
    transport.close()


def test_a_lock_that_another_had_meanwhile_is_not_taken_again(
    start_sshd: StartSshd, dialer: Dialer, tmp_path: Path
) -> None:
    sshd = start_sshd()
    transport = SshTransport(sshd.host(), dialer)
    with ClusterLock(transport, "demo", "c", directory=str(tmp_path)) as lock:
        cut(sshd)
        assert eventually(lambda: lock_is_free(sshd, dialer, tmp_path))
        with pytest.raises(ConnectionFailed, match="the lock of cluster demo was lost"):
            lock.ensure_held()
    transport.close()


def test_an_error_of_a_host_that_stays_connected_is_not_tried_again(
    start_sshd: StartSshd, dialer: Dialer, tmp_path: Path
) -> None:
    sshd, tries = start_sshd(), list[str]()
    transport = SshTransport(sshd.host(), dialer)

    class Refused(InParts):
        def apply(self, view: HostView, change: Change) -> None:
            tries.append(view.host.name)
            raise ConnectionFailed("not for the network")

    view = HostView(transport.host, host_facts(), transport)
    stage = Stage("Parts", (transport.host.name,), (Refused(tmp_path / "parts"),))
    with pytest.raises(ConnectionFailed):
        execute([stage], {transport.host.name: view}, lambda _: None)
    assert tries == [transport.host.name]
    transport.close()


def lock_is_free(sshd: Sshd, dialer: Dialer, directory: Path) -> bool:
    """Seen, and taken for a moment, by another operator."""
    other = SshTransport(sshd.host(), dialer)
    try:
        with ClusterLock(other, "demo", "other", directory=str(directory)):
            return True
    except LockHeld:
        return False
    finally:
        other.close()
