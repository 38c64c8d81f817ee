"""Bytes of weights on one rank: the tensors that vLLM creates, split by TP and PP.

vLLM fuses q, k and v into one matrix and gate and up into another, splits both by rows and the
output projections by columns, replicates K and V heads if there are fewer than ranks, pads the
vocabulary to a multiple of 64, and keeps norms, routers and vision towers whole on every rank
(vllm/model_executor/layers/linear.py, vocab_parallel_embedding.py, fused_moe/layer.py). The "model
loading took" in the log adds cos/sin tables and the allocator's rounding.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from clusterctl.models.shape import (
    Attention,
    Compressed,
    DecoderLayer,
    Experts,
    Latent,
    ModelShape,
    Part,
    Quantization,
    State,
    Tower,
)
from clusterctl.units import GIB, MIB

# PyTorch's CUDA caching allocator (c10/cuda/CUDACachingAllocator.cpp): sizes are rounded up to 512
# bytes; blocks up to 1 MiB are taken from 2 MiB segments, up to 10 MiB from 20 MiB segments, larger
# ones get their own segment in steps of 2 MiB; the smallest sufficient free block is used first;
# and the rest of a large block is split off only if it exceeds 1 MiB, otherwise it counts as
# allocated. On a 7B model this is 57 MiB. With max_split_size_mb:20 blocks of 20 MiB and more are
# never split.
_SMALLEST_BLOCK = 512
_LARGEST_SMALL = 1 * MIB
_SMALL_SEGMENT = 2 * MIB
_OWN_SEGMENT_FROM = 10 * MIB
_SHARED_SEGMENT = 20 * MIB
_SEGMENT_STEP = 2 * MIB
_UNSPLIT_FROM = 20 * MIB


def round_up(value: int, step: int) -> int:
    """Return the smallest multiple of `step` that is at least `value`."""
    return -(-value // step) * step


def allocated_bytes(sizes: Iterable[int], *, unsplit: bool = False) -> int:
    """Return `torch.cuda.max_memory_allocated` after creating tensors of these sizes in order,
    which is what vLLM's log prints: it counts the allocator's blocks and not the tensors.

    `unsplit` means max_split_size_mb:20, which vLLM 0.22 and newer set while loading.
    """
    free_small: list[int] = []
    free_large: list[int] = []
    total = 0
    for size in sizes:
        wanted = round_up(max(size, 1), _SMALLEST_BLOCK)
        small = wanted <= _LARGEST_SMALL
        if small:
            segment = _SMALL_SEGMENT
        elif wanted < _OWN_SEGMENT_FROM:
            segment = _SHARED_SEGMENT
        else:
            segment = round_up(wanted, _SEGMENT_STEP)
        if unsplit and wanted >= _UNSPLIT_FROM:
            total += segment
            continue
        free = free_small if small else free_large  # sorted
        index = bisect_left(free, wanted)
        block = free.pop(index) if index < len(free) else segment
        rest = block - wanted
        if rest >= _SMALLEST_BLOCK if small else rest > _LARGEST_SMALL:
            insort(free, rest)
            total += wanted
        else:
            total += block
    return total


_BITSANDBYTES_BLOCK = 64
# nf4 keeps one byte of scale for 64 weights and one float32 for 256 of these scales.
_BITSANDBYTES_OUTER_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Tensor:
    """One allocation. --cpu-offload-gb may move a `movable` one to host memory."""

    size: int
    movable: bool = True


def matrix(rows: int, columns: int, storage: Quantization | None) -> Iterator[Tensor]:
    """Yield a weight of `rows` x `columns` elements with its scales; 2 bytes each if
    not quantised."""
    elements = rows * columns
    if storage is None:
        yield Tensor(elements * 2)
    elif storage.method in ("fp8", "int8"):
        yield Tensor(elements)
        side = storage.block
        alone = rows * 4 if storage.channels or storage.method == "int8" else 4
        yield Tensor(-(-rows // side) * -(-columns // side) * 4 if side else alone)
    elif storage.method == "nvfp4":
        yield Tensor(elements // 2)
        yield Tensor(elements // storage.group)
        yield Tensor(4)  # the scale of the scales
    elif storage.method == "mxfp8":
        yield Tensor(elements)
        yield Tensor(elements // storage.group)
    elif storage.method == "bitsandbytes":
        yield Tensor(elements * storage.bits // 8)
        scales = elements // _BITSANDBYTES_BLOCK
        yield Tensor(scales + scales // _BITSANDBYTES_OUTER_BLOCK * 4, movable=False)
    elif storage.method == "mxfp4":
        yield Tensor(elements // 2)
        yield Tensor(elements // storage.group)
    else:
        # AWQ and GPTQ: packed integers, an fp16 scale per group, and zero points if asymmetric.
        groups = elements // (storage.group or columns)
        yield Tensor(elements * storage.bits // 8)
        yield Tensor(groups * 2)
        if storage.zeros:
            yield Tensor(groups * storage.bits // 8)


VOCABULARY_STEP = 64  # DEFAULT_VOCAB_PADDING_SIZE in vocab_parallel_embedding.py


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """Layers [first, last) of the model, on one of `tp` tensor parallel ranks."""

    first: int
    last: int
    tp: int
    has_embedding: bool
    has_head: bool


@dataclass(frozen=True, slots=True)
class _Cut:
    """How weights are cut: the model's width, the TP size, the quantization of its bulk, and how
    many ranks divide the experts: by number (`by_number`) or by width."""

    hidden: int
    tp: int
    quantization: Quantization | None
    among: int = 1
    by_number: bool = False

    def storage(self, layer: DecoderLayer, part: Part) -> Quantization | None:
        """Return how that part of a layer is stored."""
        if self.quantization is None:
            return None
        return dict(layer.stored).get(part, self.quantization)

    def linear(
        self, layer: DecoderLayer, part: Part, rows: int, columns: int, *, bias: bool = False
    ) -> Iterator[Tensor]:
        """Yield a weight of `rows` x `columns` elements on this rank, with scales and bias."""
        yield from matrix(rows, columns, self.storage(layer, part))
        if bias:
            yield Tensor(rows * 2)

    def part(self, width: int) -> int:
        """Return a rank's share of `width`."""
        return -(-width // self.tp)

    def whole(self, elements: int) -> Tensor:
        """Return a replicated tensor in the model's own dtype."""
        return Tensor(elements * 2)


@lru_cache(maxsize=1024)
def weight_bytes(
    shape: ModelShape,
    stage: PipelineStage,
    quantization: Quantization | None,
    offload: int = 0,
    *,
    unsplit: bool = False,
    replicas: int = 1,
    by_number: bool = False,
) -> int:
    """Return the bytes that "model loading took" will report for a rank.

    `offload` is --cpu-offload-gb in bytes: vLLM moves parameters of decoder layers, in order of
    creation, until that many bytes are moved; embeddings stay (models/utils.py,
    `maybe_offload_to_cpu`). `unsplit`: see `allocated_bytes`. `replicas`: data parallel ones share
    the experts, by width or by number (`by_number`; fused_moe/config.py,
    `FusedMoEParallelConfig.make`). Results are cached, since layouts share most of their stages.
    """
    cut = _Cut(shape.hidden, stage.tp, quantization, stage.tp * replicas, by_number)
    made: dict[DecoderLayer, tuple[Tensor, ...]] = {}  # layers repeat: split each kind once
    moved = 0
    sizes = [tensor.size for tensor in _tables(shape, stage)]
    for layer in shape.layers[stage.first : stage.last]:
        if layer not in made:
            parts = [*_mixer_and_mlp(layer, cut)]
            parts += _experts(layer, layer.experts, cut) if layer.experts else ()
            parts += [cut.whole(cut.hidden)] * layer.norms
            if layer.per_layer_input:
                parts += [cut.whole(cut.hidden * layer.per_layer_input)] * 2
            made[layer] = tuple(parts)
        for tensor in made[layer]:
            if tensor.movable and moved < offload:
                moved += tensor.size
            else:
                sizes.append(tensor.size)
    if stage.has_head:
        sizes.append(shape.hidden * 2)
        sizes += [shape.scores * 4] if shape.scores else []
        if not shape.tied:
            rows = vocabulary_rows(shape.vocab, stage.tp)
            sizes += (tensor.size for tensor in matrix(rows, shape.hidden, shape.head_stored))
    return allocated_bytes(sizes, unsplit=unsplit)


@dataclass(frozen=True, slots=True)
class WeightsRead:
    """Bytes of weights that a pass reads on a rank: experts, the rest of the layers, and the head,
    which only sampled tokens need."""

    layers: float
    experts: float
    head: float

    @property
    def total(self) -> float:
        return self.layers + self.experts + self.head


@lru_cache(maxsize=1024)
def weights_read(
    shape: ModelShape, stage: PipelineStage, quantization: Quantization | None, batch: int
) -> WeightsRead:
    """Return what a pass of `batch` tokens reads on a rank.

    Only experts chosen by a token are read: with E experts of which each token uses k, that is a
    share of 1 - (1 - k/E)^batch.
    """
    cut = _Cut(shape.hidden, stage.tp, quantization, stage.tp)
    of_layers = of_experts = 0.0
    for layer, count in Counter(shape.layers[stage.first : stage.last]).items():
        of_layers += count * sum(tensor.size for tensor in _mixer_and_mlp(layer, cut))
        if layer.experts:
            share = 1 - (1 - layer.experts.per_token / layer.experts.count) ** batch
            tensors = _experts(layer, layer.experts, cut)
            of_experts += count * share * sum(tensor.size for tensor in tensors)
    head = vocabulary_rows(shape.vocab, stage.tp) * shape.hidden * 2 if stage.has_head else 0
    return WeightsRead(of_layers, of_experts, head)


def _experts(layer: DecoderLayer, experts: Experts, cut: _Cut) -> Iterator[Tensor]:
    """Yield the experts of a layer on this rank, with the projections to their own width."""
    if experts.latent:
        for rows, columns in ((experts.latent, cut.hidden), (cut.hidden, experts.latent)):
            yield from cut.linear(layer, "latent", rows, columns)
    width = experts.width if cut.by_number else -(-experts.width // cut.among)
    count = -(-experts.count // cut.among) if cut.by_number else experts.count
    yield Tensor(experts.count * cut.hidden * 2)  # the router
    here, storage = replace(experts, count=count), cut.storage(layer, "experts")
    yield from expert_tensors(here, experts.latent or cut.hidden, width, storage)


def _mixer_and_mlp(layer: DecoderLayer, cut: _Cut) -> Iterator[Tensor]:
    if layer.state:
        yield from _state(layer, layer.state, cut)
    if layer.attention and layer.attention.latent:
        yield from _latent(layer, layer.attention, layer.attention.latent, cut)
    elif layer.attention and layer.attention.compressed:
        yield from _compressed(layer, layer.attention, layer.attention.compressed, cut)
    elif layer.attention:
        yield from _heads(layer, layer.attention, cut)
    if layer.cross:
        yield from _heads(layer, layer.cross, cut)
    if layer.mlp:
        part: Part = "shared" if layer.experts else "mlp"
        width = cut.part(layer.mlp.width)
        rows = (2 if layer.mlp.gated else 1) * width
        yield from cut.linear(layer, part, rows, cut.hidden, bias=layer.mlp.bias)
        yield from cut.linear(layer, part, cut.hidden, width)
        if layer.mlp.bias:
            yield cut.whole(cut.hidden)


def _state(layer: DecoderLayer, state: State, cut: _Cut) -> Iterator[Tensor]:
    """Yield the tensors of a layer that keeps a state (model_executor/layers/mamba/)."""
    heads, inner = state.heads // cut.tp, cut.part(state.heads * state.head_dim)
    mixed = inner + 2 * cut.part(groups_for(state, cut.tp) * state.state_size)
    yield Tensor(mixed * state.kernel * 2)
    if state.conv_bias:
        yield Tensor(mixed * 2)
    if state.kind == "conv":  # B, C and the input, each as wide as the model
        yield from cut.linear(layer, "state", 3 * inner, cut.hidden, bias=state.bias)
        yield from cut.linear(layer, "state_out", cut.hidden, inner)
    elif state.kind == "mamba1":
        yield from cut.linear(layer, "state", 2 * inner, cut.hidden)
        yield from cut.linear(layer, "state", state.rank + 2 * state.state_size, inner)
        yield from cut.linear(layer, "state", inner, state.rank, bias=True)
        yield Tensor(inner * state.state_size * 4)
        yield Tensor(inner * 4)
        yield from cut.linear(layer, "state_out", cut.hidden, inner)
    elif state.kind == "kimi":
        yield from cut.linear(layer, "state", 3 * inner + heads, cut.hidden)
        if state.rank:  # gates of low rank
            yield from cut.linear(layer, "state", 2 * state.rank, cut.hidden)
            yield from cut.linear(layer, "state", 2 * inner, state.rank)
        else:
            yield from cut.linear(layer, "state", inner + state.head_dim, cut.hidden)
            yield from cut.linear(layer, "state", inner, state.head_dim)
        yield Tensor(inner * 4)
        yield from cut.linear(layer, "state_out", cut.hidden, inner)
    elif state.kind == "mamba2":
        rows = inner + mixed + heads
        yield from cut.linear(layer, "state", rows, cut.hidden, bias=state.bias)
        yield Tensor(heads * 4)
        yield Tensor(heads * 4)
        yield Tensor(inner * 2)  # the gated norm
        yield from cut.linear(layer, "state_out", cut.hidden, inner)
    else:  # gated delta net, linear attention: queries, keys, values and the gate of the output
        yield from cut.linear(layer, "state", mixed + inner, cut.hidden)
        yield from cut.linear(layer, "small", 2 * heads, cut.hidden)
        yield Tensor(heads * 4)
        yield cut.whole(state.head_dim)
        yield from cut.linear(layer, "state_out", cut.hidden, inner)


def groups_for(state: State, tp: int) -> int:
    """Return the groups of B and C, including those added so that each rank has its own
    (`extra_groups_for_head_shards` in mamba_utils.py)."""
    if state.kind != "mamba2" or state.groups % tp == 0:
        return state.groups
    return tp


def _heads(layer: DecoderLayer, attention: Attention, cut: _Cut) -> Iterator[Tensor]:
    queries = attention.heads // cut.tp * attention.head_dim
    kv_heads = 0 if attention.shares_cache else kv_heads_on_rank(attention, cut.tp)
    values = attention.value_dim or attention.head_dim
    rows = queries * (2 if attention.gated else 1) + kv_heads * (attention.head_dim + values)
    yield from cut.linear(layer, "attention", rows, cut.hidden, bias=attention.qkv_bias)
    yield from cut.linear(layer, "out", cut.hidden, attention.heads // cut.tp * values)
    if attention.out_bias:
        yield cut.whole(cut.hidden)
    if attention.qk_norm:
        yield cut.whole(attention.head_dim)
        yield cut.whole(attention.head_dim)
    if attention.sinks:
        yield cut.whole(attention.heads // cut.tp)
    if (indexer := attention.indexer) and indexer.owned:  # MiniMax M3
        rows = (indexer.heads + 1) * indexer.head_dim
        yield from cut.linear(layer, "indexer", rows, cut.hidden)


def kv_heads_on_rank(attention: Attention, tp: int) -> int:
    """Return the number of K and V heads on a rank: at least one, a copy if there are fewer heads
    than ranks."""
    return max(1, attention.kv_heads // tp)


def _latent(
    layer: DecoderLayer, attention: Attention, latent: Latent, cut: _Cut
) -> Iterator[Tensor]:
    """Yield the tensors of MLA: projections down to the latent are whole on every rank, those up
    from it are split.

    vLLM also keeps kv_b_proj unpacked as two bf16 matrices for decoding (W_UK_T and W_UV).
    """
    heads = attention.heads // cut.tp
    head_dim = latent.nope_dim + latent.rope_dim
    if latent.gated:
        yield from cut.linear(layer, "attention", heads * latent.value_dim, cut.hidden)
    if latent.query_rank:
        yield from cut.linear(layer, "attention", latent.query_rank, cut.hidden)
        yield cut.whole(latent.query_rank)
        yield from cut.linear(layer, "attention", heads * head_dim, latent.query_rank)
    else:
        yield from cut.linear(layer, "attention", heads * head_dim, cut.hidden)
    yield from cut.linear(layer, "attention", latent.kv_rank + latent.rope_dim, cut.hidden)
    yield cut.whole(latent.kv_rank)
    up = heads * (latent.nope_dim + latent.value_dim)
    yield from cut.linear(layer, "attention", up, latent.kv_rank)
    if not latent.expanded:
        yield Tensor(up * latent.kv_rank * 2, movable=False)
    yield from cut.linear(layer, "out", cut.hidden, heads * latent.value_dim)
    if (indexer := attention.indexer) and indexer.owned:
        rank = latent.query_rank or cut.hidden
        yield from cut.linear(layer, "indexer", indexer.heads * indexer.head_dim, rank)
        # the key and the weights of the heads in one matrix, which is not quantised
        yield cut.whole((indexer.head_dim + indexer.heads) * cut.hidden)
        yield cut.whole(2 * indexer.head_dim)


def _compressed(
    layer: DecoderLayer, attention: Attention, compressed: Compressed, cut: _Cut
) -> Iterator[Tensor]:
    """Yield the tensors of DeepSeek V4's attention (vllm/models/deepseek_v4/attention.py). In a
    layer with ratio 4, each row is made of two spans, and an indexer has its own rows."""
    wide, rank = attention.head_dim, compressed.query_rank
    heads, out = attention.heads // cut.tp, cut.part(compressed.groups * compressed.out_rank)
    yield Tensor(heads * 4)  # sinks
    yield from cut.linear(layer, "attention", rank + wide, cut.hidden)
    yield from cut.linear(layer, "attention", heads * wide, rank)
    yield from cut.linear(layer, "out", out, attention.heads * wide // compressed.groups)
    yield from cut.linear(layer, "out", cut.hidden, out)
    spans = 2 if compressed.ratio == _OVERLAPPING else 1
    if compressed.ratio > 1:
        yield Tensor(compressed.ratio * spans * wide * 4)
        yield cut.whole(2 * spans * wide * cut.hidden)
    if (indexer := attention.indexer) and compressed.ratio == _OVERLAPPING:
        yield from cut.linear(layer, "indexer", indexer.heads * indexer.head_dim, rank)
        yield cut.whole(indexer.heads * cut.hidden)
        yield cut.whole(2 * spans * indexer.head_dim * cut.hidden)
    mixed = (2 + compressed.streams) * compressed.streams
    for _block in range(2):
        yield Tensor(mixed * compressed.streams * cut.hidden * 4)


_OVERLAPPING = 4  # The ratio whose rows overlap, and which has an indexer


def _tables(shape: ModelShape, stage: PipelineStage) -> Iterator[Tensor]:
    """Yield tensors created before the layers: vision tower, embeddings, rotary tables."""
    if stage.has_embedding:
        for encoder in filter(None, (shape.tower, shape.ears)):
            yield from _tower(encoder, shape.hidden, stage.tp)
        yield _vocabulary(shape, stage)
        for rows in shape.tables:
            yield Tensor(vocabulary_rows(rows, stage.tp) * shape.hidden * 2)
        if shape.per_layer_vocab:
            width = sum(layer.per_layer_input for layer in shape.layers)
            yield Tensor(vocabulary_rows(shape.per_layer_vocab, stage.tp) * width * 2)
            yield Tensor(width * shape.hidden * 2)
    elif stage.has_head and shape.tied:
        yield _vocabulary(shape, stage)
    for rotary in shape.rotary:
        yield Tensor(rotary.positions * rotary.width * 2)


def _vocabulary(shape: ModelShape, stage: PipelineStage) -> Tensor:
    ranks = 1 if shape.crosses else stage.tp  # Whisper's is whole everywhere
    return Tensor(vocabulary_rows(shape.vocab, ranks) * shape.hidden * 2)


def vocabulary_rows(vocab: int, tp: int) -> int:
    """Return the rows of the embedding table on one of `tp` ranks."""
    return round_up(vocab, VOCABULARY_STEP) // tp


def _tower(tower: Tower, text_hidden: int, tp: int) -> Iterator[Tensor]:
    """Yield the layers and the projection to the text. Some towers are divided over the ranks, and
    Qwen's join patches before that projection."""
    ranks = tp if tower.divided in ("all", "mlp") else 1
    of_attention = tp if tower.divided in ("all", "attention") else 1
    for _ in range(tower.layers):
        inner, width = (tower.inner or tower.hidden) // of_attention, tower.mlp_width // ranks
        yield from matrix(3 * inner, tower.hidden, tower.stored)
        yield from matrix(tower.hidden, inner, tower.stored)
        yield from matrix((2 if tower.gated else 1) * width, tower.hidden, tower.stored)
        yield from matrix(tower.hidden, width, tower.stored)
        for _norm in range(4):
            yield Tensor(tower.hidden * 2)
    yield Tensor(3 * tower.frames * tower.patch**2 * tower.hidden * 2)
    yield Tensor(tower.positions * tower.hidden * 2)
    if not tower.merged:
        yield Tensor(tower.projection * 2)
        yield Tensor(tower.joining * 2 // ranks)
        return
    joined = tower.hidden * tower.merged**2
    for _merger in range(tower.mergers):
        yield from matrix(joined // ranks, joined, tower.stored)
        yield from matrix(text_hidden, joined // ranks, tower.stored)


# Above this relative difference from config.json, the checkpoint has parts unknown here.
_CHECKPOINT_TOLERANCE = 0.02


def compared_with_files(shape: ModelShape, stored: int | None) -> ModelShape:
    """Compare the computed weights with the files on disk, and record a difference as an
    assumption."""
    if not stored:
        return shape
    whole = PipelineStage(0, len(shape.layers), 1, has_embedding=True, has_head=True)
    plain = replace(shape, rotary=())
    counted = weight_bytes(plain, whole, shape.quantization)
    if abs(counted / stored - 1) <= _CHECKPOINT_TOLERANCE:
        return shape
    note = (
        f"the files hold {stored / GIB:.2f} GiB of tensors, config.json implies "
        f"{counted / GIB:.2f} GiB"
    )
    return replace(shape, assumptions=(*shape.assumptions, note))


_MARLIN_WIDTH_STEP = 128
_MARLIN_HIDDEN_STEP = 256  # Padding of mxfp4 experts for Marlin kernels (fused_moe/oracle/mxfp4.py)

_TRITON_WIDTH_STEP = 64
# Triton on Hopper pads only the width, and rows of scales to 32 times 8 warps (HopperMXScaleLayout
# in third_party/triton_kernels). The allocator's blocks after a start of gpt-oss-20b on an H200
# (vLLM 0.25.1) have exactly these sizes.
_TRITON_SCALE_ROWS = 256


def expert_tensors(
    experts: Experts, hidden: int, width: int, storage: Quantization | None
) -> Iterator[Tensor]:
    """Yield the experts as two stacked matrices. `width` is the rank's."""
    count, factor = experts.count, 2 if experts.gated else 1
    if storage and storage.method == "mxfp4" and not storage.padded:
        # The layout of Triton's Hopper kernels; biases become float32.
        width = round_up(width, _TRITON_WIDTH_STEP)
        for rows, columns in ((factor * width, hidden), (hidden, width)):
            yield Tensor(count * rows * columns // 2)
            scales = round_up(rows, _TRITON_SCALE_ROWS) * columns // storage.group
            yield Tensor(count * scales)
        biases = [count * 2 * width * 4, count * hidden * 4, count * 2]
    else:
        if storage and storage.method == "mxfp4":
            width = round_up(width, _MARLIN_WIDTH_STEP)
            hidden = round_up(hidden, _MARLIN_HIDDEN_STEP)
        yield from matrix(count * factor * width, hidden, storage)
        yield from matrix(count * hidden, width, storage)
        biases = [count * 2 * width * 2, count * hidden * 2, count * 2]
    if experts.bias:
        yield from map(Tensor, biases)
