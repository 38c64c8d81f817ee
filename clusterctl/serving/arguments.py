"""The complete command line of `vllm serve`: defaults, the catalogue's flags, the user's flags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from clusterctl import deadlines
from clusterctl.accelerators.engine_defaults import ON_GPUS, EngineDefaults
from clusterctl.errors import UsageError, raise_all
from clusterctl.models.catalogue import CatalogueEntry
from clusterctl.models.families import FAMILIES
from clusterctl.models.shape import ModelShape
from clusterctl.models.version import Version, show_version
from clusterctl.serving.release_flags import (
    DATA_PARALLEL_BACKEND_SINCE,
    SHUTDOWN_TIMEOUT_SINCE,
    refused_flags,
)
from clusterctl.serving.request import ServiceRequest, sleep_option
from clusterctl.serving.vllm_flags import (
    CATALOGUE,
    EXPERT_PARALLEL,
    TRUST,
    Argument,
    drop_idle_negations,
    last_value,
    lay_over,
    parse_arguments,
    render,
)

FIRST_PORT = 8000  # vLLM's own default

COPIES_THERE = "data-parallel-size-local"  # Of data parallel ranks on the API server's host

# Releases in which a whole image has to fit into one step: 2496 tokens for Gemma 4 (vllm#42687, of
# 0.20). 0.19 starts with 2048.
_IMAGE_TOKENS = 4096
WHOLE_IMAGES_SINCE: Version = (0, 20, 0)

# Before, a prompt had to fit into one step, so fewer batched tokens than --max-model-len were an
# error; for those releases the flag is left out.
CHUNKED_PREFILL_SINCE: Version = (0, 8, 0)


# vLLM fetches what a request names by URL, from addresses that only the cluster reaches, too,
# unless it has a list of domains. This one exists nowhere (RFC 2606), and is shown to the client.
MEDIA_DOMAINS_SINCE: Version = (0, 11, 2)
NO_DOMAIN = "none-is-allowed.invalid"

# Releases whose executor for Ray may start where no whole GPU is free
# (`require_gpu_on_driver` in v1/executor/ray_utils.py): a standby finds a share of each, as one of
# two services that swap.
STANDBY_SINCE: Version = (0, 25, 0)


@dataclass(frozen=True)
class Layout:
    """How a replica is divided over GPUs. `clusterctl.planning` decides it; the running ranks are
    compared with it."""

    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int = 1
    reason: str = ""
    # The host of each rank: TP varies fastest, then PP, then DP; empty until it is decided
    seats: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of its ranks, that of the first rank and of the API server first."""
        return tuple(dict.fromkeys(self.seats))

    @property
    def spans_hosts(self) -> bool:
        return len(self.hosts) > 1

    @property
    def keeps_tp_in_host(self) -> bool:
        """Whether every tensor parallel group is inside one host."""
        return all(len(set(group)) == 1 for group in self._groups(self.tensor_parallel))

    @property
    def splits_copies(self) -> bool:
        """Whether a single data parallel rank needs several hosts."""
        width = self.tensor_parallel * self.pipeline_parallel
        return any(len(set(group)) > 1 for group in self._groups(width))

    @property
    def copies(self) -> list[int]:
        """How many data parallel ranks start on each host that has any."""
        width = self.tensor_parallel * self.pipeline_parallel
        return list(Counter(group[0] for group in self._groups(width)).values())

    def _groups(self, size: int) -> list[tuple[str, ...]]:
        return [self.seats[start : start + size] for start in range(0, len(self.seats), size)]


# Placeholder for callers that need only flags independent of the layout
UNDECIDED = Layout(1, 1)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of one scheduler step: values of --max-num-seqs and --max-num-batched-tokens."""

    sequences: int
    tokens: int


# vLLM's defaults on most GPUs, taken where the GPUs are unknown
_USUAL = BatchLimits(256, 2048)


@dataclass(frozen=True)
class Launch:
    """All inputs of one service's command line."""

    request: ServiceRequest
    model_argument: str  # The path on the hosts, or a Hub id that every host downloads
    served_names: tuple[str, ...]
    layout: Layout
    host: str  # Address that the API listens on
    port: int | None = None  # From `choose_port`; None means the request's, else 8000
    shape: ModelShape | None = None  # From the config.json found, else the catalogue's
    entry: CatalogueEntry | None = None
    defaults: EngineDefaults = ON_GPUS
    # vLLM's version in the image; None means unknown, and counts as the newest
    version: Version | None = None
    limits: BatchLimits | None = None  # Those that `planning.options.own_limits` found
    capability: int = (
        0  # Compute capability x 10, for flags by class of GPU; 0: of several, or none
    )
    random_weights: bool = False

    @property
    def api_port(self) -> int:
        return self.port or self.request.port or FIRST_PORT


def least_step(shape: ModelShape | None, version: Version | None) -> int:
    """Return the fewest batched tokens with which that release starts the model by default."""
    if shape and shape.crosses and shape.ears:
        return shape.ears.positions  # A sound is taken whole
    whole = shape is not None and shape.multimodal and _knows(version, WHOLE_IMAGES_SINCE)
    return _IMAGE_TOKENS if whole else 1


def batch_limits(
    defaults: EngineDefaults, own: BatchLimits | None, *, least: int = 1
) -> BatchLimits:
    """Return values for --max-num-seqs and --max-num-batched-tokens.

    They are always passed, because vLLM derives them from the GPU of the host on which it starts:
    with an 80 GiB head, a 24 GiB worker pays for 1024 sequences (the sampler's warm-up takes about
    3.6 x sequences x vocabulary x 4 B: 2.1 instead of 0.5 GiB for Qwen). `own`: vLLM's own defaults
    on the GPU for which they are smallest; `least`: the fewest tokens with which the model starts.
    """
    own = own or _USUAL
    tokens = max(defaults.tokens or own.tokens, least)
    return BatchLimits(defaults.sequences or own.sequences, tokens)


def serve_arguments(launch: Launch) -> tuple[Argument, ...]:
    """Return all flags in command-line order. The user's flags override the catalogue's, and these
    the defaults.

    Raises UsageError for all flags that this vLLM is known not to have, and for a model with its
    own code unless the user says whether to trust it.
    """
    layout = launch.layout
    flags = [
        Argument("served-model-name", launch.served_names),
        Argument("host", (launch.host,)),
        Argument("port", (str(launch.api_port),)),
        Argument("tensor-parallel-size", (str(layout.tensor_parallel),)),
        Argument("pipeline-parallel-size", (str(layout.pipeline_parallel),)),
    ]
    if layout.data_parallel > 1:
        flags.append(Argument("data-parallel-size", (str(layout.data_parallel),)))
        if _knows(launch.version, DATA_PARALLEL_BACKEND_SINCE):
            # The default, mp, hangs with ranks on several hosts (vllm#44878).
            flags.append(Argument("data-parallel-backend", ("ray",)))
            # Without this flag vLLM requires the GPUs of every copy on the API server's host.
            if layout.copies:
                local = str(layout.copies[0])
                flags.append(Argument(COPIES_THERE, (local,)))
    # Without this flag vLLM stays on one host whenever that has enough GPUs, and only logs a line
    # about it. A single rank goes through Ray too (vLLM takes `uni` for it only where no backend is
    # named, config/parallel.py): otherwise Ray counts its GPU as free and assigns it again.
    flags.append(Argument("distributed-executor-backend", ("ray",)))
    arguments = drop_idle_negations(lay_over(flags, engine_arguments(launch)))
    refused = [
        *_undecided_trust(launch),
        *_no_experts(launch, arguments),
        *_too_old_for_two(launch),
    ]
    raise_all([*refused_flags(arguments, launch.version), *refused])
    return arguments


def _no_experts(launch: Launch, arguments: Iterable[Argument]) -> Iterator[UsageError]:
    """Yield an error for splitting experts that the model does not have, which vLLM refuses when it
    loads."""
    split = any(one.name == EXPERT_PARALLEL and not one.negated for one in arguments)
    if split and launch.shape and not any(layer.experts for layer in launch.shape.layers):
        yield UsageError(
            f"{launch.request.model} is not a mixture of experts, so --ep has nothing to split",
            hint="leave --ep out",
        )


def _too_old_for_two(launch: Launch) -> Iterator[UsageError]:
    """Yield an error for a release whose engines cannot have GPUs in turn."""
    version, request = launch.version, launch.request
    in_turn = request.standby or request.swaps
    if in_turn and version and not _knows(version, STANDBY_SINCE):
        what = "a standby has" if request.standby else "services that swap have"
        newer = f"use vLLM {show_version(STANDBY_SINCE)} or newer"
        yield UsageError(
            f"vLLM {show_version(version)} may want a whole free GPU to start, and {what} a "
            "share of each",
            hint=f"leave {sleep_option(request)} out, or {newer}",
        )


def _undecided_trust(launch: Launch) -> Iterator[UsageError]:
    """Yield an error if the model's own code would have to run and the user has not decided that:
    neither --trust-remote-code nor --no-trust-remote-code is given."""
    entry, asked = launch.entry, launch.request
    if entry and entry.own_code and not any(a.key == TRUST for a in asked.given):
        yield UsageError(
            f"{entry.hub_id} comes with its own Python code, and vLLM starts it only with "
            f"--{TRUST}, which runs that code on every host",
            hint=f"read its *.py files, then: clusterctl serve {asked.model} -- --{TRUST}",
        )


def engine_arguments(launch: Launch) -> tuple[Argument, ...]:
    """Return all flags that do not depend on the layout, for planning memory."""
    shape, given = launch.shape, launch.request.given
    least = least_step(shape, launch.version)
    limits = batch_limits(launch.defaults, launch.limits, least=least)
    # If the user gives one of the two limits, the other follows: vLLM requires at least as many
    # batched tokens as sequences.
    sequences = min(limits.sequences, _number(given, "max-num-batched-tokens", limits.sequences))
    tokens = max(limits.tokens, _number(given, "max-num-seqs", limits.tokens))
    defaults = [Argument("max-num-seqs", (str(sequences),))]
    # A text may have to fit into one step: vLLM refuses fewer tokens than --max-model-len for an
    # encoder and for a decoder that embeds by the mean of a text; its own default suffices there.
    in_one_step = last_value(given, "runner") == "pooling" or bool(shape and shape.both_ways)
    if _knows(launch.version, CHUNKED_PREFILL_SINCE) and not in_one_step:
        defaults.append(Argument("max-num-batched-tokens", (str(tokens),)))
    if _knows(launch.version, SHUTDOWN_TIMEOUT_SINCE):
        defaults.append(Argument("shutdown-timeout", (str(deadlines.SHUTDOWN),)))
    if launch.defaults.eager:
        defaults.append(Argument("enforce-eager"))
    if not _reads_text_alone(shape) and _knows(launch.version, MEDIA_DOMAINS_SINCE):
        defaults.append(Argument("allowed-media-domains", (NO_DOMAIN,)))
    if launch.request.sleeps and launch.defaults.sleeps:
        defaults.append(Argument("enable-sleep-mode"))
    if launch.random_weights:
        defaults.append(Argument("load-format", ("dummy",)))
    catalogued: tuple[str, ...] = ()
    if launch.entry:
        catalogued = launch.entry.tokens(launch.version, launch.capability)
    return lay_over(defaults, parse_arguments(catalogued, origin=CATALOGUE), given)


def _reads_text_alone(shape: ModelShape | None) -> bool:
    """Whether it is known that a model takes no pictures, sound or video."""
    if shape is None or shape.multimodal or shape.crosses:
        return False
    return shape.encoder or shape.architecture in FAMILIES


def serve_argv(launch: Launch) -> list[str]:
    """Return the argv `vllm serve MODEL ...`. Raises what `serve_arguments` raises."""
    return ["vllm", "serve", launch.model_argument, *render(serve_arguments(launch))]


def _number(given: Iterable[Argument], name: str, otherwise: int) -> int:
    """Return the user's number, or `otherwise` if absent or in a form like 2k, which vLLM reads."""
    text = last_value(given, name)
    return int(text) if text is not None and text.isdecimal() else otherwise


def _knows(version: Version | None, since: Version) -> bool:
    return version is None or version >= since
