"""vLLM's HTTP interface, as far as the supervisor needs it. Every call has a deadline.

vLLM decides while it loads whether a model generates text (`--runner auto`, files beside the
weights), so the running server is asked, with a completion first; a model that generates gets no
other request. vLLM 0.32 has only the paths that its model serves and answers 404 for others; before
0.12 it had all of them and answered 400; 501 means that another setting enables the task.
"""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple

PROBE_TOKENS = 4

PROBE_TEXT = "Hello"

# The second is the gauge's name in old releases, such as 0.7 and 0.8.
KV_CACHE_USE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")

# HTTP statuses that a server returns for a task that its model does not serve.
NOT_SERVED = frozenset({400, 404, 405, 501})

PROMPT_TOKENS = "vllm:prompt_tokens_total"

# Builds a request without its `model` from (text, maximum number of tokens to generate).
Body = Callable[[str, int], Dict[str, Any]]


class EndpointError(Exception):
    """The endpoint failed a check; the text describes the response."""


class RequestRefused(EndpointError):
    """The server does not serve this kind of request, or not for its model."""


class NothingToAsk(EndpointError):
    """The server works but serves none of the known tasks, so asking again is useless."""


@dataclass(frozen=True)
class Task:
    """A kind of request that a served model may answer."""

    name: str  # Plural noun for its result: `embeddings`
    path: str
    body: Body
    # Returns a summary of an answer's content, or "" if there is nothing to add. If the content is
    # not an answer, raises LookupError, TypeError, AttributeError or ValueError.
    read: Callable[[Any], str]
    # The metric that grows while it works: a pooling model generates no tokens.
    counter: str = PROMPT_TOKENS

    def answer(self, content: Any) -> str:
        """Return `read` of the content. Raises ValueError if it is not a valid answer."""
        try:
            return self.read(content)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"no {self.name} in {str(content)[:200]} ({error!r})") from error


def _completion(text: str, tokens: int) -> Dict[str, Any]:
    return {"prompt": text, "max_tokens": tokens, "temperature": 0}


def _input(text: str, _tokens: int) -> Dict[str, Any]:
    return {"input": text}


def _pair(text: str, _tokens: int) -> Dict[str, Any]:
    return {"query": text, "documents": [text]}


def _read_completion(content: Any) -> str:
    str(content["choices"][0]["text"])  # any text will do: the weights may be random
    return ""


def _read_embedding(content: Any) -> str:
    return _numbers(content["data"][0]["embedding"])


def _read_score(content: Any) -> str:
    score = float(content["results"][0]["relevance_score"])
    return f"{score:.3g} for a text and itself"


def _read_classes(content: Any) -> str:
    probabilities = content["data"][0]["probs"]
    _numbers(probabilities)
    return f"{len(probabilities)} of them"


def _read_pooled(content: Any) -> str:
    """Read one vector for the whole text, or one per token."""
    found = content["data"][0]["data"]
    if isinstance(found[0], list):
        return f"{len(found)} x {_numbers(found[0])}"
    return _numbers(found)


def _numbers(vector: Any) -> str:
    if not vector or not all(isinstance(number, (int, float)) for number in vector):
        raise ValueError("not a vector of numbers")
    return f"{len(vector)} numbers"


COMPLETIONS = Task(
    "completions",
    "/v1/completions",
    _completion,
    _read_completion,
    counter="vllm:generation_tokens_total",
)

# In the order in which they are tried, the most specific first: a model that embeds can score as
# well, and one that scores can classify.
TASKS = (
    COMPLETIONS,
    Task("embeddings", "/v1/embeddings", _input, _read_embedding),
    Task("scores", "/rerank", _pair, _read_score),
    Task("classes", "/classify", _input, _read_classes),
    Task("pooling", "/pooling", _input, _read_pooled),
)


def task_of(name: str) -> Task:
    """Return the task of that name, or completions: supervisors of older versions name none."""
    return next((task for task in TASKS if task.name == name), COMPLETIONS)


@dataclass(frozen=True)
class Metrics:
    """The gauges and counters that distinguish a working engine from a hung one."""

    running: float
    waiting: float
    kv_cache_use: float  # 0 to 1; that of the fullest engine
    tokens: float  # Generated since the start, or read if the model generates none
    # Every value that changes while the engine works: tokens generated and read, KV cache in use.
    signs: Tuple[float, ...] = ()


class LocalApi:
    """Client of the API server of one service on this host."""

    def __init__(self, host: str, port: int, served_name: str, api_key: str) -> None:
        self._host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
        self._port = port
        self._served_name = served_name
        self.task: Optional[Task] = None  # What the model serves, once `prove` has found it
        self.answer = ""  # Summary of the last answer: `1024 numbers`
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def listens(self, timeout: float) -> bool:
        """Return whether the port is open. vLLM opens it only once its engine is up."""
        try:
            with socket.create_connection((self._host, self._port), timeout):
                return True
        except OSError:
            return False

    def check_health(self, timeout: float) -> None:
        """Raise EndpointError unless /health answers 200. It may do so although the engine has
        died."""
        self._request("GET", "/health", None, timeout)

    def check_model(self, timeout: float) -> None:
        """Raise EndpointError unless the served name is in the list of models."""
        listed = _json(self._request("GET", "/v1/models", None, timeout)).get("data", [])
        names = [model.get("id") for model in listed]
        if self._served_name not in names:
            raise EndpointError(f"/v1/models lists {names}, not {self._served_name}")

    def prove(self, timeout: float) -> None:
        """Send one real request; the first call finds out which task the model serves.

        Raises EndpointError, and NothingToAsk if the model serves no known task.
        """
        if self.task:
            self.answer = self._ask(self.task, timeout)
            return
        refusals: List[str] = []
        for task in TASKS:
            try:
                self.answer = self._ask(task, timeout)
            except RequestRefused as error:
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
        """Return the current metrics. Raises EndpointError."""
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
            kind = RequestRefused if response.status in NOT_SERVED else EndpointError
            raise kind(f"{method} {path}: HTTP {response.status} {_excerpt(content)}")
        return content


def parse_metrics(text: str, counter: str = COMPLETIONS.counter) -> Metrics:
    """Parse metrics in Prometheus text, summed over several engines.

    `counter` names the metric that grows while the model works.
    """

    def series(name: str) -> List[float]:
        lines = (line.rpartition(" ") for line in text.splitlines())
        return [float(value) for metric, _, value in lines if metric.partition("{")[0] == name]

    tokens, read = sum(series(counter)), sum(series(PROMPT_TOKENS))
    kv_cache_use = [use for name in KV_CACHE_USE for use in series(name)]
    return Metrics(
        running=sum(series("vllm:num_requests_running")),
        waiting=sum(series("vllm:num_requests_waiting")),
        kv_cache_use=max(kv_cache_use, default=0.0),
        tokens=tokens,
        signs=(tokens, read, *kv_cache_use),
    )


def _json(content: bytes) -> Dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError as error:
        raise EndpointError(f"the answer is not JSON: {_excerpt(content)}") from error
    return value if isinstance(value, dict) else {}


def _excerpt(content: bytes) -> str:
    return content.decode("utf-8", "replace").strip()[:200]
