"""The vLLM options that affect memory: parsed from arguments, checked, and completed by defaults.

`parse_options` reads the given ones. `settle` decides the values that vLLM will use, since its
defaults depend on the model and the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.errors import ClusterctlError, UsageError, raise_all
from clusterctl.models.quantized import requested
from clusterctl.models.shape import ModelShape, Quantization
from clusterctl.planning.hardware import GpuModel
from clusterctl.planning.kv_cache import CPU_BLOCK, DEFAULT_BLOCK, LATENT_BLOCK
from clusterctl.planning.overheads import Batch
from clusterctl.planning.rules import Rules, Sampler, has_second_runner
from clusterctl.serving.arguments import BatchLimits
from clusterctl.serving.vllm_flags import Argument, parse_arguments
from clusterctl.units import GIB


class UnknownValue(UsageError):
    """A value that is unknown here, but may be valid in a newer vLLM."""


AUTO_LENGTH = -1  # --max-model-len auto: vLLM uses the longest context that fits


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options as given; None means vLLM's default. Sizes in GiB, lengths in tokens."""

    max_model_len: int | None = None
    utilization: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_dtype: str = "auto"
    dtype: str = "auto"
    quantization: str | None = None
    enforce_eager: bool = False
    block_size: int | None = None
    cpu_offload_gib: float = 0.0
    kv_cache_bytes: int | None = None
    async_scheduling: bool = True
    hybrid_cache: bool = True
    language_model_only: bool = False
    second_runner: bool | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    partition: tuple[int, ...] = ()

    @property
    def cache_element_bytes(self) -> int:
        """Bytes of an element of a cached key or value."""
        return 1 if self.kv_cache_dtype.startswith("fp8") else 2


_LENGTH = re.compile(r"^(\d{1,12})(?:\.(\d{1,6}))?\s*([kKmMgG]?)$")
_FACTORS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}
_KV_DTYPES = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla")
_DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")


def parse_length(text: str) -> int:
    """Parse a length as vLLM does: `131072`, `256K` (x 1024), `256k` (x 1000); `auto` is -1.

    Lower case means thousands, as in vLLM's `human_readable_int`. Raises ValueError.
    """
    if text.strip().lower() in ("auto", "-1"):
        return AUTO_LENGTH
    match = _LENGTH.match(text.strip())
    if match is None or (match[2] and match[3] not in ("k", "m", "g")):
        raise ValueError("a number of tokens such as 131072, 128K or auto")
    value = int(float(f"{match[1]}.{match[2] or 0}") * _FACTORS[match[3]])
    if value <= 0:
        raise ValueError("more than 0")
    return value


def _count(text: str) -> int:
    value = parse_length(text)
    if value <= 0:
        raise ValueError("more than 0")
    return value


def _utilization(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        share = f"{value / 100:g}" if 1 < value <= 100 else "0.9"
        raise ValueError(f"a share between 0 and 1, such as {share}")
    return value


def _gib(text: str) -> float:
    value = float(text)
    if not 0 <= value < 65536:
        raise ValueError("a size in GiB")
    return value


class _NotListedError(ValueError):
    """The value is not in clusterctl's list of allowed values."""


def _one_of(*allowed: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in allowed:
            raise _NotListedError(f"one of {', '.join(allowed)}")
        return text

    return check


def _partition(text: str) -> tuple[int, ...]:
    layers = tuple(int(part) for part in text.split(","))
    if any(count < 0 for count in layers):
        raise ValueError("layers per stage, such as 13,51")
    return layers


_READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "max-model-len": ("max_model_len", parse_length),
    "gpu-memory-utilization": ("utilization", _utilization),
    "max-num-seqs": ("max_num_seqs", _count),
    "max-num-batched-tokens": ("max_num_batched_tokens", _count),
    "kv-cache-dtype": ("kv_cache_dtype", _one_of(*_KV_DTYPES)),
    "dtype": ("dtype", _one_of(*_DTYPES)),
    "quantization": ("quantization", str),
    "block-size": ("block_size", _count),
    "cpu-offload-gb": ("cpu_offload_gib", _gib),
    "kv-cache-memory-bytes": ("kv_cache_bytes", _count),
    "tensor-parallel-size": ("tp", _count),
    "pipeline-parallel-size": ("pp", _count),
    "data-parallel-size": ("dp", _count),
}

_SWITCHES: dict[str, tuple[str, bool]] = {
    "enforce-eager": ("enforce_eager", True),
    "async-scheduling": ("async_scheduling", True),
    "disable-hybrid-kv-cache-manager": ("hybrid_cache", False),
    "language-model-only": ("language_model_only", True),
}


def parse_options(
    arguments: Sequence[str] | Sequence[Argument], env: Mapping[str, str] | None = None
) -> ServeOptions:
    """Parse the options from arguments of `vllm serve`, ignoring all others.

    `env` has the variables of vLLM's process, of which VLLM_CPU_KVCACHE_SPACE (GiB),
    VLLM_PP_LAYER_PARTITION and VLLM_USE_V2_MODEL_RUNNER are read. Raises UsageError, or Problems,
    for all values that vLLM would refuse, and UnknownValue for one that a newer vLLM may accept.
    """
    errors: list[ClusterctlError] = []
    values: dict[str, Any] = {}
    env = env or {}
    space = env.get("VLLM_CPU_KVCACHE_SPACE")
    if space:
        found = _checked("VLLM_CPU_KVCACHE_SPACE", space, _gib, errors)
        values["kv_cache_bytes"] = int(found * GIB) if found else None
    layers = env.get("VLLM_PP_LAYER_PARTITION")
    if layers:
        values["partition"] = _checked("VLLM_PP_LAYER_PARTITION", layers, _partition, errors) or ()
    runner = env.get("VLLM_USE_V2_MODEL_RUNNER")
    if runner in ("0", "1"):
        values["second_runner"] = runner == "1"
    words = [item for item in arguments if isinstance(item, str)]
    given = [item for item in arguments if isinstance(item, Argument)]
    for argument in (*parse_arguments(words), *given):
        if argument.key in _SWITCHES:
            field, when_given = _SWITCHES[argument.key]
            values[field] = when_given != argument.negated
        elif argument.key in _READERS and len(argument.values) != 1:
            errors.append(UsageError(f"{argument.flag} takes one value", hint="vllm serve --help"))
        elif argument.key in _READERS:
            field, reader = _READERS[argument.key]
            values[field] = _checked(argument.flag, argument.values[0], reader, errors)
    raise_all(errors)
    return replace(ServeOptions(), **values)


def _checked(
    flag: str, text: str, reader: Callable[[str], Any], errors: list[ClusterctlError]
) -> Any:
    try:
        return reader(text)
    except ValueError as refused:
        reason = str(refused)
        wanted = "a number" if reason.startswith(("could not", "invalid literal")) else reason
        kind = UnknownValue if isinstance(refused, _NotListedError) else UsageError
        errors.append(kind(f"{flag} {text}: vLLM wants {wanted}", hint="vllm serve --help"))
        return None


_LARGE_GPU_GIB = 70
_HUGE_GPU_GIB = 160
_V0_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Settings:
    """The options with all defaults decided. Lengths in tokens."""

    max_model_len: int
    automatic_length: bool
    utilization: float
    batch: Batch
    block_size: int
    element_bytes: int  # Bytes of an element of a cached key or value
    in_flight: int  # Tokens that are scheduled and not settled
    quantization: Quantization | None
    whole_windows: bool
    second_runner: bool
    sampler: Sampler


def settle(
    shape: ModelShape, options: ServeOptions, rules: Rules, head: GpuModel, tp: int = 1, pp: int = 1
) -> Settings:
    """Fill in vLLM's defaults.

    `head` is the GPU of the process that starts the engine: vLLM takes the batch defaults from it
    alone, whatever GPUs the other ranks have.
    """
    length = options.max_model_len
    wanted = shape.context if length is None or length == AUTO_LENGTH else length
    default = default_batch(rules, head, wanted, tp * pp)
    requests = options.max_num_seqs or default.requests
    tokens = options.max_num_batched_tokens or max(default.tokens, requests)
    storage = requested(options.quantization, shape.quantization)
    if storage and storage.method == "mxfp4" and rules.triton_mxfp4 and head.is_hopper:
        storage = replace(storage, padded=False)
    second = options.second_runner
    if second is None:
        second = has_second_runner(shape, rules.version, quantized=storage is not None)
    # `max_concurrent_batches` in config/vllm.py
    batches = pp if rules.in_flight_batches else 1
    if rules.in_flight_batches and options.async_scheduling and (second or pp == 1):
        batches += 1
    block_size = options.block_size
    if not block_size and head.is_cpu:
        block_size = DEFAULT_BLOCK if shape.is_latent else CPU_BLOCK
    elif not block_size:
        block_size = LATENT_BLOCK if shape.is_latent else DEFAULT_BLOCK
    return Settings(
        max_model_len=wanted,
        automatic_length=length == AUTO_LENGTH,
        utilization=options.utilization or rules.utilization,
        batch=Batch(tokens, min(requests, tokens)),
        block_size=block_size,
        element_bytes=options.cache_element_bytes,
        in_flight=tokens * batches,
        quantization=storage,
        whole_windows=rules.engine_v0 or not options.hybrid_cache or rules.version < (0, 9, 2),
        second_runner=second,
        sampler="gumbel" if second and rules.second_samples_plainly else rules.sampler,
    )


def own_limits(rules: Rules, gpus: Iterable[GpuModel]) -> BatchLimits | None:
    """Return vLLM's default limits on the GPU for which they are smallest; None without GPUs.
    `serve` passes them, so that the GPU of the head does not decide for the others."""
    found = [default_batch(rules, gpu, 0) for gpu in gpus if not gpu.is_cpu]
    smallest = min(found, key=lambda batch: (batch.tokens, batch.requests), default=None)
    return BatchLimits(smallest.requests, smallest.tokens) if smallest else None


def default_batch(rules: Rules, head: GpuModel, length: int, ranks: int = 1) -> Batch:
    """Return vLLM's default batch limits (engine/arg_utils.py, usage: API server).

    0.7, without chunked prefill, allows as many tokens as the context has, at least 2048.
    """
    if head.is_cpu:
        return Batch(2048 * ranks, 128 * ranks)
    if rules.engine_v0:
        return Batch(max(length, _V0_TOKENS), 256)
    if rules.widest_from_160_gib and head.memory_gib >= _HUGE_GPU_GIB:
        return Batch(16384, 1024)
    spared = rules.spares_a100 and "a100" in head.name.lower()
    if head.memory_gib >= _LARGE_GPU_GIB and not spared:
        return Batch(8192, 1024)
    return Batch(2048, 256)
