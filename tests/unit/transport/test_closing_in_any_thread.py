"""A channel that is closed by the garbage collector, which runs in any thread."""

from __future__ import annotations

import threading

from clusterctl.transport.command import Framed, RunningCommand
from clusterctl.transport.local import LocalWire


class _ClosedByItsReader(LocalWire):
    """Closes its channel from the thread that reads stderr."""

    channel: RunningCommand | None = None

    def recv_stderr(self, size: int) -> bytes:
        data = super().recv_stderr(size)
        if self.channel and b"went" in data:
            with self.channel._lock:  # as where the collector interrupts the reader
                self.channel.close()
        return data


def test_a_channel_is_closed_by_the_thread_that_reads_its_stderr() -> None:
    failures: list[threading.ExceptHookArgs] = []
    before, threading.excepthook = threading.excepthook, failures.append
    try:
        frame = Framed(("sh", "-c", "read go; echo went >&2; sleep 60"))
        wire = _ClosedByItsReader(frame.plain())
        channel = wire.channel = RunningCommand(wire, frame, host="here")
        channel.send(b"go\n")
        channel._reader.join(10)
        assert not channel._reader.is_alive()
        # By SIGHUP; by SIGKILL where that is ignored, as under nohup.
        assert channel.poll(10) in (128 + 1, 128 + 9)
    finally:
        threading.excepthook = before
    assert failures == []
