"""The user's request, merged from clusterctl's options, a vLLM config file and the flags after `--`
(the later wins). Invalid requests are refused before any host is contacted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from clusterctl.errors import ClusterctlError, UsageError, raise_all
from clusterctl.node.rank_placement import PER_WORKER, SHARES, gpu_share
from clusterctl.serving.release_flags import completed, is_vllm_flag
from clusterctl.serving.vllm_flags import (
    EXPERT_PARALLEL,
    Argument,
    last_value,
    lay_over,
    without,
)

if TYPE_CHECKING:
    from clusterctl.node.documents import ServiceDocument

_KEY = re.compile(r"^[!-~]+\Z")


def _is_service_name(name: str) -> bool:
    from clusterctl.node.documents import is_service_name  # 15 ms that `fit` does not need

    return is_service_name(name)


_DURATION = re.compile(r"^(\d{1,6})(s|m|h|d)\Z")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

# Seconds. Whether vLLM still works on something is read every 5 s (timing.scrape_every).
LEAST_IDLE, MOST_IDLE = 10.0, 7 * 86400.0
SPARE_IDLE = 300.0  # Of replicas that are not needed, without --idle

_REPLICAS = re.compile(r"^((?P<least>\d{1,5})\.\.)?(?P<most>0*[1-9]\d{0,4}|max)\Z")

ANY_HOST = "*"  # `--on` that ends an earlier choice of hosts

# Names of logs (`ray.log`), of files on the node, of a subject in its ledger and of targets of
# `tunnel`
RESERVED_NAMES = frozenset(
    {"ray", "host", "journal", "supervisor", "state", "dashboard", "gateway", "node"}
)

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

# By default 5600 of NIXL, 8998 of Mooncake, 5557 of events, 5601 of encoder caches (envs.py and
# config/kv_events.py of vLLM 0.32): an engine on its own ports would be another peer.
_FIXED_PORTS = ("kv-transfer-config", "kv-events-config", "ec-transfer-config")


@dataclass(frozen=True)
class Options:
    """clusterctl's own options of `serve`; None means not given."""

    model: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    name: str | None = None
    port: int | None = None
    stall_timeout: float | None = None
    replicas: str | None = None  # A number, or `max`; `1..4`: at least 1 awake
    ttft: float | None = None  # Seconds
    on: str | None = None  # Hosts, as `inventory.select` reads them
    env: Mapping[str, str] = field(default_factory=dict)
    data_parallel: int | None = None
    expert_parallel: bool = False
    gpu_share: float | None = None  # Of one GPU, for its only rank
    idle: str | None = None  # A duration such as `10m`
    standby: bool = False
    swap: bool = False
    swap_with: str | None = None  # The name of a service
    adapters: Mapping[str, str] | None = None  # By name: directories on this machine


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
    idle: float = 0.0  # Likewise
    standby: bool = False  # A second engine sleeps on its GPUs, and takes over when it fails
    swap: bool = False  # Another service may have its GPUs in turn
    swap_with: str = ""  # The name of that whose GPUs it is to have in turn
    # None: as many as there are now, or one for a new service
    replicas: int | Literal["max"] | None = None
    least: int = -1  # Of these, that never sleep, while others do that are not needed; -1: all
    ttft: float = 0.0  # Seconds to the first token for which more of them are woken; 0: any
    on: str | None = None  # Hosts that may have ranks; None: as before, or all
    # Variables of vLLM's processes on all hosts, besides those of the inventory
    env: Mapping[str, str] = field(default_factory=dict)
    # Those that it is to have, by name: directories on this machine, and once they are read
    # (`adapters.with_adapters`) on hosts. None: those that it has
    adapters: Mapping[str, str] | None = None

    @property
    def gpu_share(self) -> float:
        """The share of a GPU that each rank takes."""
        return gpu_share(self.env)

    @property
    def sleeps(self) -> bool:
        """Whether its engine may be put to sleep."""
        return bool(self.idle or self.standby or self.swaps)

    @property
    def scales(self) -> bool:
        """Whether its replicas sleep and wake as they are needed."""
        return self.least >= 0

    @property
    def swaps(self) -> bool:
        """Whether it has its GPUs in turn with another service."""
        return self.swap or bool(self.swap_with)

    @property
    def random_weights(self) -> bool:
        """Whether the user passed --load-format dummy."""
        return last_value(self.given, "load-format") == "dummy"


def sleep_option(asked: ServiceRequest | ServiceDocument) -> str:
    """Return the option for which it sleeps."""
    if asked.swap or asked.swap_with:
        return "--swap" if asked.swap else "--swap-with"
    return "--idle" if asked.idle else "--standby"


def read_request(
    options: Options, config: Sequence[Argument] = (), extra: Sequence[Argument] = ()
) -> ServiceRequest:
    """Merge the three sources into one request: `extra` (the flags after --) overrides `config`.

    Raises UsageError with all problems: a missing model, invalid numbers, options and flags that
    contradict each other, and flags that only clusterctl may set.
    """
    problems: list[ClusterctlError] = []
    as_written, extra_as_written = config, extra
    config, extra = _in_full(config), _in_full(extra)
    merged = lay_over(config, extra)

    def fail(text: str, hint: str | None = None) -> None:
        problems.append(UsageError(text, hint=hint))

    def number(option: int | None, ours: str, flag: str, most: int | None = None) -> int | None:
        """Return a number of 1 to `most`, from clusterctl's option `ours` or from vLLM's flag."""
        text, typed = last_value(merged, flag), last_value(extra, flag)
        value = None
        if text is not None:
            try:
                value = int(text)
            except ValueError:
                fail(f"--{flag} {text}: not a whole number")
        if option is not None and typed is not None and value != option:
            fail(f"{ours} {option} and -- --{flag} {typed} contradict each other")
        chosen = option if option is not None else value
        if chosen is not None and not 1 <= chosen <= (most or chosen):
            fail(f"{ours} {chosen}: must be {f'1 to {most}' if most else 'at least 1'}")
        return chosen

    for argument in (*as_written, *extra_as_written):
        if reason := _refusal(argument, typed=argument in extra_as_written):
            fail(f"{argument.flag} ({argument.origin}) cannot be passed to vLLM", reason)
    if last_value(extra, "model") is not None:
        fail("--model after -- is not taken", "clusterctl serve MODEL -- ...")
    model = options.model or last_value(config, "model")
    if model is None:
        fail("no model given", "clusterctl serve MODEL, or `model:` in the --config file")
    if options.name is not None and not _is_service_name(options.name):
        fail(
            f"{options.name!r} cannot be a service's name",
            "lower case letters, digits, and . _ - between them; at most 63",
        )
    if options.name in RESERVED_NAMES:
        fail(f"the name {options.name} is taken by clusterctl itself", "--name OTHER")
    keys = next((a.values for a in config if a.name == "api-key"), ())
    if len(keys) > 1:
        fail(f"api-key in the config file: {len(keys)} keys, and a cluster has one")
    elif keys and not _KEY.match(keys[0]):  # the message must not contain the key itself
        fail(
            "api-key in the config file: it does not fit into an HTTP header",
            "printable ASCII without spaces",
        )
    request = ServiceRequest(
        model=model or "",
        name=options.name,
        served_names=next(
            (a.values for a in reversed(merged) if a.name == "served-model-name"), ()
        ),
        tensor_parallel=number(options.tensor_parallel, "--tp", "tensor-parallel-size"),
        pipeline_parallel=number(options.pipeline_parallel, "--pp", "pipeline-parallel-size"),
        data_parallel=number(options.data_parallel, "--dp", "data-parallel-size") or 1,
        host=last_value(merged, "host"),
        port=number(options.port, "--port", "port", 65535),
        given=lay_over(
            [Argument(EXPERT_PARALLEL)] if options.expert_parallel else [],
            without(merged, _SERVICE_FLAGS),
        ),
        api_key=keys[-1] if keys else None,
        stall_timeout=options.stall_timeout,
        ttft=options.ttft or 0.0,
        on=options.on,
        env=options.env,
        adapters=options.adapters,
    )
    request = _with_replicas(request, options.replicas, fail)
    request = _sharing(request, options.gpu_share, fail)
    request = _sleeping(request, options.idle, fail)
    request = _with_standby(request, fail) if options.standby else request
    request = _swapping(request, options, fail)
    _scaling(request, options, fail)
    raise_all(problems)
    return request


def _sharing(
    request: ServiceRequest, share: float | None, fail: Callable[..., None]
) -> ServiceRequest:
    """Return the request for a share of a GPU: of its memory, and of Ray's count."""
    if share is None:
        return request
    memory = last_value(request.given, "gpu-memory-utilization")
    if not 0 < share < 1:
        fail(f"--gpu-share {share:g}: must be between 0 and 1, such as 0.3")
    if memory is not None and memory != f"{share:g}":
        fail(
            f"--gpu-share {share:g} and --gpu-memory-utilization {memory} contradict each other",
            "leave the latter out",
        )
    sizes = (request.tensor_parallel or 1, request.pipeline_parallel or 1, request.data_parallel)
    if sizes != (1, 1, 1):
        fail("--gpu-share is for a model on one GPU: without --tp, --pp and --dp")
    argument = Argument("gpu-memory-utilization", (f"{share:g}",))
    return replace(
        request,
        tensor_parallel=1,
        pipeline_parallel=1,
        given=lay_over(request.given, [argument]),
        env={**request.env, PER_WORKER: f"{share:g}"},
    )


def _sleeping(
    request: ServiceRequest, idle: str | None, fail: Callable[..., None]
) -> ServiceRequest:
    """Return the request for a service that sleeps after its idle time, or whose replicas do: each
    has one API server, which counts its requests."""
    if idle is None and not request.scales:
        return request
    seconds = SPARE_IDLE
    if idle is not None:
        found = _DURATION.match(idle)
        seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not LEAST_IDLE <= seconds <= MOST_IDLE:
        fail(f"--idle {idle}: must be a time from 10s to 7d, such as 90s, 10m or 2h")
    if not request.scales:
        _require_one_engine("--idle", request, fail)
    return replace(request, idle=seconds)


def _scaling(request: ServiceRequest, options: Options, fail: Callable[..., None]) -> None:
    """Report what contradicts --replicas. Without that, the service may have a range already."""
    if request.scales:
        require_scaling(f"--replicas {options.replicas}", request, fail)
    elif options.replicas is not None:
        require_range(request, fail)


def require_scaling(option: str, request: ServiceRequest, fail: Callable[[str, str], None]) -> None:
    """Report what contradicts a range of replicas. `option`: what asks for the range."""
    if request.standby or request.swaps:
        other = sleep_option(replace(request, idle=0.0))
        fail(f"{option} and {other} are two uses of sleep", f"leave {other} out")
    _require_countable(option, request, fail)


def require_range(request: ServiceRequest, fail: Callable[[str, str], None]) -> None:
    """Report a target of a service whose replicas do not scale."""
    if request.ttft and not request.scales:
        fail("--ttft is kept by waking more replicas", "give a range: --replicas 1..4")


def _with_standby(request: ServiceRequest, fail: Callable[..., None]) -> ServiceRequest:
    _require_one_engine("--standby", request, fail)
    _require_own_ports("--standby", request, fail)
    if request.idle and not request.scales:
        fail("--standby and --idle are two uses of sleep", "give only one")
    if request.gpu_share < 1:
        fail("--standby needs whole GPUs: without --gpu-share")
    return replace(request, standby=True)


def _swapping(
    request: ServiceRequest, options: Options, fail: Callable[..., None]
) -> ServiceRequest:
    """Return the request for one of two services that have their GPUs in turn."""
    if not options.swap and options.swap_with is None:
        return request
    option = "--swap" if options.swap_with is None else "--swap-with"
    _require_one_engine(option, request, fail)
    _require_own_ports(option, request, fail)
    if options.swap and options.swap_with is not None:
        fail("--swap is for the first of two services, --swap-with for the second", "give only one")
    if request.standby or (request.idle and not request.scales):
        other = "--idle" if request.idle else "--standby"
        fail(f"{option} and {other} are two uses of sleep", "give only one")
    if options.gpu_share is not None:
        fail(f"{option} needs whole GPUs: without --gpu-share")
    if options.swap_with is not None and request.on not in (None, ANY_HOST):
        fail(f"--swap-with takes the hosts of {options.swap_with}", "leave --on out")
    first, second = SHARES
    share = first if options.swap_with is None else second
    return replace(
        request,
        swap=options.swap,
        swap_with=options.swap_with or "",
        env={**request.env, PER_WORKER: share},
    )


def _require_own_ports(option: str, request: ServiceRequest, fail: Callable[..., None]) -> None:
    for key in _FIXED_PORTS:
        if any(one.key == key for one in request.given):
            fail(
                f"--{key} may open ports of fixed numbers, and {option} has two engines on a host",
                f"leave {option} or --{key} out",
            )


def _require_one_engine(option: str, request: ServiceRequest, fail: Callable[..., None]) -> None:
    if request.scales:
        return  # `require_scaling` says it
    if request.replicas not in (None, 1) or request.data_parallel > 1:
        fail(f"{option} is for a service with one replica: without --replicas and --dp")
    _require_countable(option, request, fail)


def _require_countable(
    option: str, request: ServiceRequest, fail: Callable[[str, str], None]
) -> None:
    if last_value(request.given, "api-server-count") not in (None, "1"):
        fail(f"{option} is for one API server, which counts the requests", "--api-server-count 1")
    if any(one.key == "enable-lora" and not one.negated for one in request.given):
        fail(f"{option} is for a model without adapters", "leave --enable-lora out")
    if any(one.key == "enable-sleep-mode" and one.negated for one in request.given):
        fail(f"{option} needs vLLM's sleep mode", "leave --no-enable-sleep-mode out")


def _with_replicas(
    request: ServiceRequest, given: str | None, fail: Callable[..., None]
) -> ServiceRequest:
    """Return the request for a number of replicas, or for a range of which some may sleep."""
    if given is None:
        return request
    if given != "1" and request.data_parallel > 1:
        fail("--replicas and --dp are two ways to have copies of a model", "give only one")
    found = _REPLICAS.match(given)
    if not found:
        fail(f"--replicas {given}: must be a number from 1 on, max, or a range such as 1..4")
        return request
    least = int(found["least"]) if found["least"] else -1
    most: int | Literal["max"] = "max" if found["most"] == "max" else int(found["most"])
    if most != "max" and most <= least:
        fail(f"--replicas {given}: the second number must be greater than the first")
    return replace(request, replicas=most, least=least)


def _refusal(argument: Argument, *, typed: bool) -> str | None:
    """Return why clusterctl does not pass `argument` on. `typed`: on the command line."""
    if argument.key == "distributed-executor-backend" and argument.values != ("ray",):
        return "clusterctl proves where ranks run, which needs Ray"
    if owned := _abbreviated(argument.key):
        return f"vLLM would read it as --{owned}: write the flag in full"
    if argument.key == "api-key" and typed:
        return (
            "a key in arguments is visible to every user; clusterctl makes one on the head, "
            "readable by root alone"
        )
    return _REFUSED.get(argument.key)


def _abbreviated(key: str) -> str | None:
    """Return the flag, among clusterctl's own and refused ones, that `key` abbreviates, as argparse
    accepts; None for a flag that vLLM has by that name."""
    if key.startswith("-") or is_vllm_flag(f"--{key}"):
        return None
    return next((flag for flag in (*_SERVICE_FLAGS, *_REFUSED) if flag.startswith(key)), None)


def _in_full(arguments: Iterable[Argument]) -> tuple[Argument, ...]:
    """Return the arguments with each unambiguous abbreviation of a flag completed."""
    found = []
    for argument in arguments:
        rest = argument.name.removeprefix(argument.key)
        found.append(replace(argument, name=completed(argument.key) + rest))
    return tuple(found)


def service_name(served_name: str) -> str:
    """Derive a service's name from its served name: `Qwen/Qwen3-8B` becomes `qwen3-8b`."""
    last = served_name.rstrip("/").rpartition("/")[2].lower()
    cleaned = re.sub(r"[^a-z0-9._-]+|\.{2,}", "-", last).strip("._-")[:63].rstrip("._-")
    if cleaned in RESERVED_NAMES:
        return f"{cleaned}-model"
    return cleaned or "model"
