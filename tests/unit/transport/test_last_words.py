"""What a command writes at its very end arrives, however the reader's looks fall."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clusterctl.inventory.model import Host
from clusterctl.transport.base import Channel
from clusterctl.transport.command import Wire
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.shell import ShellTransport

ANSWER = b"the answer"


class LateWire:
    """Its stream is silent for as long as a read waits. The command ends right then: its answer is
    there when the next read begins."""

    def __init__(self, mark: bytes) -> None:
        self._stdout: list[bytes | None] = [mark, None, ANSWER, b""]
        self._stderr = [mark]

    def send(self, data: bytes) -> None:
        pass

    def recv(self, size: int) -> bytes:
        chunk = self._stdout.pop(0)
        if chunk is None:
            raise TimeoutError
        return chunk

    def recv_stderr(self, size: int) -> bytes:
        return self._stderr.pop() if self._stderr else b""

    def settimeout(self, seconds: float | None) -> None:
        pass

    def close_stdin(self) -> None:
        pass

    def wait(self, seconds: float | None) -> int | None:
        return 0

    def close(self) -> None:
        pass


class LateTransport(ShellTransport):
    @property
    def user(self) -> str:
        return "root"

    def _start(self, argv: Sequence[str]) -> tuple[Wire, Callable[[], None]]:
        mark = "".join(argv[4:6]) + "\n"
        return LateWire(mark.encode()), lambda: None

    @property
    def breaks(self) -> int:
        return 0

    def connect(self) -> None:
        return None

    def another(self) -> LateTransport:
        raise NotImplementedError

    def open_tcp(self, address: str, port: int) -> Channel:
        raise NotImplementedError

    def close(self) -> None:
        pass


def test_an_answer_that_comes_while_the_end_is_looked_for_is_not_lost() -> None:
    transport = LateTransport(Host(name="gpu1", address="192.0.2.1"), Credentials())
    assert transport.run(["cat"]).stdout == ANSWER.decode()
