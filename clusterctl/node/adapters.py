"""LoRA adapters of a running vLLM: loaded while it serves, tested with one request, and offered
from then on.

vLLM's paths for that load any directory of the container, so a middleware of the API server
requires a token for them, which the supervisor creates for each start and keeps to itself.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import time
from pathlib import Path
from typing import Any, Awaitable, Callable, Dict, List, Mapping, Sequence

from clusterctl.node.endpoint import EndpointError, LocalApi
from clusterctl.node.timing import Timing

MIDDLEWARE = f"{__name__}.AdaptersWithToken"

_TOKEN = "CLUSTERCTL_ADAPTERS_TOKEN"  # noqa: S105 - the variable's name
_HEADER = "x-clusterctl-adapters"
_LOAD, _UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"

App = Callable[[Dict[str, Any], Any, Any], Awaitable[None]]


class AdaptersWithToken:
    """Answers 404 to requests for vLLM's adapter paths without the token."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._token = os.environ.get(_TOKEN, "").encode()

    async def __call__(self, scope: Dict[str, Any], receive: Any, send: Any) -> None:
        # /adapters is another name of theirs, for SageMaker.
        if scope["type"] == "http" and scope["path"].startswith((_LOAD, _UNLOAD, "/adapters")):
            shown = dict(scope["headers"]).get(_HEADER.encode(), b"")
            if not self._token or not hmac.compare_digest(shown, self._token):
                await send({"type": "http.response.start", "status": 404, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await self._app(scope, receive, send)


def takes_adapters(argv: Sequence[str]) -> bool:
    return "--enable-lora" in argv


class Adapters:
    """The adapters of one API server. `follow` blocks while one is loaded."""

    def __init__(self, api: LocalApi, timing: Timing) -> None:
        self._api = api
        self._timing = timing
        self._token = secrets.token_hex(32)
        self._loaded: Dict[str, str] = {}  # Paths by name
        self._failed: Dict[str, float] = {}  # By name: when it is tried again
        self.wanted: Mapping[str, str] = {}  # Replaced as a whole, by another thread
        self._state: Dict[str, str] = {}

    @property
    def argv(self) -> List[str]:
        return ["--middleware", MIDDLEWARE]

    @property
    def env(self) -> Dict[str, str]:
        return {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}

    @property
    def secrets(self) -> Dict[str, str]:
        """Variables like those of `env`, which only the process itself may see."""
        return {_TOKEN: self._token}

    def follow(self) -> Dict[str, str]:
        """Load and unload what differs from `wanted`. Return, by name, why an adapter is not
        offered; "" if it is. Failed ones are retried later."""
        wanted, before = dict(self.wanted), self._state
        self._state = {}
        for name, path in list(self._loaded.items()):
            if wanted.get(name) != path:
                self._unload(name)
        for name, path in wanted.items():
            if name in self._loaded:
                self._state[name] = ""
            elif time.monotonic() >= self._failed.get(name, 0.0):
                self._state[name] = self._load(name, path)
            else:
                self._state[name] = before.get(name, "")
        return self._state

    def _load(self, name: str, path: str) -> str:
        """Load an adapter and send it one request. Return why it cannot be offered, or ""."""
        if not Path(path, "adapter_config.json").is_file():
            self._failed[name] = time.monotonic() + self._timing.adapter_retry
            return f"{path} is not on this host"
        try:
            self._send(_LOAD, {"lora_name": name, "lora_path": path})
            self._loaded[name] = path
            self._api.ask_as(name, self._timing.answer_timeout)
        except EndpointError as error:
            if name in self._loaded:
                self._unload(name)
            self._failed[name] = time.monotonic() + self._timing.adapter_retry
            return str(error)
        self._failed.pop(name, None)
        return ""

    def _unload(self, name: str) -> None:
        try:
            self._send(_UNLOAD, {"lora_name": name})
        except EndpointError:
            return  # It is offered until the next round
        del self._loaded[name]

    def _send(self, path: str, body: Dict[str, str]) -> None:
        data = ("application/json", json.dumps(body).encode())
        self._api.request("POST", path, data, self._timing.answer_timeout, {_HEADER: self._token})
