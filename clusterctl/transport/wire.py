"""A started process as bytes: what SSH channels and local pipes have in common."""

from __future__ import annotations

from typing import Protocol


class Wire(Protocol):
    """Raw ends of one process. Readers get b"" at the end, OSError means that it is gone."""

    def send(self, data: bytes) -> None:
        """Write all of `data`; raises OSError when nobody reads any more."""

    def recv(self, size: int) -> bytes:
        """stdout; raises TimeoutError after the time set by `settimeout`."""

    def recv_stderr(self, size: int) -> bytes:
        """stderr; waits without limit, until the end or `close`."""

    def settimeout(self, seconds: float | None) -> None: ...

    def close_stdin(self) -> None: ...

    def wait(self, seconds: float | None) -> int | None:
        """The exit status; None when the time is over, -1 when the connection was lost."""

    def close(self) -> None: ...
