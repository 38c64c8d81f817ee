"""A service that sleeps: the stand-in keeps vLLM's contract; the supervisor orders what is due."""

from __future__ import annotations

import asyncio
import http.client
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node import sleeping
from clusterctl.node.attempt import Attempt
from clusterctl.node.documents import Member, MembersDocument, SleepState, to_json
from clusterctl.node.gateway_config import CANARY
from tests.fakes.node_bench import QUICK, Bench, await_value
from tests.fakes.ports import port_of, reserved
from tests.fakes.sleep_contract import (
    Sleeper,
    keeps_what_it_says,
    loses_none_in_cycles,
    sleeps_with_no_request_running,
)

KEY = "secret-key"


@pytest.fixture
def sleeper(bench: Bench) -> Iterator[Sleeper]:
    document = bench.declare(idle=3600.0)
    attempt = Attempt(document, {}, bench.paths, QUICK, frozenset(), KEY)
    assert attempt.sleeping
    await_value(lambda: attempt.reading.ready, "it to answer")
    yield Sleeper(attempt.sleeping, "127.0.0.1", document.port, "tiny", KEY)
    attempt.kill()


def test_the_stand_in_keeps_the_contract(sleeper: Sleeper, bench: Bench) -> None:
    keeps_what_it_says(sleeper)
    loses_none_in_cycles(sleeper, 10)
    bench.behaviour("vllm", {"seconds": 1.0})
    sleeps_with_no_request_running(sleeper, 8)


def ask(bench: Bench) -> Future[tuple[int, Any]]:
    port = bench.ports["chat"].getsockname()[1]
    client = Sleeper(sleeping.SleepControl(), "127.0.0.1", port, "tiny", KEY)
    return ThreadPoolExecutor(1).submit(client.ask)


def await_sleep(bench: Bench, *, asleep: bool, **expected: Any) -> SleepState:
    def look() -> SleepState | None:
        state = bench.service()
        found = state.sleep if state and state.state == "ready" else None
        matches = found and found.asleep == asleep and expected.items() <= vars(found).items()
        return found if matches else None

    return await_value(look, f"asleep {asleep}, {expected}; it is {bench.service()}")


def test_a_service_sleeps_after_its_idle_time_and_the_next_request_wakes_it(bench: Bench) -> None:
    bench.declare(idle=0.5)
    bench.start()
    slept = await_sleep(bench, asleep=True, host_gib=1.5)
    assert slept.wakes_in == 0  # Not known

    status, content = ask(bench).result(30)
    assert (status, content["choices"][0]["text"]) == (200, "x")

    await_value(
        lambda: bench.events("chat")[-3:] == ["asleep", "awake", "asleep"], "it to sleep again"
    )
    again = await_value(
        lambda: (bench.service() or pytest.fail("gone")).sleep.wakes_in, "its seconds"
    )
    assert 0 < again < 5
    assert len(bench.starts("vllm")) == 1


def test_one_that_is_to_stay_awake_wakes_and_sleeps_no_more(bench: Bench) -> None:
    bench.declare(idle=0.3, least=0)
    bench.start()
    await_sleep(bench, asleep=True)
    bench.declare(idle=0.3, least=1)
    await_sleep(bench, asleep=False)
    until = time.monotonic() + 1.0
    await_value(lambda: time.monotonic() > until, "three times its idle time")
    assert bench.events("chat")[-1] == "awake"
    assert len(bench.starts("vllm")) == 1


def test_one_that_never_idles_gets_no_middleware_for_it(bench: Bench) -> None:
    bench.declare()
    bench.start()
    bench.await_service("ready")
    (start,) = bench.starts("vllm")
    assert sleeping.MIDDLEWARE not in start["argv"]
    assert sleeping.DESCRIPTOR not in start["env"]


def test_one_that_works_for_nobody_who_waits_does_not_sleep(bench: Bench) -> None:
    bench.behaviour("vllm", {"running": 1})
    bench.declare(idle=0.3, stall_timeout=600)
    bench.start()
    bench.await_service("ready", running=1.0)
    until = time.monotonic() + 1.0
    await_value(lambda: time.monotonic() > until, "three times its idle time")
    assert "asleep" not in bench.events("chat")
    bench.behaviour("vllm", {})
    await_sleep(bench, asleep=True)


@pytest.mark.parametrize("kind", ["error", "hang"])
def test_a_wake_that_fails_is_a_start_with_its_cause(tmp_path: Path, kind: str) -> None:
    bench = Bench(tmp_path, timing=replace(QUICK, sleep_limit=1.0))
    try:
        bench.behaviour("vllm", {"wake_up": kind})
        bench.declare(idle=0.3)
        bench.start()
        await_sleep(bench, asleep=True)
        lost = ask(bench)
        assert isinstance(lost.exception(30), OSError | http.client.HTTPException)
        bench.await_service("ready", restarts=1)
        failed = bench.service()
        why = {
            "error": "could not wake: CUDA error: out of memory",
            "hang": "did not wake within 1 s",
        }
        assert failed is not None
        assert why[kind] in failed.last_failure
    finally:
        bench.stop()


def test_an_engine_that_ends_in_its_sleep_is_started_again(bench: Bench) -> None:
    bench.declare(idle=0.3)
    bench.start()
    await_sleep(bench, asleep=True)
    (bench.root / "vllm.die").touch()
    bench.await_service("ready", restarts=1)
    await_sleep(bench, asleep=True)


@pytest.mark.usefixtures("haproxy")
def test_behind_the_gateway_a_request_wakes_it_and_a_stranger_does_not() -> None:
    # Short enough for the path of HAProxy's socket
    with tempfile.TemporaryDirectory(prefix="sleep") as root, reserved() as door:
        bench = Bench(Path(root))
        document = bench.declare(idle=0.5)
        member = Member(1, "a", "127.0.0.1", document.port)
        listed = MembersDocument("chat", ["tiny"], port_of(door), [member], listen="127.0.0.1")
        bench.paths.members.mkdir()
        (bench.paths.members / "chat.json").write_text(to_json(listed))
        bench.start()
        try:
            await_sleep(bench, asleep=True)
            control = sleeping.SleepControl()
            client = Sleeper(control, "127.0.0.1", port_of(door), "tiny", KEY)
            await_value(lambda: (bench.state() or pytest.fail("gone")).gateway.members, "members")
            assert client.ask(key="another")[0] == 401
            assert bench.events("chat")[-1] == "asleep"

            status, content = client.canary()  # As a client may try
            assert (status, content["choices"][0]["text"]) == (200, "x")
            await_value(lambda: bench.events("chat")[-1] == "asleep", "it to sleep again")
            asked = [client.ask_later() for _ in range(30)]
            assert [each.result(60) for each in asked] == ["x"] * 30
        finally:
            bench.stop()


class Engine:
    """One that only counts."""

    async def sleep(self, level: int) -> None:
        assert level == 1

    async def wake_up(self) -> None:
        pass


class Door:
    """The middleware by itself, and what it answers."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.served = 0
        self.held = sleeping.HoldsWhileAsleep(self.app)

    async def app(self, _scope: Any, _receive: Any, _send: Any) -> None:
        self.served += 1

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    async def ask(self, kind: str = "http", **headers: str) -> None:
        named = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": kind, "method": "POST", "headers": named}
        await self.held(scope, None, self.send)  # type: ignore[arg-type]


def test_requests_beyond_the_bound_are_told_when_to_come_again() -> None:
    async def run() -> Door:
        door = Door()
        await door.held._sleep(Engine())
        waiting = [asyncio.ensure_future(door.ask()) for _ in range(sleeping.MOST_WAITING)]
        await asyncio.sleep(0)
        await door.ask()
        assert door.served == 0
        await door.held._wake(Engine())
        await asyncio.gather(*waiting)
        return door

    door = asyncio.run(run())
    assert door.served == sleeping.MOST_WAITING
    start, body = door.sent
    assert (start["status"], dict(start["headers"])[b"retry-after"]) == (503, b"1")
    assert b"1024 requests is the most" in body["body"]


def test_a_websocket_that_nobody_wakes_is_closed() -> None:
    async def run() -> Door:
        door = Door()
        await door.held._sleep(Engine())
        await door.ask("websocket", **{CANARY: "1"})
        return door

    assert asyncio.run(run()).sent == [{"type": "websocket.close", "code": 1013}]
