"""How many tokens a memory pool holds: vLLM's v1/core/kv_cache_utils.py, in closed form.

A block holds the keys and values of `block_size` tokens for a group of layers. Layers with the same
reach (everything, a window, a chunk) share a group. Models that mix reaches have several groups
that draw blocks from one pool, so the blocks of all groups have the same size in bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from clusterctl.models.shape import Attention
from clusterctl.planning.rules import Rules
from clusterctl.planning.weights import kv_heads_on_rank

DEFAULT_BLOCK = 16
# vLLM's default for attention on a CPU: 0.32 gave 292 x 128 tokens for 1 GiB at 28 KiB per token.
CPU_BLOCK = 128

LATENT_BLOCK = 64  # FlashMLA's only block size (v1/attention/backends/mla/flashmla.py)


@dataclass(frozen=True, slots=True)
class CacheNeed:
    """The cache of one layer: bytes per token, and its reach (window or chunk) in tokens."""

    token_bytes: int
    window: int | None = None
    chunk: int | None = None

    def reaches_as(self, other: CacheNeed) -> bool:
        """Return whether both layers keep the same tokens."""
        return (self.window, self.chunk) == (other.window, other.chunk)


@dataclass(frozen=True, slots=True)
class Group:
    """Layers (by index, in order) that share a block table."""

    need: CacheNeed
    block_size: int
    layers: tuple[int, ...]

    def blocks_for(self, length: int, in_flight: int) -> int:
        """Return the most blocks that a request of `length` tokens holds.

        A window keeps the tokens in its reach and those scheduled but not settled, plus one block
        because it need not start at a block boundary (v1/kv_cache_interface.py).
        """
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
    token_bytes: tuple[int, ...]  # By layer; 0 if it caches nothing

    @property
    def is_uniform(self) -> bool:
        """Whether all layers keep the same tokens."""
        return len(self.groups) <= 1

    def block_bytes(self, first: int, last: int) -> int:
        """Return the bytes of a block on a rank with layers [first, last)."""
        if self.is_uniform:
            block = self.groups[0].block_size if self.groups else DEFAULT_BLOCK
            return block * sum(self.token_bytes[first:last])
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


def needs_of(
    attentions: Sequence[Attention | None], tp: int, element_bytes: int, *, whole: bool = False
) -> list[CacheNeed | None]:
    """Return the cache of every layer on a rank; None for a layer that caches nothing.

    With `whole`, windows count as if they kept all tokens (vLLM before its hybrid cache, or
    --disable-hybrid-kv-cache-manager).
    """
    found: list[CacheNeed | None] = []
    for attention in attentions:
        if attention is None or attention.shares_cache:
            found.append(None)
        elif attention.latent:  # one latent per token, not split by TP
            width = attention.latent.kv_rank + attention.latent.rope_dim
            found.append(CacheNeed(width * element_bytes))
        else:
            size = 2 * kv_heads_on_rank(attention, tp) * attention.head_dim * element_bytes
            found.append(CacheNeed(size, attention.window, attention.chunk))
    mixed = len({(need.window, need.chunk) for need in found if need}) > 1
    if whole and mixed:
        return [replace(need, window=None, chunk=None) if need else None for need in found]
    return found


def plan_cache(needs: Sequence[CacheNeed | None], block_size: int) -> CachePlan:
    """Group layers as vLLM does.

    With mixed reaches, pages are made equal by raising the block size of layers with smaller ones.
    Then the layers of each reach are divided into groups as large as the rarest reach has layers,
    or as the most common reach has if that is less than half more.
    """
    token_bytes = tuple(need.token_bytes if need else 0 for need in needs)
    by_need: dict[CacheNeed, list[int]] = {}
    for index, need in enumerate(needs):
        if need:
            by_need.setdefault(need, []).append(index)
    kinds = [(need, tuple(layers)) for need, layers in by_need.items()]
    if len(kinds) <= 1:
        groups = tuple(Group(need, block_size, layers) for need, layers in kinds)
        page = block_size * max(token_bytes, default=0)
        return CachePlan(groups, page, token_bytes)
    if all(need.reaches_as(kinds[0][0]) for need, _ in kinds):
        layers = tuple(index for index, need in enumerate(needs) if need)
        return CachePlan((Group(kinds[0][0], block_size, layers),), 0, token_bytes)
    page = block_size * max(need.token_bytes for need, _ in kinds)
    fewest = min(len(layers) for _, layers in kinds)
    most = max(len(layers) for _, layers in kinds)
    size = most if most < fewest * 1.5 else fewest
    divided: list[Group] = []
    for need, layers in kinds:
        ratio, rest = divmod(page, block_size * need.token_bytes)
        tokens = block_size * (1 if rest else ratio)  # a page that does not divide is padded
        count = -(-len(layers) // size)
        divided += [Group(need, tokens, layers[start::count]) for start in range(count)]
    return CachePlan(tuple(divided), page, token_bytes)


def capacity(plan: CachePlan, blocks: int, length: int, in_flight: int, rules: Rules) -> Capacity:
    """Return the figures that vLLM prints for `blocks` blocks and requests of `length` tokens."""
    if blocks <= 0 or not plan.groups:
        return Capacity(max(blocks, 0), 0, 0.0)
    block_size = min(group.block_size for group in plan.groups)
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
    low, high = 0, longest
    while low < high:
        middle = (low + high + 1) // 2
        if plan.blocks_per_request(middle, in_flight) <= usable:
            low = middle
        else:
            high = middle - 1
    return low
