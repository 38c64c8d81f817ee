"""A replica that may sleep: vLLM's sleep mode, with requests that wait until it is awake.

vLLM's routes for it (/sleep, /wake_up) exist only in its development mode, which opens others, such
as /collective_rpc, to everybody who reaches the port. So there are none: a middleware of the API
server calls the engine itself, ordered by the supervisor over a pair of sockets, one of which
vLLM's process inherits. Over it go lines: SLEEP, WAKE, HOLD or REFUSE, and back a `SleepReport` as
JSON.

The API server stays up while the engine sleeps. So a request is held where its replica is, after
the gateway has checked its key and limits, and nobody has to look whether one waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import inspect
import json
import math
import os
import re
import socket
import threading
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Awaitable, Callable, Dict, List, Optional

from clusterctl.node.documents import SleepState, from_json
from clusterctl.node.gateway_config import ASLEEP, CANARY

DESCRIPTOR = "CLUSTERCTL_SLEEP"
MIDDLEWARE = f"{__name__}.HoldsWhileAsleep"

# Requests of a replica that wait for it to wake; more are refused. As many as vLLM's largest batch
# by default: a standby may get all those that its primary was working on.
MOST_WAITING = 1024
LONGEST_WAIT = 120.0  # Seconds that one waits
_LONGEST_LINE = 4096

SLEEP, WAKE = "sleep", "wake"
HOLD = "hold"  # New requests, while the others go on: it is to sleep soon. WAKE lets them in
REFUSE = "refuse"  # The requests that wait: it is not going to wake

# vLLM's CuMemAllocator says it for each rank.
_PARKED = re.compile(r"of which ([\d.]+) GiB is backed up in CPU")

Message = Dict[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[Dict[str, Any], Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class SleepReport:
    """What the API server says of itself, each time that it changes."""

    orders: int = 0  # That it has dealt with
    asleep: bool = False
    held: bool = False  # It is awake, and lets no request in
    busy: bool = False  # It answers requests
    times: int = 0  # That it became busy, so far
    waiting: int = 0  # Requests that wait until it is awake
    refused: int = 0  # Of those beyond the limits, so far
    error: str = ""  # Why the engine could not follow an order


class HoldsWhileAsleep:
    """The middleware, ASGI's. One engine and one API server: its counts are of this process."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._report = SleepReport()
        self._running = 0
        self._proving = 0  # Canaries that run
        self._awake = asyncio.Event()
        self._awake.set()
        self._refusals = 0
        self._wake_seconds = 1.0
        self._writer: Optional[asyncio.StreamWriter] = None
        self._task: Optional[asyncio.Task[None]] = None

    async def __call__(self, scope: Dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" and self._task is None:
            engine = scope["app"].state.engine_client
            self._task = asyncio.ensure_future(self._follow(engine))
        asks = scope["type"] == "websocket" or scope.get("method") == "POST"
        canary = asks and _header(scope, CANARY) == "1"
        if not asks:
            await self._app(scope, receive, send)
        elif canary and self._awake.is_set():
            await self._prove(scope, receive, send)
        elif canary:
            await _answer(scope, send, 503, {"asleep": True}, {ASLEEP: "1"})
        elif await self._let_in(scope, send):
            await self._count(scope, receive, send)

    async def _prove(self, scope: Dict[str, Any], receive: Receive, send: Send) -> None:
        self._proving += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._proving -= 1

    async def _count(self, scope: Dict[str, Any], receive: Receive, send: Send) -> None:
        self._running += 1
        try:
            if self._running == 1:
                self._tell(busy=True, times=self._report.times + 1)
            await self._app(scope, receive, send)
        finally:
            self._running -= 1
            if self._running == 0:
                self._tell(busy=False)

    async def _let_in(self, scope: Dict[str, Any], send: Send) -> bool:
        """Return whether the engine is awake, or has become so; otherwise answer the request."""
        until, refusals = time.monotonic() + LONGEST_WAIT, self._refusals
        while not self._awake.is_set():
            key = os.environ.get("VLLM_API_KEY", "")
            given = _header(scope, "Authorization").encode()
            if key and not hmac.compare_digest(given, f"Bearer {key}".encode()):
                await _answer(scope, send, 401, _error("no valid API key", 401))
                return False
            left = until - time.monotonic()
            turned_away = self._refusals > refusals
            if turned_away or left <= 0 or self._report.waiting >= MOST_WAITING:
                self._tell(refused=self._report.refused + 1)
                many = f"{MOST_WAITING} requests" if left > 0 else f"{LONGEST_WAIT:.0f} s"
                asleep = "asleep" if self._report.asleep else "about to sleep"
                words = f"the model is {asleep}, and {many} is the most that may wait for it"
                if turned_away:
                    words = "it was sent to the standby of an engine that works, which stays asleep"
                again = {"Retry-After": str(math.ceil(self._wake_seconds))}
                await _answer(scope, send, 503, _error(words, 503), again)
                return False
            self._tell(waiting=self._report.waiting + 1)
            try:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._awake.wait(), left)
            finally:
                self._tell(waiting=self._report.waiting - 1)
        return True

    async def _follow(self, engine: Any) -> None:
        """Follow the supervisor's orders until it closes the connection."""
        ours = socket.socket(fileno=int(os.environ[DESCRIPTOR]))
        reader, self._writer = await asyncio.open_connection(sock=ours)
        while line := await reader.readline():
            try:
                word = line.decode().strip()
                if word == SLEEP:
                    await self._sleep(engine)
                elif word == WAKE:
                    await self._wake(engine)
                elif word == HOLD:
                    self._hold()
                else:
                    self._refuse()
            # Whatever vLLM raises: the supervisor then starts it again.
            except Exception as error:
                words = f"vLLM could not {line.decode().strip()}: {str(error) or repr(error)}"
                self._tell(error=words[:500])
            self._tell(orders=self._report.orders + 1)

    async def _sleep(self, engine: Any) -> None:
        let_in = self._awake.is_set() and self._report.waiting > 0  # In a moment
        if self._running or self._proving or let_in or self._report.asleep:
            return
        self._awake.clear()  # Before the first `await`: none comes in between
        # A request that vLLM works on in the background is waited for, where it can do that.
        modes = "mode" in inspect.signature(engine.sleep).parameters
        await engine.sleep(**{"level": 1, **({"mode": "wait"} if modes else {})})
        self._tell(asleep=True, held=False)

    async def _wake(self, engine: Any) -> None:
        if self._report.asleep:
            began = time.monotonic()
            await engine.wake_up()
            self._wake_seconds = time.monotonic() - began
        self._tell(asleep=False, held=False)
        self._awake.set()

    def _hold(self) -> None:
        self._awake.clear()
        self._tell(held=not self._report.asleep)

    def _refuse(self) -> None:
        self._refusals += 1
        if not self._awake.is_set():  # All that wait look again
            self._awake.set()
            self._awake.clear()

    def _tell(self, **changes: Any) -> None:
        self._report = replace(self._report, **changes)
        if self._writer:
            self._writer.write(json.dumps(asdict(self._report)).encode() + b"\n")


def _header(scope: Dict[str, Any], name: str) -> str:
    wanted = name.lower().encode()
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == wanted), "")


def _error(message: str, code: int) -> Dict[str, Any]:
    """Return an error as OpenAI's clients read it."""
    kind = "ServiceUnavailableError" if code == 503 else "AuthenticationError"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


async def _answer(
    scope: Dict[str, Any],
    send: Send,
    status: int,
    content: Dict[str, Any],
    more: Optional[Dict[str, str]] = None,
) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1013})  # Try again later
        return
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers += [(name.lower().encode(), value.encode()) for name, value in (more or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class SleepControl:
    """The supervisor's side: orders sleep and waking, and tracks the outcome."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self.report = SleepReport()
        self.used = time.monotonic()  # When it last had a request, or became awake
        self._times = 0  # That it had become busy, at the last turn
        self._orders: List[str] = []
        self._ordered = 0.0
        self._parked = 0.0
        self.state = SleepState()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def descriptor(self) -> int:
        """The other end, for the process that is started."""
        return self._theirs.fileno()

    def started(self) -> None:
        """Close the other end, once the process has it."""
        self._theirs.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)  # Ends the thread, too
        self._ours.close()

    @property
    def pending(self) -> str:
        """The order that it has not dealt with yet."""
        return self._orders[-1] if len(self._orders) > self.report.orders else ""

    def order(self, word: str, now: float) -> None:
        self._orders.append(word)
        self._ordered = now
        if word == SLEEP:
            self._parked = 0.0
        with contextlib.suppress(OSError):  # Its process has ended, which is noticed elsewhere
            self._ours.sendall(f"{word}\n".encode())

    def failure(self, now: float, limit: float) -> str:
        """Return why an order was not followed, or which one was not within `limit` seconds."""
        if self.pending and now - self._ordered > limit:
            return f"vLLM did not {self.pending} within {limit:g} s"
        return self.report.error

    def heard(self, line: str) -> None:
        """Read from a line of its log how much a rank has put into the host's memory."""
        if parked := _PARKED.search(line):
            self._parked += float(parked[1])

    def take_turn(self, now: float) -> str:
        """Take over what was reported; return what happened, in a sentence for the journal."""
        report, before = self.report, self.state
        if report.busy or report.waiting or report.times != self._times:
            self.used, self._times = now, report.times
        event, state = "", replace(before, waiting=report.waiting, refused=report.refused)
        if report.asleep and before.asleep:
            state = replace(state, host_gib=self._parked)  # Ray passes lines on later
        elif report.asleep:
            state = replace(state, asleep=True, since=time.time())
            event = f"after {now - self._ordered:.1f} s"
        elif before.asleep and not self.pending:
            self.used, seconds = now, round(now - self._ordered, 2)
            state = replace(state, asleep=False, since=time.time(), wakes_in=seconds)
            event = f"after {seconds:.1f} s"
        self.state = state
        return event

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._ours.makefile("rb") as lines:
            while line := lines.readline(_LONGEST_LINE):
                self.report = from_json(SleepReport, line.decode("utf-8", "replace"))
