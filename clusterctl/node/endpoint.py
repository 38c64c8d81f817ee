"""vLLM's HTTP interface, as far as the supervisor needs it. Every call has a deadline."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any, Dict, Optional

PROBE_TOKENS = 4


class EndpointError(Exception):
    """The endpoint did not do what a working one does; the text says what it did."""


@dataclass(frozen=True)
class Metrics:
    """The gauges and the counter that tell a busy engine from a wedged one."""

    running: float
    waiting: float
    kv_cache_use: float
    """0 to 1; the fullest engine's."""
    tokens: float
    """Generated since the start."""


class Endpoint:
    """The API server of one service, on this host."""

    def __init__(self, host: str, port: int, served_name: str, api_key: str) -> None:
        self._host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
        self._port = port
        self._served_name = served_name
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

    def complete(self, timeout: float) -> None:
        """One real completion. Raises EndpointError."""
        body = {
            "model": self._served_name,
            "prompt": "Hello",
            "max_tokens": PROBE_TOKENS,
            "temperature": 0,
        }
        answer = _json(self._request("POST", "/v1/completions", body, timeout))
        if not answer.get("choices"):
            raise EndpointError(f"a completion without choices: {str(answer)[:200]}")

    def metrics(self, timeout: float) -> Metrics:
        """Raises EndpointError."""
        return parse_metrics(self._request("GET", "/metrics", None, timeout).decode())

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
            raise EndpointError(f"{method} {path}: HTTP {response.status} {_words(content)}")
        return content


def parse_metrics(text: str) -> Metrics:
    """Metrics from Prometheus text; the series of several engines are summed."""
    return Metrics(
        running=sum(_series(text, "vllm:num_requests_running")),
        waiting=sum(_series(text, "vllm:num_requests_waiting")),
        kv_cache_use=max(_series(text, "vllm:kv_cache_usage_perc"), default=0.0),
        tokens=sum(_series(text, "vllm:generation_tokens_total")),
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
