"""The transient peak of vLLM's profiling run: what one step takes besides weights and cache.

The run feeds --max-num-batched-tokens tokens through the layers and then samples for
--max-num-seqs requests; the larger of the two peaks counts (v1/worker/gpu_model_runner.py,
`profile_run`).
"""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.serving.fit.allocator import GIB
from clusterctl.serving.fit.rules import Rules
from clusterctl.serving.fit.shape import Layer, ModelShape
from clusterctl.serving.fit.weights import Stage

_SORTED_COPIES = 9.5
"""Copies of float32[requests, vocabulary] alive while PyTorch sorts the logits: the bf16 logits
(1/2), their float32 copy (1), sorted values (1) with int64 indices (2), and in ATen's
segmented_sort_pairs_by_full_sort (Sort.cu) two arrays of int2 pairs (2 + 2) and the sorted keys
(1). Logs of vLLM 0.7.1 and 0.7.2 print 1.40 and 1.39 GiB, which
are 9.55 copies each."""

_PIVOT_COPIES = 3.5
"""With top-k/top-p by pivots: bf16 logits (1/2), float32 logits (1), probabilities (1) and the
exponential noise that samples from them (1)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step processes at most: `tokens` tokens for `requests` requests."""

    tokens: int
    requests: int


def activation_gib(
    shape: ModelShape,
    stage: Stage,
    batch: Batch,
    rules: Rules,
    *,
    multiprocessors: int,
    first_rank: bool = True,
) -> float:
    """GiB that one rank needs for a moment. `first_rank`: rank 0 of its TP group."""
    layers = _layers_peak(shape, stage, batch)
    sampler = 0
    if stage.has_head and (first_rank or not rules.engine_v0):
        held = batch.tokens * shape.hidden * 2  # the hidden states stay while sampling
        sampler = held + _sampler_peak(shape, batch, rules, multiprocessors)
    return max(layers, sampler) / GIB


def _sampler_peak(shape: ModelShape, batch: Batch, rules: Rules, multiprocessors: int) -> int:
    row = shape.vocab * 4
    requests = min(batch.requests, batch.tokens)
    if rules.sampler == "sort":
        return int(_SORTED_COPIES * requests * row)
    # the kernel's scratch: one row of the vocabulary for each program, one program per SM
    return int(_PIVOT_COPIES * requests * row) + min(multiprocessors, requests) * row


def _layers_peak(shape: ModelShape, stage: Stage, batch: Batch) -> int:
    widest = max(
        (
            _layer_elements(layer, shape.hidden, stage.tp)
            for layer in shape.layers[stage.first : stage.last]
        ),
        default=0,
    )
    residual = 2 * shape.hidden  # the residual and its normed copy
    return batch.tokens * 2 * (residual + widest)


def _layer_elements(layer: Layer, hidden: int, tp: int) -> int:
    """bf16 elements per token that a layer's feed-forward or attention keeps at once."""
    found = [0]
    if layer.mlp:
        found.append((3 if layer.mlp.gated else 2) * -(-layer.mlp.width // tp))
    if layer.experts:
        width = -(-layer.experts.width // tp)
        # fused_moe.py: one buffer serves both products, the activation has its own
        found.append(layer.experts.per_token * (max(2 * width, hidden) + width))
    if layer.attention:
        heads = layer.attention
        found.append((2 * heads.heads + 2 * heads.kv_heads) * heads.head_dim // tp)
    return max(found)
