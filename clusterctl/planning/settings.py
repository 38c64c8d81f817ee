"""What vLLM will run with once its defaults are filled in: they depend on model and GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from clusterctl.models.quantized import requested
from clusterctl.models.shape import ModelShape, Quantization
from clusterctl.planning.activations import Batch
from clusterctl.planning.hardware import GpuModel
from clusterctl.planning.kv_cache import CPU_BLOCK, DEFAULT_BLOCK, LATENT_BLOCK
from clusterctl.planning.options import AUTO_LENGTH, ServeOptions
from clusterctl.planning.rules import Rules, Sampler, has_second_runner

_LARGE_GPU_GIB = 70
_HUGE_GPU_GIB = 160
_V0_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Settings:
    """Every default decided. Lengths in tokens; `element_bytes`: of a cached key or value."""

    max_model_len: int
    automatic_length: bool
    utilization: float
    batch: Batch
    block_size: int
    element_bytes: int
    in_flight: int
    quantization: Quantization | None
    whole_windows: bool
    second_runner: bool
    sampler: Sampler


def settle(
    shape: ModelShape, options: ServeOptions, rules: Rules, head: GpuModel, tp: int = 1, pp: int = 1
) -> Settings:
    """Fill in vLLM's defaults. `head`: the GPU of the process that starts the engine; vLLM takes
    the batch defaults from it alone, whatever the other ranks have."""
    length = options.max_model_len
    wanted = shape.context if length is None or length == AUTO_LENGTH else length
    batch = _batch(options, rules, head, wanted, tp * pp)
    storage = _storage(shape, options, rules, head)
    second = _runs_second(shape, options, rules, quantized=storage is not None)
    return Settings(
        max_model_len=wanted,
        automatic_length=length == AUTO_LENGTH,
        utilization=options.utilization or rules.utilization,
        batch=batch,
        block_size=_block_size(shape, options, head),
        element_bytes=1 if options.kv_cache_dtype.startswith("fp8") else 2,
        in_flight=batch.tokens * _batches(options, rules, pp, second_runner=second),
        quantization=storage,
        whole_windows=rules.engine_v0 or not options.hybrid_cache or rules.version < (0, 9, 2),
        second_runner=second,
        sampler="gumbel" if second and rules.second_samples_plainly else rules.sampler,
    )


def _storage(
    shape: ModelShape, options: ServeOptions, rules: Rules, head: GpuModel
) -> Quantization | None:
    """How weights are stored on this GPU."""
    storage = requested(options.quantization, shape.quantization)
    if storage and storage.method == "mxfp4" and rules.triton_mxfp4 and head.is_hopper:
        return replace(storage, padded=False)
    return storage


def _runs_second(
    shape: ModelShape, options: ServeOptions, rules: Rules, *, quantized: bool
) -> bool:
    if options.second_runner is not None:
        return options.second_runner
    return has_second_runner(shape, rules.version, quantized=quantized)


def _batches(options: ServeOptions, rules: Rules, pp: int, *, second_runner: bool) -> int:
    """Batches in flight (`max_concurrent_batches` in config/vllm.py)."""
    if not rules.in_flight_batches:
        return 1
    if options.async_scheduling and (second_runner or pp == 1):
        return pp + 1
    return pp


def default_batch(rules: Rules, head: GpuModel, length: int, ranks: int = 1) -> Batch:
    """vLLM's own batch when none is asked for (engine/arg_utils.py, usage: API server).

    0.7 without chunked prefill: as many tokens as the context has, at least 2048.
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


def _batch(options: ServeOptions, rules: Rules, head: GpuModel, length: int, ranks: int) -> Batch:
    default = default_batch(rules, head, length, ranks)
    requests = options.max_num_seqs or default.requests
    tokens = options.max_num_batched_tokens or max(default.tokens, requests)
    return Batch(tokens, min(requests, tokens))


def _block_size(shape: ModelShape, options: ServeOptions, head: GpuModel) -> int:
    if options.block_size:
        return options.block_size
    if head.is_cpu:
        return DEFAULT_BLOCK if shape.is_latent else CPU_BLOCK
    return LATENT_BLOCK if shape.is_latent else DEFAULT_BLOCK
