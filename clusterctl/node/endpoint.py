"""vLLM's HTTP interface, and the watch over it: whether a service is ready and shows signs of life.

vLLM decides while it loads whether a model generates text (`--runner auto`, files next to the
weights), so the running server is queried: which paths it has (openapi.json), then with a request
of each kind that has its path, a completion first. vLLM 0.32 has only the paths that its model
serves and answers 404 for others; before 0.12 it had all of them and answered 400; 501 means that
another setting enables the task.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import re
import socket
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Tuple

from clusterctl.kinds.kind import GENERATED_TOKENS, PROMPT_TOKENS, ModelKind
from clusterctl.kinds.known import ASKED, KINDS
from clusterctl.node.gateway_config import ASLEEP, CANARY
from clusterctl.node.timing import Timing

PROBE_TOKENS = 4

PROBE_TEXT = "Hello"

# The second is the gauge's name in old releases, such as 0.7 and 0.8.
KV_CACHE_USE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")

FIRST_TOKENS = "vllm:time_to_first_token_seconds_bucket"
_BOUND = re.compile(r'[{,]le="([^"]{1,20})"')  # Of a bucket, in seconds

# Bytes of an answer; metrics of vLLM have some 100 KiB. A gateway asks servers on other hosts, too.
LARGEST_ANSWER = 16 * 2**20

# HTTP statuses that a server returns for a task that its model does not serve.
NOT_SERVED = frozenset({400, 404, 405, 422, 501})


class EndpointError(Exception):
    """The endpoint failed a check; the text describes the response."""


class RequestRefused(EndpointError):
    """The server does not serve this kind of request, or not for its model."""


class Asleep(EndpointError):
    """The engine sleeps, as it may: its API server answers, and the next request wakes it."""


class NothingToAsk(EndpointError):
    """The server works but serves no known kind of model, so retrying is useless."""


@dataclass(frozen=True)
class Metrics:
    """The gauges and counters that distinguish a working engine from a hung one."""

    running: float
    waiting: float
    kv_cache_use: float  # 0 to 1; that of the fullest engine
    tokens: float  # Generated since the start, or read if the model generates none
    # Every value that changes while the engine works: tokens generated and read, KV cache in use.
    signs: Tuple[float, ...] = ()
    # How many first tokens came within so many seconds, since the start
    first_tokens: Dict[float, float] = field(default_factory=dict)


class LocalApi:
    """Client of the API server of one service on this host."""

    def __init__(
        self, host: str, port: int, served_name: str, api_key: str, planned: str = ""
    ) -> None:
        """`planned`: the kind of model according to its config.json, if that shows it."""
        self._host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
        self._port = port
        self._served_name = served_name
        self._planned = planned
        self.kind: Optional[ModelKind] = None  # What the model is, once `send_request` has found it
        self.answer = ""  # Summary of the proof's answer: `1024 numbers`
        self._headers = {CANARY: "1"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def check_port(self, timeout: float) -> None:
        """Raise EndpointError unless the port is open: vLLM opens it once its engine is up."""
        try:
            socket.create_connection((self._host, self._port), timeout).close()
        except OSError as error:
            raise EndpointError("not listening yet") from error

    def check_health(self, timeout: float) -> None:
        """Raise EndpointError unless /health answers 200. It may do so even though the engine has
        died."""
        self.request("GET", "/health", None, timeout)

    def check_model(self, timeout: float) -> None:
        """Raise EndpointError unless the served name is in the list of models."""
        names = self.models(timeout)
        if self._served_name not in names:
            raise EndpointError(f"/v1/models lists {sorted(names)}, not {self._served_name}")

    def models(self, timeout: float) -> Dict[str, str]:
        """Return the directories of the listed models by name, adapters included."""
        listed = _json(self.request("GET", "/v1/models", None, timeout)).get("data", [])
        models = listed if isinstance(listed, list) else []
        return {
            str(model.get("id")): str(model.get("root", ""))
            for model in models
            if isinstance(model, dict)
        }

    def send_request(self, timeout: float) -> None:
        """Send one real request; the first call determines the model's kind, and proves it. One
        that sleeps was proven before.

        Raises EndpointError, and NothingToAsk if the model is of no known kind.
        """
        with contextlib.suppress(Asleep):
            self._send_request(timeout)

    def _send_request(self, timeout: float) -> None:
        if self.kind:
            self._ask(self.kind, timeout)
            return
        there = self._paths(timeout)
        planned = tuple(kind for kind in KINDS if kind.name == self._planned)
        refusals: List[str] = []
        for kind in dict.fromkeys((*planned, *ASKED)):
            needed = {kind.ask("", 1).path}
            if kind.mark and kind not in planned:
                needed.add(kind.mark)
            if there and not needed <= there:
                continue
            try:
                answer = self._ask(kind, timeout, first=True)
            except RequestRefused as error:
                refusals.append(str(error))
            else:
                self.kind, self.answer = kind, "" if kind.name == "text" else answer
                return
        has = f"it has {', '.join(sorted(there))[:600]}" if there else "it lists no paths"
        raise NothingToAsk("; ".join([*refusals, has]))

    def ask_as(self, model: str, timeout: float) -> None:
        """Send a small request to another model of the server, such as an adapter. Raises
        EndpointError."""
        kind = self.kind or ASKED[0]
        ask = kind.ask(PROBE_TEXT, PROBE_TOKENS)
        self.request("POST", ask.path, ask.encoded(model), timeout)

    def _paths(self, timeout: float) -> FrozenSet[str]:
        """Return the server's paths; none if it does not list them, as with
        --disable-fastapi-docs."""
        try:
            found = _json(self.request("GET", "/openapi.json", None, timeout)).get("paths")
        except EndpointError:
            return frozenset()
        return frozenset(map(str, found)) if isinstance(found, dict) else frozenset()

    def _ask(self, kind: ModelKind, timeout: float, *, first: bool = False) -> str:
        ask, read = kind.ask(PROBE_TEXT, PROBE_TOKENS), kind.read
        if first:
            ask, read = kind.first(PROBE_TEXT, PROBE_TOKENS)
        body = ask.encoded(self._served_name)
        answer = _json(self.request("POST", ask.path, body, timeout))
        try:
            return kind.answer(answer, read)
        except ValueError as error:
            raise EndpointError(f"POST {ask.path}: {error}") from error

    def metrics(self, timeout: float) -> Metrics:
        """Return the current metrics. Raises EndpointError."""
        text = self.request("GET", "/metrics", None, timeout).decode("utf-8", "replace")
        try:
            return parse_metrics(text, self.kind.counter if self.kind else GENERATED_TOKENS)
        except ValueError as error:
            raise EndpointError(f"GET /metrics: {str(error)[:200]}") from error

    def request(
        self,
        method: str,
        path: str,
        body: Optional[Tuple[str, bytes]],
        timeout: float,
        more: Optional[Dict[str, str]] = None,
    ) -> bytes:
        """Return the content of an answer with status 200. Raises EndpointError for others.

        `body`: its content type and content; `more`: headers.
        """
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        try:
            kind, data = body or ("", None)
            headers = {**self._headers, **({"Content-Type": kind} if kind else {}), **(more or {})}
            connection.request(method, path, data, headers)
            # An answer that ends with its connection keeps the socket until it is closed itself.
            with connection.getresponse() as response:
                content = response.read(LARGEST_ANSWER + 1)
                if response.length and len(content) <= LARGEST_ANSWER:
                    raise http.client.IncompleteRead(content, response.length)
        except (OSError, http.client.HTTPException) as error:
            words = str(error) or type(error).__name__
            raise EndpointError(f"{method} {path}: {words}") from error
        finally:
            connection.close()
        if len(content) > LARGEST_ANSWER:
            raise EndpointError(f"{method} {path}: more than {LARGEST_ANSWER >> 20} MiB")
        if response.getheader(ASLEEP):
            raise Asleep(f"{method} {path}: the model is asleep")
        if response.status != http.client.OK:
            refused = response.status in NOT_SERVED
            raise (RequestRefused if refused else EndpointError)(
                f"{method} {path}: HTTP {response.status} {_excerpt(content)}"
            )
        return content


def parse_metrics(text: str, counter: str = GENERATED_TOKENS) -> Metrics:
    """Parse metrics in Prometheus text, summed over several engines.

    `counter` names the metric that grows while the model works.
    """

    lines = [line.rpartition(" ") for line in text.splitlines()]

    def series(name: str) -> List[float]:
        found = [float(value) for metric, _, value in lines if metric.partition("{")[0] == name]
        return [value for value in found if math.isfinite(value)]

    tokens, read = sum(series(counter)), sum(series(PROMPT_TOKENS))
    kv_cache_use = [use for name in KV_CACHE_USE for use in series(name)]
    first_tokens: Dict[float, float] = {}
    for metric, _, count in lines:
        bound = _BOUND.search(metric) if metric.startswith(FIRST_TOKENS) else None
        if bound and math.isfinite(float(count)):
            within = float(bound[1])
            first_tokens[within] = first_tokens.get(within, 0.0) + float(count)
    return Metrics(
        running=sum(series("vllm:num_requests_running")),
        waiting=sum(series("vllm:num_requests_waiting")),
        kv_cache_use=max(kv_cache_use, default=0.0),
        tokens=tokens,
        signs=(tokens, read, *kv_cache_use),
        first_tokens=first_tokens,
    )


def _json(content: bytes) -> Dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise EndpointError(f"the answer is not JSON: {_excerpt(content)}") from error
    return value if isinstance(value, dict) else {}


def _excerpt(content: bytes) -> str:
    return content.decode("utf-8", "replace").strip()[:200]


@dataclass(frozen=True)
class Silence:
    """A sign of life is due and has been missing since `since` (monotonic seconds)."""

    since: float
    what: str  # What is missing: `no token`, `no answer`
    asked: str  # The pending requests, or the failed check with its error

    def text(self, now: float) -> str:
        return f"{self.what} for {now - self.since:.0f} s ({self.asked})"


@dataclass(frozen=True)
class Reading:
    """Results of the latest checks. Replaced as a whole, so that another thread may read it at any
    time."""

    ready: bool = False
    stage: str = ""  # `listening` or `warm-up`, once the endpoint itself shows it
    running: float = 0.0
    waiting: float = 0.0
    tokens_per_second: float = 0.0
    kv_cache_use: float = 0.0
    first_tokens: Dict[float, float] = field(default_factory=dict)  # As Metrics has them
    # Set while a sign of life is due. `SupervisedService` decides how long is too long.
    silence: Optional[Silence] = None
    error: str = ""  # Error of the last failed check
    kind: str = ""  # Of the model: `embed`; empty until ready
    answer: str = ""  # Summary of the proof's answer: `1024 numbers`
    adapters: Dict[str, str] = field(default_factory=dict)  # As ServiceState has them
    unprovable: str = ""  # Errors of a working server whose model is of no known kind


class EndpointWatch:
    """Checks a service until it is ready, then keeps watching it, in its own thread, since a
    request to a hung engine blocks.

    A sign of life is an answered canary, or any change in the engine's own metrics: generated
    tokens, prompt tokens, and KV cache in use. The last one changes with every chunk of a long
    prompt, during which no token is generated, so that a long prefill does not look like a stall.
    """

    def __init__(
        self,
        endpoint: LocalApi,
        timing: Timing,
        follow: Callable[[], Dict[str, str]] = dict,
    ) -> None:
        """`follow` makes the server follow its adapters, and returns their state."""
        self._endpoint = endpoint
        self._follow = follow
        self._timing = timing
        self._ended, self._soon = threading.Event(), threading.Event()
        self._occasion = 0.0
        self.reading = Reading()
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """Make the thread end after its current request."""
        self._ended.set()
        self._soon.set()

    def look_again(self, occasion: float) -> None:
        """Read the metrics without a pause, once for each `occasion`."""
        if occasion != self._occasion:
            self._occasion = occasion
            self._soon.set()

    def _run(self) -> None:
        """Repeat each check until it passes. Then read the metrics, and send a canary while no
        other requests arrive; a failed canary is repeated after the next reading."""
        # `SupervisedService` enforces the deadline of the whole attempt.
        endpoint, timing = self._endpoint, self._timing
        checks = [
            ("", endpoint.check_port, timing.http_timeout),
            ("listening", endpoint.check_health, timing.http_timeout),
            ("listening", endpoint.check_model, timing.http_timeout),
            ("warm-up", endpoint.send_request, timing.answer_timeout),
        ]
        while checks:
            if self._ended.is_set():
                return
            stage, check, timeout = checks[0]
            self._set(stage=stage)
            try:
                check(timeout)
                checks.pop(0)
            except NothingToAsk as error:
                self._set(unprovable=str(error))
                return
            except EndpointError as error:
                self._set(error=str(error))
                self._ended.wait(timing.connect_every)
        name = endpoint.kind.name if endpoint.kind else ""
        self._set(ready=True, error="", kind=name, answer=endpoint.answer)
        progress = EngineProgress(time.monotonic())
        self._set(adapters=self._follow())
        while not self._pause():
            try:
                metrics = endpoint.metrics(timing.http_timeout)
                progress.update(time.monotonic(), metrics)
                self._set(
                    running=metrics.running,
                    waiting=metrics.waiting,
                    kv_cache_use=metrics.kv_cache_use,
                    first_tokens=metrics.first_tokens,
                    tokens_per_second=progress.tokens_per_second,
                    silence=progress.silence(),
                )
            except EndpointError as error:
                progress.unread(str(error))
            if progress.wants_canary(time.monotonic(), timing.canary_every):
                try:
                    endpoint.send_request(timing.canary_timeout)
                    progress.answered(time.monotonic())
                except EndpointError as error:
                    progress.unanswered(str(error))
            self._set(silence=progress.silence())
            self._set(adapters=self._follow())

    def _pause(self) -> bool:
        """Wait until the next reading is due; return whether the watch has ended."""
        self._soon.wait(self._timing.scrape_every)
        self._soon.clear()
        return self._ended.is_set()

    def _set(self, **changes: object) -> None:
        self.reading = replace(self.reading, **changes)  # type: ignore[arg-type]


class EngineProgress:
    """Distinguishes a working engine from a hung one by its metrics and answers.

    Does no I/O: the caller passes in the results. Times are monotonic seconds.
    """

    def __init__(self, now: float) -> None:
        """Count `now` as the last sign of life."""
        self._last: Optional[Metrics] = None
        self._read_at = now
        self._sign_at = now
        self._asked_at: Optional[float] = None  # Since when requests are pending; None: none are
        self._unread = ""  # Why the metrics could not be read
        self._unanswered = ""  # Why the canary was not answered
        self.tokens_per_second = 0.0

    def update(self, now: float, metrics: Metrics) -> None:
        """Record metrics read at `now`."""
        last, span = self._last, now - self._read_at
        if last is not None and span > 0:
            self.tokens_per_second = max(0.0, metrics.tokens - last.tokens) / span
        # A counter that decreased belongs to a new engine: that is a sign of life too.
        if last is not None and metrics.signs != last.signs:
            self.answered(now)
        if metrics.running == 0 and metrics.waiting == 0:
            self._asked_at = None
        elif self._asked_at is None:
            self._asked_at = now
        self._last, self._read_at, self._unread = metrics, now, ""

    def unread(self, error: str) -> None:
        """Record that the metrics could not be read."""
        self._unread = error

    def answered(self, now: float) -> None:
        """Record that the canary was answered."""
        self._sign_at, self._unanswered = now, ""

    def unanswered(self, error: str) -> None:
        """Record that the canary was not answered."""
        self._unanswered = error

    def wants_canary(self, now: float, every: float) -> bool:
        """Return whether the engine is idle and has shown no sign of life for `every` seconds."""
        idle = self._asked_at is None and not self._unread
        return idle and now - self._sign_at >= every

    def silence(self) -> Optional[Silence]:
        """Return since when a sign of life has been due, or None while none is."""
        if self._unanswered:
            return Silence(self._sign_at, "no answer", self._unanswered)
        if self._unread:
            return Silence(max(self._sign_at, self._read_at), "no answer", self._unread)
        if self._asked_at is None or self._last is None:
            return None
        load = f"{self._last.running:g} requests running, {self._last.waiting:g} waiting"
        return Silence(max(self._sign_at, self._asked_at), "no token", load)
