"""Memory of a rank besides weights and KV cache: activations, runtime, CUDA graphs.

Activations are the transient peak of vLLM's profiling run. It feeds --max-num-batched-tokens tokens
through the layers and then samples for --max-num-seqs requests; the larger of the two peaks counts
(v1/worker/gpu_model_runner.py, `profile_run`).

Runtime and graphs are measured, not derived. They are the least certain figures of a forecast;
`margin_gib` returns their error, and measurements of the same GPU and image (`Measured`) take
precedence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clusterctl.models.shape import DecoderLayer, ModelShape, Tower
from clusterctl.planning.hardware import GpuModel
from clusterctl.planning.rules import Rules, Sampler
from clusterctl.planning.weights import PipelineStage, vocabulary_rows
from clusterctl.units import GIB

# The link between ranks of a tensor parallel group; `none` for a single rank. `nvlink-plain` is
# NVLink without NCCL's multicast, NVLS.
Fabric = Literal["none", "nvlink", "nvlink-plain", "pcie", "network"]

# Where replicas are that divide the experts
Exchange = Literal["in a host", "over hosts"]


@dataclass(frozen=True, slots=True)
class Measured:
    """Overheads reported by an earlier start on a host, in GiB; None if unknown. They apply to
    starts of the same model, layout and settings: for others, they made forecasts worse by up to
    1.2 % of the KV cache (docs/fit.md)."""

    runtime_gib: float | None = None
    graphs_gib: float | None = None
    settings: str = ""  # `settings_key` of that start; empty: any


_V0_ALONE = 0.09
_V0_JOINED = 0.40  # `non_torch_memory` in logs of vLLM 0.7.1 on one V100 and 0.7.2 on two RTX 3090

# CUDA modules, cuBLAS workspaces and buffers of the model runner: 0.24 to 0.27 GiB outside
# PyTorch in 40 starts of vLLM 0.19 on an H100 (llm-d-planner, accuracy/results/v0.19.0; Granite
# took 0.46), and 0.05 of PyTorch's own beyond the activations.
_ALONE = 0.30

# With NCCL: 0.40 over PCIe (two RTX 3090, vLLM 0.7.2); 2.06 to 2.10 with TP 2 and NVLink in the
# same H100 starts, plus the 0.05. With NCCL_NVLS_ENABLE=0, vLLM 0.25.1 prints 0.54 with TP 2 for
# Qwen2.5-1.5B on two H100 (2026-11-26) and Qwen3-8B and Llama-70B on two H200, 0.57 for
# Qwen3-30B-A3B, whether all-reduce is vLLM's own or NCCL's, with CUDA graphs or without. So NVLS
# seems to take the rest; with it on, vLLM 0.25 was not measured. Over sockets 0.08.
_JOINED: dict[Fabric, float] = {
    "none": _ALONE,
    "pcie": 0.40,
    "network": 0.40,
    "nvlink": 2.12,
    "nvlink-plain": 0.60,
}

_NVLINK_MORE = 0.10  # TP 4 and NVLink: 2.13 to 2.21 in the same starts

# How far starts of the same kind deviated from these figures.
_SPREAD: dict[Fabric, float] = {
    "none": 0.15,
    "pcie": 0.4,
    "network": 0.8,
    "nvlink": 0.8,
    "nvlink-plain": 0.15,
}

_GRAPHS_ALONE = 0.9
# vLLM 0.18 and 0.19 print 0.42, 0.86, 0.93 and 1.11 GiB as their own estimate on one GPU; 0.7.2
# and 0.8.5 took 0.85 and 1.99 with TP 2: the middle of each.
_GRAPHS_JOINED = 1.6
# Replicas that exchange tokens between experts, by vLLM 0.25.1's own estimate: 1.8 GiB in one host
# (two H200), 2.41 over two hosts (two and four H200, four H100).
_GRAPHS_EXCHANGING: dict[Exchange, float] = {"in a host": 1.8, "over hosts": 2.4}

# Graphs are captured for batches of up to twice --max-num-seqs requests. With 2 of them on two
# RTX 3090, 4.99 GiB were left for the cache (talos-argocd-proxmox#1995), which leaves 1.0 to them.
_GRAPHS_OF_FEW = 1.0
_FEW_REQUESTS = 8

_GRAPHS_SPREAD = 0.5


def runtime_gib(rules: Rules, tp: int, fabric: Fabric, measured: Measured | None = None) -> float:
    """Return the GiB outside weights, activations and graphs."""
    if measured and measured.runtime_gib is not None:
        return measured.runtime_gib
    if rules.engine_v0:
        return _V0_JOINED if tp > 1 else _V0_ALONE
    more = _NVLINK_MORE if fabric == "nvlink" and tp > 2 else 0.0
    return _JOINED[fabric] + more if tp > 1 else _ALONE


def graphs_gib(
    tp: int,
    requests: int,
    *,
    eager: bool,
    exchanging: Exchange | None = None,
    measured: Measured | None = None,
) -> float:
    """Return the GiB of captured CUDA graphs for batches of that many requests; 0 with
    --enforce-eager. `exchanging`: where the replicas are that divide the experts."""
    if eager:
        return 0.0
    if measured and measured.graphs_gib is not None:
        return measured.graphs_gib
    if exchanging:
        return _GRAPHS_EXCHANGING[exchanging]
    joined = _GRAPHS_OF_FEW if requests <= _FEW_REQUESTS else _GRAPHS_JOINED
    return joined if tp > 1 else _GRAPHS_ALONE


def margin_gib(
    fabric: Fabric,
    *,
    charged: bool,
    unknown: bool,
    weights_gib: float,
    measured: Measured | None = None,
) -> float:
    """Return the possible error, in GiB, of a rank's free memory.

    `charged`: vLLM deducts CUDA graphs. `unknown`: the model's shape has assumptions, which adds a
    tenth of its weights.
    """
    spread = 0.05 if measured and measured.runtime_gib is not None else _SPREAD[fabric]
    if charged and not (measured and measured.graphs_gib is not None):
        spread += _GRAPHS_SPREAD
    return spread + (0.1 * weights_gib if unknown else 0.003 * weights_gib)


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
# float32 copy (1); noise is drawn inside the kernel, which leaves an int64 and a float32 for every
# 1024 logits (v1/worker/gpu/sample/gumbel.py). 0.26, and 0.28 to 0.32 for requests without
# parameters of their own, work without the copy: for them this is one copy too many.
_GUMBEL_BLOCK_BYTES = 12

# Compute capability x 10 from which vLLM prefers Triton to Marlin for mxfp4 experts.
_TRITON_MXFP4 = 90


@dataclass(frozen=True, slots=True)
class Batch:
    """The limits of one step: `tokens` tokens for `requests` requests."""

    tokens: int
    requests: int


def activation_gib(
    shape: ModelShape,
    stage: PipelineStage,
    batch: Batch,
    rules: Rules,
    gpu: GpuModel,
    sampler: Sampler,
    *,
    compiles: bool,
    first_rank: bool = True,
    sharing: int = 1,
) -> float:
    """Return the peak in GiB on one rank. `sampler`: how the profiling run samples; `compiles`: it
    compiles the model first; `first_rank`: it is rank 0 of its TP group; `sharing`: replicas among
    which the experts are divided, each of which computes for the tokens of all of them."""
    kinds, tokens = set(shape.layers[stage.first : stage.last]), batch.tokens
    kept = _expert_workspace(shape, kinds, stage.tp, sharing * tokens, gpu)
    # Their hidden states, gathered, and what the experts make of them (`AgRsAll2AllManager`)
    gathered = 2 * sharing * tokens * shape.hidden * 2 if sharing > 1 else 0
    widest = 0  # bf16 elements per token that a feed-forward or attention holds at once
    for layer in kinds:
        if layer.mlp:
            width = -(-layer.mlp.width // stage.tp)
            widest = max(widest, (3 if layer.mlp.gated else 2) * width)
        if heads := layer.attention:
            width = (2 * heads.heads + 2 * heads.kv_heads) * heads.head_dim // stage.tp
            widest = max(widest, width)
    # The widest layer, plus its input, the residual and the normed copy of both.
    peaks = [tokens * 2 * (3 * shape.hidden + widest) + kept + gathered]
    if stage.has_head and (first_rank or not rules.engine_v0):
        held = tokens * shape.hidden * 2  # hidden states stay allocated while sampling
        held += kept if rules.keeps_workspace else 0
        requests = min(batch.requests, tokens)
        if not shape.encoder:
            held += _sampler_peak(shape, requests, sampler, gpu.multiprocessors)
        peaks.append(held)
    if stage.has_embedding and shape.tower and shape.tower.merged and not rules.engine_v0:
        peaks.append(_picture_peak(shape.tower, stage.tp))
    if compiles and stage.has_embedding and not shape.tower:
        # The first compilation: PyTorch tunes each kernel on full-size dummy arguments
        # (torch/_inductor/standalone_compile.py sets triton.autotune_at_compile_time). The largest
        # is the embedding table, with the embeddings and, in the same kernel unless an all-reduce
        # comes between, their first norm. A start that finds the compiled model in its cache skips
        # this: 1.19 GiB became 0.27 for Qwen3-8B, 256 requests and 2048 tokens on an H200 (vLLM
        # 0.25.1). With a vision tower, embeddings are looked up outside the compiled part.
        made = 1 if stage.tp > 1 else 2
        rows = vocabulary_rows(shape.vocab, stage.tp) + made * tokens
        peaks.append(2 * shape.hidden * rows)
    return (max(peaks) + _streams_peak(shape, kinds, tokens)) / GIB


# What DeepSeek V4 takes beyond a model of one stream, in copies of its streams in bf16: 3.2 GiB
# with 8192 tokens, for TP 8 and for DP 8 (vllm-project/vllm#51454), 6.7 with 16384 (#44376).
_STREAM_COPIES = 13


def _streams_peak(shape: ModelShape, kinds: set[DecoderLayer], tokens: int) -> int:
    streams = {
        layer.attention.compressed.streams
        for layer in kinds
        if layer.attention and layer.attention.compressed
    }
    return _STREAM_COPIES * max(streams, default=0) * tokens * shape.hidden * 2


# The largest picture of Qwen's models: 16,777,216 pixels in patches of 16 x 16 (of 14 x 14 before)
_PATCHES = 65536


def _picture_peak(tower: Tower, tp: int) -> int:
    """Return the bytes that one image takes in the tower: the profiling run encodes the largest
    one. Queries, keys, values and the MLP are divided over the ranks."""
    wide = (3 * tower.hidden + tower.mlp_width) // (tp if tower.divided else 1)
    return _PATCHES * 2 * (3 * tower.hidden + wide)


def _sampler_peak(shape: ModelShape, requests: int, sampler: Sampler, multiprocessors: int) -> int:
    row = shape.vocab * 4
    if sampler == "sort":
        return int(_SORTED_COPIES * requests * row)
    if sampler == "gumbel":
        blocks = -(-shape.vocab // _GUMBEL_BLOCK) * _GUMBEL_BLOCK_BYTES
        chosen = shape.hidden * 2  # the hidden state of its last token, copied out
        return int(requests * (_GUMBEL_COPIES * row + blocks + chosen))
    # the kernel's scratch: one row of the vocabulary for each program, one program per SM
    return int(_PIVOT_COPIES * requests * row) + min(multiprocessors, requests) * row


def _expert_workspace(
    shape: ModelShape, kinds: set[DecoderLayer], tp: int, tokens: int, gpu: GpuModel
) -> int:
    """Return the bytes of the two buffers of fused experts.

    For each token and each of its experts they hold the wider of a product and the hidden state
    (`workspace_shapes` in fused_moe/experts/triton_moe.py and marlin_moe.py). The Triton kernels
    for mxfp4 on Hopper and newer have none.
    """
    storage = shape.quantization
    if storage and storage.method == "mxfp4" and gpu.capability >= _TRITON_MXFP4:
        return 0
    rows = [
        experts.per_token * (max(width, shape.hidden) + max(2 * width, shape.hidden))
        for layer in kinds
        if (experts := layer.experts)
        for width in [-(-experts.width // tp)]
    ]
    return 2 * tokens * max(rows, default=0)
