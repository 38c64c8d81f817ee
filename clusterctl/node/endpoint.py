"""vLLM's HTTP interface, as far as the supervisor needs it. Every call has a deadline."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from clusterctl.node.tasks import COMPLETIONS, NOT_SERVED, PROMPT_TOKENS, TASKS, Task

PROBE_TOKENS = 4

PROBE_TEXT = "Hello"

# The second is the gauge's name in old releases, 0.7 and 0.8 among them.
KV_CACHE_USE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")


class EndpointError(Exception):
    """The endpoint did not do what a working one does; the text says what it did."""


class Refused(EndpointError):
    """The server has no such request, or not for its model."""


class NothingToAsk(EndpointError):
    """The server works, and serves none of the tasks that are known: asking again is no use."""


@dataclass(frozen=True)
class Metrics:
    """The gauges and the counter that tell a busy engine from a wedged one."""

    running: float
    waiting: float
    kv_cache_use: float  # 0 to 1; the fullest engine's
    tokens: float  # Generated since the start; read, where the model generates none
    # Whatever moves while the engine works: tokens made and read, KV cache in use.
    signs: Tuple[float, ...] = ()


class Endpoint:
    """The API server of one service, on this host."""

    def __init__(self, host: str, port: int, served_name: str, api_key: str) -> None:
        self._host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
        self._port = port
        self._served_name = served_name
        self.task: Optional[Task] = None
        """What the model serves, once `prove` found it."""
        self.answer = ""
        """What the last proof was, in words: `1024 numbers`."""
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def listens(self, timeout: float) -> bool:
        """vLLM listens only once its engine is up: a refused connection means 'still loading'."""
        try:
            with socket.create_connection((self._host, self._port), timeout):
                return True
        except OSError:
            return False

    def check_health(self, timeout: float) -> None:
        """Raises EndpointError; 200 alone proves little: the engine may hang behind it."""
        self._request("GET", "/health", None, timeout)

    def check_model(self, timeout: float) -> None:
        """The served name is in the list of models. Raises EndpointError."""
        listed = _json(self._request("GET", "/v1/models", None, timeout)).get("data", [])
        names = [model.get("id") for model in listed]
        if self._served_name not in names:
            raise EndpointError(f"/v1/models lists {names}, not {self._served_name}")

    def prove(self, timeout: float) -> None:
        """One real answer; the first finds out what the model serves. Raises EndpointError, and
        NothingToAsk where that is nothing known."""
        if self.task:
            self.answer = self._ask(self.task, timeout)
            return
        refusals: List[str] = []
        for task in TASKS:
            try:
                self.answer = self._ask(task, timeout)
            except Refused as error:
                refusals.append(str(error))
            else:
                self.task = task
                return
        raise NothingToAsk("; ".join(refusals))

    def _ask(self, task: Task, timeout: float) -> str:
        body = {"model": self._served_name, **task.body(PROBE_TEXT, PROBE_TOKENS)}
        answer = _json(self._request("POST", task.path, body, timeout))
        try:
            return task.answer(answer)
        except ValueError as error:
            raise EndpointError(f"POST {task.path}: {error}") from error

    def metrics(self, timeout: float) -> Metrics:
        """Raises EndpointError."""
        text = self._request("GET", "/metrics", None, timeout).decode()
        return parse_metrics(text, (self.task or COMPLETIONS).counter)

    def _request(
        self, method: str, path: str, body: Optional[Dict[str, Any]], timeout: float
    ) -> bytes:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        try:
            data = json.dumps(body) if body is not None else None
            connection.request(method, path, data, self._headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            words = str(error) or type(error).__name__
            raise EndpointError(f"{method} {path}: {words}") from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            kind = Refused if response.status in NOT_SERVED else EndpointError
            raise kind(f"{method} {path}: HTTP {response.status} {_words(content)}")
        return content


def parse_metrics(text: str, counter: str = COMPLETIONS.counter) -> Metrics:
    """Metrics from Prometheus text; the series of several engines are summed. `counter`: of what
    moves while the model works."""
    tokens, read = sum(_series(text, counter)), sum(_series(text, PROMPT_TOKENS))
    kv_cache_use = [use for name in KV_CACHE_USE for use in _series(text, name)]
    return Metrics(
        running=sum(_series(text, "vllm:num_requests_running")),
        waiting=sum(_series(text, "vllm:num_requests_waiting")),
        kv_cache_use=max(kv_cache_use, default=0.0),
        tokens=tokens,
        signs=(tokens, read, *kv_cache_use),
    )


def _series(text: str, name: str) -> list[float]:
    values = []
    for line in text.splitlines():
        metric, _, value = line.rpartition(" ")
        if metric.partition("{")[0] == name:
            values.append(float(value))
    return values


def _json(content: bytes) -> Dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError as error:
        raise EndpointError(f"an answer that is not JSON: {_words(content)}") from error
    return value if isinstance(value, dict) else {}


def _words(content: bytes) -> str:
    return content.decode("utf-8", "replace").strip()[:200]
