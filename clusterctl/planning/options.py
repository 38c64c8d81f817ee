"""The vLLM options that affect memory: parsed from arguments, checked, and completed by defaults.

`parse_options` reads the given ones. `settle` decides the values that vLLM will use, since its
defaults depend on the model and the GPU.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.errors import ClusterctlError, UsageError, raise_all
from clusterctl.models.catalogue import gpu_class
from clusterctl.models.quantized import requested
from clusterctl.models.shape import ModelShape, Quantization
from clusterctl.planning.adapters import AdapterRoom
from clusterctl.planning.hardware import GpuModel
from clusterctl.planning.kv_cache import (
    CPU_BLOCK,
    DEFAULT_BLOCK,
    LATENT_BLOCK,
    CacheRules,
    state_step,
)
from clusterctl.planning.overheads import Batch
from clusterctl.planning.rules import Rules, Sampler, has_second_runner
from clusterctl.serving.arguments import BatchLimits
from clusterctl.serving.vllm_flags import Argument, parse_arguments
from clusterctl.units import GIB


class UnknownValue(UsageError):
    """A value that is unknown to clusterctl, but may be valid in a newer vLLM."""


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
    multicast: bool = True  # NCCL may use NVLS where NVLink has it
    expert_parallel: bool = False
    prefix_caching: bool | None = None
    state_mode: str | None = None  # --mamba-cache-mode
    shared_context: int = 1  # --decode-context-parallel-size
    split_prefill: int = 1  # --prefill-context-parallel-size
    drafted: int = 0  # tokens that a drafter proposes
    drafter: str = ""  # its method
    adapters: bool = False  # --enable-lora
    adapter_slots: int = 1  # --max-loras
    adapter_rank: int = 16  # --max-lora-rank
    divides_adapters: bool = False  # --fully-sharded-loras
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    partition: tuple[int, ...] = ()

    @property
    def adapter_room(self) -> AdapterRoom | None:
        """What vLLM sets aside for adapters; None without --enable-lora."""
        room = AdapterRoom(self.adapter_slots, self.adapter_rank, self.divides_adapters)
        return room if self.adapters else None

    def cache_element_bytes(self, stored: str = "auto") -> float:
        """Return the bytes of an element of a cached key or value. `stored`: the dtype that the
        checkpoint specifies, which `auto` uses."""
        dtype = stored if self.kv_cache_dtype == "auto" else self.kv_cache_dtype
        return next((size for name, size in _ELEMENT_BYTES.items() if dtype.startswith(name)), 2)

    @property
    def cache_is_known(self) -> bool:
        """Whether the size of that format was compared with vLLM's."""
        return self.kv_cache_dtype.removesuffix("_e4m3").removesuffix("_e5m2") in (
            "auto", "bfloat16", "float16", "fp8", "fp8_inc", "fp8_ds_mla",
        )  # fmt: skip


_LENGTH = re.compile(r"^(\d{1,12})(?:\.(\d{1,6}))?\s*([kKmMgG]?)$")
_FACTORS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}
# CacheDType in vllm/config/cache.py of 0.33.
_KV_DTYPES = (
    "auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla",
    "nvfp4", "nvfp4_4over6", "nvfp4_ds_mla", "int4_per_token_head", "int8_per_token_head",
    "fp8_per_token_head", "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc",
    "turboquant_3bit_nc", "octave_k3v4", "octave_k3v3", "octave_k3v3_compact", "ultraquant_4bit",
)  # fmt: skip
# By the beginning of the name. 4 bits have a scale for each 16 elements (nvfp4) or for each head.
_ELEMENT_BYTES = {
    "fp8": 1, "int8": 1, "nvfp4": 0.5625, "int4": 0.53, "ultraquant": 0.5625,
    "turboquant_k8": 0.78, "turboquant": 0.53, "octave": 0.5,
}  # fmt: skip
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
    "decode-context-parallel-size": ("shared_context", _count),
    "prefill-context-parallel-size": ("split_prefill", _count),
    "mamba-cache-mode": ("state_mode", str),
    "max-loras": ("adapter_slots", _count),
    "max-lora-rank": ("adapter_rank", _count),
    "tensor-parallel-size": ("tp", _count),
    "pipeline-parallel-size": ("pp", _count),
    "data-parallel-size": ("dp", _count),
}

_SWITCHES: dict[str, tuple[str, bool]] = {
    "enforce-eager": ("enforce_eager", True),
    "async-scheduling": ("async_scheduling", True),
    "disable-hybrid-kv-cache-manager": ("hybrid_cache", False),
    "language-model-only": ("language_model_only", True),
    "enable-expert-parallel": ("expert_parallel", True),
    "enable-prefix-caching": ("prefix_caching", True),
    "enable-lora": ("adapters", True),
    "fully-sharded-loras": ("divides_adapters", True),
}


def parse_options(
    arguments: Sequence[str] | Sequence[Argument], env: Mapping[str, str] | None = None
) -> ServeOptions:
    """Parse the options from arguments of `vllm serve`, ignoring all others.

    `env` has the variables of vLLM's process, of which VLLM_CPU_KVCACHE_SPACE (GiB),
    VLLM_PP_LAYER_PARTITION, VLLM_USE_V2_MODEL_RUNNER and NCCL_NVLS_ENABLE are read. Raises
    UsageError, or Problems, for all values that vLLM would refuse, and UnknownValue for one that a
    newer vLLM may accept.
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
    values["multicast"] = env.get("NCCL_NVLS_ENABLE") != "0"
    words = [item for item in arguments if isinstance(item, str)]
    given = [item for item in arguments if isinstance(item, Argument)]
    for argument in (*parse_arguments(words), *given):
        if argument.key == "speculative-config":
            values.update(_drafter(argument))
        elif argument.key in _SWITCHES:
            field, when_given = _SWITCHES[argument.key]
            values[field] = when_given != argument.negated
        elif argument.key in _READERS and len(argument.values) != 1:
            errors.append(UsageError(f"{argument.flag} takes one value", hint="vllm serve --help"))
        elif argument.key in _READERS:
            field, reader = _READERS[argument.key]
            values[field] = _checked(argument.flag, argument.values[0], reader, errors)
    raise_all(errors)
    return replace(ServeOptions(), **values)


def _drafter(argument: Argument) -> dict[str, Any]:
    """Return the method and the tokens of --speculative-config, whole or in dotted parts."""
    part, value = argument.name.partition(".")[2], " ".join(argument.values)
    try:
        given = {part: value} if part else json.loads(value)
    except ValueError:
        return {"drafter": "unknown"}
    if not isinstance(given, dict):
        return {"drafter": "unknown"}
    found: dict[str, Any] = {}
    if "method" in given or "model" in given:
        found["drafter"] = str(given.get("method") or "draft model")
    tokens = str(given.get("num_speculative_tokens", ""))
    if tokens.isdecimal():
        found["drafted"] = int(tokens)
    return found


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
_V0_CHUNKED_BEYOND = 32 * 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """The options with all defaults decided. Lengths in tokens."""

    max_model_len: int
    automatic_length: bool
    utilization: float
    batch: Batch
    cache: CacheRules
    in_flight: int  # Tokens that are scheduled and not settled
    quantization: Quantization | None
    second_runner: bool
    sampler: Sampler


def settings_key(settings: Settings) -> str:
    """Return a few letters that distinguish these settings from others."""
    return hashlib.sha256(repr(settings).encode()).hexdigest()[:12]


def settle(
    shape: ModelShape, options: ServeOptions, rules: Rules, head: GpuModel, tp: int = 1, pp: int = 1
) -> Settings:
    """Fill in vLLM's defaults.

    `head` is the GPU of the process that starts the engine: vLLM takes the batch defaults only from
    it, whatever GPUs the other ranks have.
    """
    length = options.max_model_len
    wanted = shape.context if length is None or length == AUTO_LENGTH else length
    default = default_batch(rules, head, wanted, tp * pp)
    requests = options.max_num_seqs or default.requests
    # The text of an encoder has to fit into one step.
    least = max(requests, wanted if shape.encoder else 0)
    tokens = options.max_num_batched_tokens or max(default.tokens, least)
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
        cache=_cache_rules(shape, options, rules, head, block_size, tokens),
        in_flight=tokens * batches,
        quantization=storage,
        second_runner=second,
        sampler="gumbel" if second and rules.second_samples_plainly else rules.sampler,
    )


def _cache_rules(
    shape: ModelShape,
    options: ServeOptions,
    rules: Rules,
    head: GpuModel,
    block_size: int,
    batched: int,
) -> CacheRules:
    """Return what these options and this release determine about the cache."""
    caching = options.prefix_caching
    aligned = rules.aligns_states and not shape.attention_free if caching is None else caching
    if options.state_mode is not None:
        aligned = options.state_mode != "none"
    kinds = {state.kind for state in shape.states}
    checkpoints = aligned and rules.checkpoints_states
    # FlashInfer's kernels for delta nets and Kimi's own have one size of heads
    fitting = head.capability >= 90 and all(
        {state.head_dim, state.state_size} == {128} and (state.bounded or state.kind == "delta")
        for state in shape.states
    )
    exported = checkpoints and fitting and kinds in ({"delta"}, {"kimi"})
    more = exported or (checkpoints and kinds == {"mamba2"})
    blocks = 1 if not aligned else 3 if more else 2
    return CacheRules(
        block_size=block_size,
        element_bytes=options.cache_element_bytes(shape.cache_dtype),
        step=state_step(block_size, latent=shape.is_latent, exported=exported),
        state_blocks=blocks + options.drafted,
        drafted=options.drafted,
        whole=rules.engine_v0 or not options.hybrid_cache or rules.version < (0, 9, 2),
        shared_context=options.shared_context,  # Ranks that divide prompts each hold the whole
        # vLLM takes that layout for a dtype that is asked for, not for the checkpoint's own.
        sparse_rows=options.kv_cache_dtype.startswith("fp8"),
        encoded=batched if shape.crosses else 0,
    )


def own_limits(rules: Rules, gpus: Iterable[GpuModel]) -> BatchLimits | None:
    """Return vLLM's default limits on the GPU for which they are smallest; None without GPUs.
    `serve` passes them, so that the GPU of the head does not decide for the others."""
    found = [default_batch(rules, gpu, 0) for gpu in gpus if not gpu.is_cpu]
    smallest = min(found, key=lambda batch: (batch.tokens, batch.requests), default=None)
    return BatchLimits(smallest.requests, smallest.tokens) if smallest else None


def common_class(gpus: Iterable[GpuModel]) -> int:
    """Return the least compute capability, times ten, if the catalogue's flags are the same for all
    these GPUs, else 0."""
    capabilities = [gpu.capability for gpu in gpus if not gpu.is_cpu]
    classes = {gpu_class(capability) for capability in capabilities}
    return min(capabilities) if len(classes) == 1 else 0


def default_batch(rules: Rules, head: GpuModel, length: int, ranks: int = 1) -> Batch:
    """Return vLLM's default batch limits (engine/arg_utils.py, usage: API server).

    0.7, without chunked prefill, allows as many tokens as the context has, at least 2048.
    """
    if head.is_cpu:
        return Batch(2048 * ranks, 128 * ranks)
    if rules.engine_v0:
        chunked = rules.chunks_long_contexts and length > _V0_CHUNKED_BEYOND
        return Batch(_V0_TOKENS if chunked else max(length, _V0_TOKENS), 256)
    if rules.widest_from_160_gib and head.memory_gib >= _HUGE_GPU_GIB:
        return Batch(16384, 1024)
    spared = rules.spares_a100 and "a100" in head.name.lower()
    if head.memory_gib >= _LARGE_GPU_GIB and not spared:
        return Batch(8192, 1024)
    return Batch(2048, 256)
