"""The transient peak of vLLM's profiling run: what one step takes besides weights and cache.

The run feeds --max-num-batched-tokens tokens through the layers and then samples for
--max-num-seqs requests; the larger of the two peaks counts (v1/worker/gpu_model_runner.py,
`profile_run`).
"""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.models.shape import DecoderLayer, ModelShape
from clusterctl.planning.allocator import GIB
from clusterctl.planning.hardware import GpuModel
from clusterctl.planning.rules import Rules, Sampler
from clusterctl.planning.weights import PipelineStage, vocabulary_rows

# Copies of float32[requests, vocabulary] alive while PyTorch sorts the logits: the bf16 logits
# (1/2), their float32 copy (1), sorted values (1) with int64 indices (2), and in ATen's
# segmented_sort_pairs_by_full_sort (Sort.cu) two arrays of int2 pairs (2 + 2) and the sorted keys
# (1). Logs of vLLM 0.7.1 and 0.7.2 print 1.40 and 1.39 GiB, which are 9.55 copies each.
_SORTED_COPIES = 9.5

# With top-k/top-p by pivots: bf16 logits (1/2), float32 logits (1), probabilities (1) and the
# exponential noise that samples from them (1).
_PIVOT_COPIES = 3.5


_GUMBEL_COPIES = 1.5
_GUMBEL_BLOCK = 1024
# The second runner, which profiles sampling without top-k and top-p: bf16 logits (1/2) and their
# float32 copy (1); noise is drawn inside the kernel, which leaves an int64 and a float32 for
# every 1024 logits (v1/worker/gpu/sample/gumbel.py). 0.26, and 0.28 to 0.32 for requests without
# parameters of their own, do without the copy: one too many is counted for them.
_GUMBEL_BLOCK_BYTES = 12

# Compute capability x 10 from which vLLM prefers Triton to Marlin for mxfp4 experts.
_TRITON_MXFP4 = 90


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step processes at most: `tokens` tokens for `requests` requests."""

    tokens: int
    requests: int


@dataclass(frozen=True, slots=True)
class Profile:
    """How the profiling run samples, and whether it compiles the model first."""

    sampler: Sampler
    compiles: bool


def activation_gib(
    shape: ModelShape,
    stage: PipelineStage,
    batch: Batch,
    rules: Rules,
    gpu: GpuModel,
    profile: Profile,
    *,
    first_rank: bool = True,
) -> float:
    """GiB that one rank needs for a moment. `first_rank`: rank 0 of its TP group."""
    kept = _expert_workspace(shape, stage, batch, gpu)
    layers = _layers_peak(shape, stage, batch) + kept
    sampler = 0
    if stage.has_head and (first_rank or not rules.engine_v0):
        held = batch.tokens * shape.hidden * 2  # the hidden states stay while sampling
        held += kept if rules.keeps_workspace else 0
        sampler = held + _sampler_peak(shape, batch, profile.sampler, gpu.multiprocessors)
    tuning = _tuning_peak(shape, stage, batch) if profile.compiles else 0
    return max(layers, sampler, tuning) / GIB


def _sampler_peak(shape: ModelShape, batch: Batch, sampler: Sampler, multiprocessors: int) -> int:
    row = shape.vocab * 4
    requests = min(batch.requests, batch.tokens)
    if sampler == "sort":
        return int(_SORTED_COPIES * requests * row)
    if sampler == "gumbel":
        blocks = -(-shape.vocab // _GUMBEL_BLOCK) * _GUMBEL_BLOCK_BYTES
        chosen = shape.hidden * 2  # the hidden state of its last token, copied out
        return int(requests * (_GUMBEL_COPIES * row + blocks + chosen))
    # the kernel's scratch: one row of the vocabulary for each program, one program per SM
    return int(_PIVOT_COPIES * requests * row) + min(multiprocessors, requests) * row


def _tuning_peak(shape: ModelShape, stage: PipelineStage, batch: Batch) -> int:
    """What compiling takes the first time: PyTorch tunes each kernel on arguments that it makes
    up in full size (torch/_inductor/standalone_compile.py sets triton.autotune_at_compile_time).
    The largest is the embedding table, with the embeddings and, in the same kernel unless an
    all-reduce comes between, the first norm of them. A start that finds the compiled model in
    its cache does without: 1.19 GiB became 0.27 for Qwen3-8B, 256 requests and 2048 tokens on
    an H200 (vLLM 0.25.1). With a vision tower embeddings are looked up outside the compiled part.
    """
    if not stage.has_embedding or shape.tower:
        return 0
    made = 1 if stage.tp > 1 else 2
    return 2 * shape.hidden * (vocabulary_rows(shape.vocab, stage.tp) + made * batch.tokens)


def _layers_peak(shape: ModelShape, stage: PipelineStage, batch: Batch) -> int:
    """The widest layer, beside its input, the residual and the normed copy of both."""
    layers = set(shape.layers[stage.first : stage.last])
    widest = max((_layer_elements(layer, stage.tp) for layer in layers), default=0)
    return batch.tokens * 2 * (3 * shape.hidden + widest)


def _layer_elements(layer: DecoderLayer, tp: int) -> int:
    """bf16 elements per token that a layer's feed-forward or attention keeps at once."""
    found = [0]
    if layer.mlp:
        found.append((3 if layer.mlp.gated else 2) * -(-layer.mlp.width // tp))
    if layer.attention:
        heads = layer.attention
        found.append((2 * heads.heads + 2 * heads.kv_heads) * heads.head_dim // tp)
    return max(found)


def _expert_workspace(shape: ModelShape, stage: PipelineStage, batch: Batch, gpu: GpuModel) -> int:
    """Bytes of the two buffers of fused experts: for each token and expert of its own, the wider
    of a product and the hidden state (`workspace_shapes` in fused_moe/experts/triton_moe.py and
    marlin_moe.py). The Triton kernels for mxfp4 on Hopper and newer have none.
    """
    storage = shape.quantization
    if storage and storage.method == "mxfp4" and gpu.capability >= _TRITON_MXFP4:
        return 0
    rows = [
        experts.per_token * (max(width, shape.hidden) + max(2 * width, shape.hidden))
        for layer in set(shape.layers[stage.first : stage.last])
        if (experts := layer.experts)
        for width in [-(-experts.width // stage.tp)]
    ]
    return 2 * batch.tokens * max(rows, default=0)
