"""How many tokens a memory pool holds: vLLM's v1/core/kv_cache_utils.py, in closed form.

A block holds the keys and values of `block_size` tokens for a group of layers. Layers with the same
reach (everything, a window, a chunk) share a group. Models that mix reaches have several groups
that draw blocks from one pool, so the blocks of all groups have the same size in bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import lcm

from clusterctl.models.shape import Attention, DecoderLayer, State
from clusterctl.planning.rules import Rules
from clusterctl.planning.weights import groups_for, kv_heads_on_rank

DEFAULT_BLOCK = 16
# vLLM's default for attention on a CPU: 0.32 gave 292 x 128 tokens for 1 GiB at 28 KiB per token.
CPU_BLOCK = 128

LATENT_BLOCK = 64  # FlashMLA's only block size (v1/attention/backends/mla/flashmla.py)


_CHECKPOINT_STEP = 64  # FLASHINFER_GDN_CHECKPOINT_ALIGNMENT
_STATE_BLOCK_STEP = 16  # The least block of vLLM's attention kernels
_LATENT_STATE_BLOCK_STEP = 128  # TRTLLM's and FlashInfer's kernels for MLA


@dataclass(frozen=True, slots=True)
class CacheRules:
    """What a release and its settings determine about the cache.

    `element_bytes`: of a cached key or value. `step`: attention's blocks next to states are a
    multiple of it. `state_blocks`: those that a request holds in each group of states. `drafted`:
    tokens that a drafter proposes in a step. `whole`: windows keep all tokens (before the hybrid
    cache, or with --disable-hybrid-kv-cache-manager). `shared_context`: ranks that divide the
    tokens of a request among them (decode context parallel). `sparse_rows`: latents that sparse
    attention reads have their scales next to them (`fp8_ds_mla`). `encoded`: tokens that a request
    may have from an encoder, as many as a batch has (`max_num_encoder_input_tokens`).
    """

    block_size: int
    element_bytes: float
    step: int = _STATE_BLOCK_STEP
    state_blocks: int = 1
    drafted: int = 0
    whole: bool = False
    shared_context: int = 1
    sparse_rows: bool = False
    encoded: int = 0


def state_step(block_size: int, *, latent: bool, exported: bool) -> int:
    """Return the number of which attention's blocks next to states are a multiple. `exported`:
    FlashInfer exports checkpoints, on boundaries of 64 tokens."""
    least = _LATENT_STATE_BLOCK_STEP if latent else _STATE_BLOCK_STEP
    step = max(block_size, least)
    return lcm(step, _CHECKPOINT_STEP) if exported else step


@dataclass(frozen=True, slots=True)
class CacheNeed:
    """The cache of one layer: bytes per token and its reach (window or chunk) in tokens, or the
    bytes of its state. `encoded`: tokens of an encoder, which it keeps in place of its own."""

    token_bytes: int
    window: int | None = None
    chunk: int | None = None
    state_bytes: int = 0
    encoded: int = 0

    def reaches_as(self, other: CacheNeed) -> bool:
        """Return whether both layers keep the same tokens."""
        return (self.window, self.chunk, self.state_bytes, self.encoded) == (
            other.window, other.chunk, other.state_bytes, other.encoded
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Group:
    """Layers (by index, in order) that share a block table. `block_size` is that of all ranks that
    divide the context among them."""

    need: CacheNeed
    block_size: int
    layers: tuple[int, ...]
    state_blocks: int = 0

    def blocks_for(self, length: int, in_flight: int) -> int:
        """Return the most blocks that a request of `length` tokens holds.

        A window keeps the tokens in its reach and those scheduled but not settled, plus one block
        because it need not start at a block boundary (v1/kv_cache_interface.py).
        """
        if self.need.state_bytes:
            return self.state_blocks
        if self.need.encoded:
            return -(-self.need.encoded // self.block_size)
        if self.need.window:
            kept = min(self.need.window - 1 + in_flight, length)
            return -(-kept // self.block_size) + 1
        if self.need.chunk:
            kept = min(self.need.chunk + in_flight, length)
            return -(-kept // self.block_size)
        return -(-length // self.block_size)


@dataclass(frozen=True, slots=True)
class CachePlan:
    """All groups of a model, and the size of a pool block for one layer."""

    groups: tuple[Group, ...]
    page_bytes: int
    layer_bytes: tuple[int, ...]  # Of a block, by layer, in a model with one group
    # Bytes by group and layer, where a block holds pages of different sizes side by side
    packed: tuple[tuple[int, ...], ...] = ()

    @property
    def is_uniform(self) -> bool:
        """Whether all layers keep the same tokens."""
        return len(self.groups) <= 1

    @property
    def has_states(self) -> bool:
        """Whether some layers keep a state, for which each request needs a block."""
        return any(group.need.state_bytes for group in self.groups)

    def block_bytes(self, first: int, last: int) -> int:
        """Return the bytes of a block on a rank with layers [first, last)."""
        if self.packed:
            return max(sum(sizes[first:last]) for sizes in self.packed)
        if self.is_uniform:
            return sum(self.layer_bytes[first:last])
        held = (
            bisect_left(group.layers, last) - bisect_left(group.layers, first)
            for group in self.groups
        )
        return self.page_bytes * max(held)

    def blocks_per_request(self, length: int, in_flight: int) -> int:
        """Return the blocks that one request of `length` tokens holds in all groups."""
        return sum(group.blocks_for(length, in_flight) for group in self.groups)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of a pool. `concurrency` is the number of concurrent requests of full length, as
    vLLM prints it."""

    blocks: int
    tokens: int
    concurrency: float


# The caches of a layer: none, one, or two where a state and attention are side by side (Falcon H1)
Needs = tuple[CacheNeed, ...]


def needs_of(layers: Sequence[DecoderLayer], tp: int, rules: CacheRules) -> list[Needs]:
    """Return the caches of every layer on a rank."""
    found = [tuple(_needs_of(layer, tp, rules)) for layer in layers]
    reaches = {(need.window, need.chunk) for each in found for need in each if need.token_bytes}
    if rules.whole and len(reaches) > 1:
        return [tuple(replace(need, window=None, chunk=None) for need in each) for each in found]
    return found


def _needs_of(layer: DecoderLayer, tp: int, rules: CacheRules) -> Iterator[CacheNeed]:
    if layer.state:
        yield CacheNeed(0, state_bytes=state_bytes(layer.state, tp, rules.drafted))
    attention = layer.attention
    if attention and not attention.shares_cache:
        rows = rules.sparse_rows
        size = int(attention_bytes(attention, tp, rules.element_bytes, sparse_rows=rows))
        yield CacheNeed(size, attention.window, attention.chunk)
    if layer.cross:
        size = int(attention_bytes(layer.cross, tp, rules.element_bytes))
        yield CacheNeed(size, encoded=rules.encoded)


# An index key in fp8, and its scale (v1/attention/backends/mla/indexer.py).
_INDEX_SCALE_BYTES = 4
# A latent in fp8 for sparse attention: 512 bytes, 4 scales of 4 bytes, and 64 rotary elements in
# bf16 (`fp8_ds_mla` in v1/attention/backends/mla/flashmla_sparse.py).
_SPARSE_FP8_TOKEN = 656


def attention_bytes(
    attention: Attention, tp: int, element_bytes: float, *, sparse_rows: bool = False
) -> float:
    """Return the bytes that a layer keeps per token on a rank, including the key of its indexer."""
    indexer = attention.indexer
    index = indexer.head_dim + _INDEX_SCALE_BYTES if indexer and indexer.owned else 0
    latent = attention.latent
    if latent and latent.expanded:
        width = 2 * (latent.nope_dim + latent.rope_dim)
        return kv_heads_on_rank(attention, tp) * width * element_bytes
    if latent:  # one latent per token, not split by TP
        if indexer and sparse_rows:
            return _SPARSE_FP8_TOKEN + index
        return (latent.kv_rank + latent.rope_dim) * element_bytes + index
    if indexer and indexer.owned:  # MiniMax M3 keeps these keys as the others
        index = int(indexer.head_dim * element_bytes)
    dims = attention.head_dim + (attention.value_dim or attention.head_dim)
    return kv_heads_on_rank(attention, tp) * dims * element_bytes + index


def state_bytes(state: State, tp: int, drafted: int = 0) -> int:
    """Return the bytes of a layer's state on a rank (model_executor/layers/mamba/mamba_utils.py):
    the last inputs of the convolution in bf16, and the recurrent state."""
    inner = state.heads * state.head_dim
    mixed = -(-(inner + 2 * groups_for(state, tp) * state.state_size) // tp)
    recurrent = inner // tp * state.state_size * state.state_bytes
    return (state.kernel - 1 + drafted) * mixed * 2 + recurrent


def plan_cache(needs: Sequence[Needs], rules: CacheRules) -> CachePlan:
    """Group layers as vLLM does.

    With mixed reaches, pages are made equal by raising the block size of layers with smaller ones.
    Then the layers of each reach are divided into groups as large as the rarest reach has layers,
    or as the most common reach has if that is less than half more.
    """
    block_size = _block_beside_states(needs, rules)
    wide = block_size * rules.shared_context
    layer_bytes = tuple(
        sum(need.state_bytes or block_size * need.token_bytes for need in each) for each in needs
    )
    by_need: dict[CacheNeed, list[int]] = {}
    for index, each in enumerate(needs):
        for need in each:
            by_need.setdefault(need, []).append(index)
    kinds = [(need, tuple(layers)) for need, layers in by_need.items()]
    if len(kinds) <= 1:
        groups = tuple(Group(need, wide, layers, rules.state_blocks) for need, layers in kinds)
        return CachePlan(groups, max(layer_bytes, default=0), layer_bytes)
    if all(need.reaches_as(kinds[0][0]) for need, _ in kinds):
        layers = tuple(index for index, each in enumerate(needs) if each)
        return CachePlan((Group(kinds[0][0], wide, layers),), 0, layer_bytes)
    page = block_size * max(need.token_bytes for need, _ in kinds)
    fewest = min(len(layers) for _, layers in kinds)
    most = max(len(layers) for _, layers in kinds)
    size = most if most < fewest * 1.5 else fewest
    divided: list[Group] = []
    for need, layers in kinds:
        ratio, rest = divmod(page, block_size * need.token_bytes) if need.token_bytes else (1, 0)
        tokens = wide * (1 if rest else ratio)  # a page that does not divide is padded
        count = -(-len(layers) // size)
        divided += [
            Group(need, tokens, layers[start::count], rules.state_blocks) for start in range(count)
        ]
    return CachePlan(tuple(divided), page, layer_bytes)


def _block_beside_states(needs: Sequence[Needs], rules: CacheRules) -> int:
    """Return the tokens of a block: next to layers that keep a state, enough for a page of
    attention to hold a state (`_align_hybrid_block_size` in vllm/platforms/interface.py)."""
    states = max((need.state_bytes for each in needs for need in each), default=0)
    token = max((need.token_bytes for each in needs for need in each), default=0)
    if not states or not token:
        return rules.block_size
    least = rules.step * -(-states // (rules.step * token))
    return max(rules.block_size, least)


def capacity(plan: CachePlan, blocks: int, length: int, in_flight: int, rules: Rules) -> Capacity:
    """Return the figures that vLLM prints for `blocks` blocks and requests of `length` tokens."""
    if blocks <= 0 or not plan.groups:
        return Capacity(max(blocks, 0), 0, 0.0)
    block_size = min(group.block_size for group in plan.groups)
    if plan.has_states and plan.is_uniform:  # Mamba alone: a state has no tokens
        requests = blocks / plan.blocks_per_request(length, in_flight)
        return Capacity(blocks, int(requests * length), requests)
    if rules.engine_v0 or (plan.is_uniform and rules.version < (0, 9, 0)):
        tokens = blocks * block_size
        return Capacity(blocks, tokens, tokens / length)
    concurrency = blocks / plan.blocks_per_request(length, in_flight)
    if rules.tokens_from_concurrency:
        return Capacity(blocks, int(concurrency * length), concurrency)
    return Capacity(blocks, blocks // len(plan.groups) * block_size, concurrency)


def longest_that_fits(
    plan: CachePlan, blocks: int, longest: int, in_flight: int, rules: Rules
) -> int:
    """Return the longest request, up to `longest` tokens, that the pool holds; 0 if none fits."""
    usable = blocks - 1 if rules.null_block_held else blocks
    if not plan.groups:
        return longest
    low, high = 0, longest
    while low < high:
        middle = (low + high + 1) // 2
        if plan.blocks_per_request(middle, in_flight) <= usable:
            low = middle
        else:
            high = middle - 1
    return low
