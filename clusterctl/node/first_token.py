"""Makes vLLM's answers start with the first token: a middleware of its API server.

vLLM sends the status line of a stream as soon as it has the request. From then on the gateway
cannot send the request to another replica, though nothing was generated. With this, a replica that
dies before the first token has sent nothing, or a status of 500 or more, and both are retried.

The interface is ASGI's, in which the status line and each part of the body are messages.
"""

from __future__ import annotations

import json
from typing import Any, Awaitable, Callable, Dict, Optional

Message = Dict[str, Any]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Dict[str, Any], Any, Send], Awaitable[None]]

MIDDLEWARE = f"{__name__}.BeginsWithFirstToken"

_EVENT = b"data: "


class BeginsWithFirstToken:
    """Holds the status line back until there is a body, or the answer ends without one."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Dict[str, Any], receive: Any, send: Send) -> None:
        start: Optional[Message] = None

        async def held(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            if start is not None:
                body, more = message.get("body", b""), message.get("more_body", False)
                if more and not body:
                    return
                begins = {**start, "status": failure(body) or start["status"]}
                start = None
                await send(begins)
            await send(message)

        await self._app(scope, receive, held)


def failure(body: bytes) -> int:
    """Return the HTTP status of a stream whose first event is an error of the server; 0 for any
    other, such as a request's own mistake."""
    if not body.startswith(_EVENT + b'{"error"'):
        return 0
    try:
        code = json.loads(body[len(_EVENT) :].split(b"\n", 1)[0])["error"]["code"]
        return int(code) if int(code) >= 500 else 0
    except (ValueError, LookupError, TypeError):
        return 0
