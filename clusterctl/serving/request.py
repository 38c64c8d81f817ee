"""The user's request, merged from clusterctl's options, a vLLM config file and the flags after `--`
(the later wins). Invalid requests are refused before any host is contacted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from clusterctl.errors import ClusterctlError, UsageError, raise_all
from clusterctl.serving.vllm_flags import Argument, last_value, lay_over, without

_NAME = re.compile(r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$")

_KEY = re.compile(r"^[!-~]+\Z")

# Names of logs (`ray.log`), of files on the node and of targets of `tunnel`
RESERVED_NAMES = frozenset({"ray", "journal", "supervisor", "state", "dashboard"})

# Flags that clusterctl derives from the request
_SERVICE_FLAGS = (
    "model",
    "tensor-parallel-size",
    "pipeline-parallel-size",
    "data-parallel-size",
    "served-model-name",
    "host",
    "port",
    "api-key",
    "distributed-executor-backend",
)

_PLACEMENT = "clusterctl places the ranks itself, through Ray; leave it out"
_ENDPOINT = "the supervisor on the head checks the service over plain HTTP; put TLS in front of it"

_REFUSED = {
    "nnodes": _PLACEMENT,
    "node-rank": _PLACEMENT,
    "master-addr": _PLACEMENT,
    "master-port": _PLACEMENT,
    "headless": _PLACEMENT,
    "data-parallel-address": _PLACEMENT,
    "data-parallel-rank": _PLACEMENT,
    "data-parallel-start-rank": _PLACEMENT,
    "uds": _ENDPOINT,
    "grpc": _ENDPOINT,
    "ssl-keyfile": _ENDPOINT,
    "ssl-certfile": _ENDPOINT,
    "config": "give the file to clusterctl: clusterctl serve MODEL --config FILE",
    "hf-token": "arguments are visible to every user of the host; run `hf auth login` there",
}


@dataclass(frozen=True)
class Options:
    """clusterctl's own options of `serve`; None means not given."""

    model: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    name: str | None = None
    port: int | None = None
    stall_timeout: float | None = None


@dataclass(frozen=True)
class ServiceRequest:
    """A service as the user requested it, before any host is contacted."""

    model: str
    name: str | None = None
    served_names: tuple[str, ...] = ()
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    data_parallel: int = 1
    host: str | None = None
    port: int | None = None
    given: tuple[Argument, ...] = ()  # All other flags, from the config file and the command line
    # From a config file only, never in `given`; becomes the cluster's key, in a file on the head
    api_key: str | None = field(default=None, repr=False)
    stall_timeout: float | None = None  # Seconds, as in ServiceDocument; None: the default

    @property
    def random_weights(self) -> bool:
        """Whether the user passed --load-format dummy."""
        return last_value(self.given, "load-format") == "dummy"


def read_request(
    options: Options, config: Sequence[Argument] = (), extra: Sequence[Argument] = ()
) -> ServiceRequest:
    """Merge the three sources into one request: `extra` (the flags after --) overrides `config`.

    Raises UsageError with all problems: a missing model, invalid numbers, options and flags that
    contradict each other, and flags that only clusterctl may set.
    """
    reader = _RequestReader(config, extra)
    for argument in (*config, *extra):
        reader.check(argument)
    request = reader.request(options)
    raise_all(reader.problems)
    return request


class _RequestReader:
    """Reads a request and collects its problems."""

    def __init__(self, config: Sequence[Argument], extra: Sequence[Argument]) -> None:
        self.config = tuple(config)
        self.extra = tuple(extra)
        self.merged = lay_over(config, extra)
        self.problems: list[ClusterctlError] = []

    def request(self, options: Options) -> ServiceRequest:
        return ServiceRequest(
            model=self.model(options.model),
            name=self.name(options.name),
            served_names=self.values("served-model-name"),
            tensor_parallel=self.count(options.tensor_parallel, "tp", "tensor-parallel-size"),
            pipeline_parallel=self.count(options.pipeline_parallel, "pp", "pipeline-parallel-size"),
            data_parallel=self.count(None, "dp", "data-parallel-size") or 1,
            host=last_value(self.merged, "host"),
            port=self.port(options.port),
            given=without(self.merged, _SERVICE_FLAGS),
            api_key=self.api_key(),
            stall_timeout=options.stall_timeout,
        )

    def check(self, argument: Argument) -> None:
        """Record a problem if clusterctl does not pass `argument` on."""
        reason = _REFUSED.get(argument.key)
        if reason is not None:
            self.refuse(argument, reason)
        if argument.key == "distributed-executor-backend" and argument.values != ("ray",):
            self.refuse(argument, "clusterctl proves where ranks run, which needs Ray")
        if argument.key == "api-key" and argument in self.extra:
            self.refuse(
                argument,
                "a key in arguments is visible to every user; clusterctl makes one on the head, "
                "readable by root alone",
            )

    def refuse(self, argument: Argument, reason: str) -> None:
        self.problems.append(
            UsageError(f"{argument.flag} ({argument.origin}) cannot be passed to vLLM", hint=reason)
        )

    def fail(self, text: str, hint: str | None = None) -> None:
        self.problems.append(UsageError(text, hint=hint))

    def model(self, option: str | None) -> str:
        if last_value(self.extra, "model") is not None:
            self.fail("--model after -- is not taken", "clusterctl serve MODEL -- ...")
        model = option or last_value(self.config, "model")
        if model is None:
            self.fail("no model given", "clusterctl serve MODEL, or `model:` in the --config file")
        return model or ""

    def name(self, option: str | None) -> str | None:
        if option is not None and not is_service_name(option):
            self.fail(
                f"{option!r} cannot be a service's name",
                "lower case letters, digits, and . _ - between them; at most 63",
            )
        if option in RESERVED_NAMES:
            self.fail(f"the name {option} is taken by clusterctl itself", "--name OTHER")
        return option

    def values(self, flag: str) -> tuple[str, ...]:
        return next((a.values for a in reversed(self.merged) if a.name == flag), ())

    def api_key(self) -> str | None:
        """Return the config file's key. Messages must not contain the key itself."""
        keys = next((a.values for a in self.config if a.name == "api-key"), ())
        if len(keys) > 1:
            self.fail(f"api-key in the config file: {len(keys)} keys, and a cluster has one")
        elif keys and not _KEY.match(keys[0]):
            self.fail(
                "api-key in the config file: it does not fit into an HTTP header",
                "printable ASCII without spaces",
            )
        return keys[-1] if keys else None

    def count(self, option: int | None, short: str, flag: str) -> int | None:
        """Return a number of 1 or more, from the option or vLLM's flag of the same meaning."""
        number = self.number(flag)
        typed = last_value(self.extra, flag)
        if option is not None and typed is not None and number != option:
            self.fail(f"--{short} {option} and --{flag} {typed} contradict each other")
        chosen = option if option is not None else number
        if chosen is not None and chosen < 1:
            self.fail(f"--{short} {chosen}: must be at least 1")
        return chosen

    def number(self, flag: str) -> int | None:
        text = last_value(self.merged, flag)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            self.fail(f"--{flag} {text}: not a whole number")
            return None

    def port(self, option: int | None) -> int | None:
        number = self.number("port")
        typed = last_value(self.extra, "port")
        if option is not None and typed is not None and number != option:
            self.fail(f"--port {option} and -- --port {typed} contradict each other")
        port = option if option is not None else number
        if port is not None and not 1 <= port <= 65535:
            self.fail(f"--port {port}: ports are 1 to 65535")
        return port


def is_service_name(name: str) -> bool:
    """Return whether `name` can be a service's name, which is also a file name on the head."""
    return bool(_NAME.match(name)) and ".." not in name


def service_name(served_name: str) -> str:
    """Derive a service's name from its served name: `Qwen/Qwen3-8B` becomes `qwen3-8b`."""
    last = served_name.rstrip("/").rpartition("/")[2].lower()
    cleaned = re.sub(r"[^a-z0-9._-]+|\.{2,}", "-", last).strip("._-")[:63].rstrip("._-")
    if cleaned in RESERVED_NAMES:
        return f"{cleaned}-model"
    return cleaned or "model"
