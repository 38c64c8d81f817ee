"""When the status line of an answer leaves vLLM's API server."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

import pytest

from clusterctl.node.first_token import MIDDLEWARE, BeginsWithFirstToken

START = {"type": "http.response.start", "status": 200, "headers": []}
FAILED = b'data: {"error": {"message": "EngineCore died", "code": 500}}\n\n'
MISTAKE = b'data: {"error": {"message": "too long", "code": 400}}\n\n'


def body(content: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": more}


def sent(*messages: dict[str, Any], dies: bool = False) -> list[Any]:
    """What leaves an app that sends these messages: statuses and bodies."""
    found: list[Any] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)
        if dies:
            raise RuntimeError

    async def send(message: Any) -> None:
        found.append(message.get("status") or message["body"])

    try:
        asyncio.run(BeginsWithFirstToken(app)({}, None, send))
    except RuntimeError:
        found.append("died")
    return found


def test_a_stream_begins_with_its_first_token() -> None:
    assert sent(START) == []
    assert sent(START, body(b"")) == []
    assert sent(START, body(b""), body(b"data: a"), body(b"", more=False)) == [200, b"data: a", b""]


def test_an_answer_without_a_body_is_sent() -> None:
    assert sent(START, body(b"", more=False)) == [200, b""]


def test_what_dies_before_its_first_token_has_sent_nothing() -> None:
    assert sent(START, dies=True) == ["died"]


def test_a_stream_that_begins_with_an_error_of_the_server_has_its_status() -> None:
    assert sent(START, body(FAILED)) == [500, FAILED]
    assert sent(START, body(b"data: a"), body(FAILED)) == [200, b"data: a", FAILED]


@pytest.mark.parametrize("first", [MISTAKE, b'data: {"error": "?"}\n\n', b'data: {"error"', b"{}"])
def test_other_answers_keep_their_status(first: bytes) -> None:
    assert sent(START, body(first)) == [200, first]


def test_vllm_finds_it_by_its_name() -> None:
    module, _, name = MIDDLEWARE.rpartition(".")
    assert getattr(importlib.import_module(module), name) is BeginsWithFirstToken
