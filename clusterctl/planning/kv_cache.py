"""How many tokens a pool of memory holds: vLLM's v1/core/kv_cache_utils.py, in closed form.

A block holds the keys and values of `block_size` tokens for a group of layers. Layers with the
same reach (all, a window, a chunk) share a group; models that mix reaches have several groups
that draw blocks from one pool, so all groups have blocks of one size in bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from clusterctl.models.shape import Attention
from clusterctl.planning.rules import Rules
from clusterctl.planning.weights import kv_heads_on_rank

DEFAULT_BLOCK = 16
# vLLM's default where attention runs on a CPU: 0.32 gave 292 x 128 tokens for 1 GiB of a cache of
# 28 KiB a token.
CPU_BLOCK = 128

LATENT_BLOCK = 64  # FlashMLA's only block size (v1/attention/backends/mla/flashmla.py)


@dataclass(frozen=True, slots=True)
class CacheNeed:
    """What one layer caches: bytes for a token, and how far back it looks."""

    token_bytes: int
    window: int | None = None
    chunk: int | None = None

    def reaches_as(self, other: CacheNeed) -> bool:
        """Whether both keep the same tokens."""
        return (self.window, self.chunk) == (other.window, other.chunk)


@dataclass(frozen=True, slots=True)
class Group:
    """Layers (by index) that share a block table."""

    need: CacheNeed
    block_size: int
    layers: tuple[int, ...]

    def blocks_for(self, length: int, in_flight: int) -> int:
        """Blocks that a request of `length` tokens holds at most.

        A window keeps what it looks back on and what is scheduled but not settled, and one block
        more because it need not start at a block's edge (v1/kv_cache_interface.py).
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
    """All groups of a model, and what a block of the pool takes for one layer."""

    groups: tuple[Group, ...]
    page_bytes: int
    token_bytes: tuple[int, ...]  # By layer; 0 for one that caches nothing

    @property
    def is_uniform(self) -> bool:
        """Every layer keeps the same tokens."""
        return len(self.groups) <= 1

    def block_bytes(self, first: int, last: int) -> int:
        """Bytes of a block on a rank that has layers [first, last)."""
        if self.is_uniform:
            block = self.groups[0].block_size if self.groups else DEFAULT_BLOCK
            return block * sum(self.token_bytes[first:last])
        held = (sum(first <= index < last for index in group.layers) for group in self.groups)
        return self.page_bytes * max(held)

    def blocks_per_request(self, length: int, in_flight: int) -> int:
        """Blocks that one request of `length` tokens holds in all groups together."""
        return sum(group.blocks_for(length, in_flight) for group in self.groups)


@dataclass(frozen=True, slots=True)
class Capacity:
    """`concurrency`: requests of full length at once, as vLLM prints it."""

    blocks: int
    tokens: int
    concurrency: float


def needs_of(
    attentions: Sequence[Attention | None], tp: int, element_bytes: int, *, whole: bool = False
) -> list[CacheNeed | None]:
    """What every layer caches on a rank; None for one that caches nothing.

    `whole`: windows count as if they kept all tokens (vLLM before its hybrid cache, or
    --disable-hybrid-kv-cache-manager).
    """
    found = [_need(attention, tp, element_bytes) for attention in attentions]
    mixed = len({(need.window, need.chunk) for need in found if need}) > 1
    if whole and mixed:
        return [replace(need, window=None, chunk=None) if need else None for need in found]
    return found


def _need(attention: Attention | None, tp: int, element_bytes: int) -> CacheNeed | None:
    if attention is None or attention.shares_cache:
        return None
    if attention.latent:  # one latent per token, not cut by TP
        return CacheNeed((attention.latent.kv_rank + attention.latent.rope_dim) * element_bytes)
    heads = kv_heads_on_rank(attention, tp)
    size = 2 * heads * attention.head_dim * element_bytes
    return CacheNeed(size, attention.window, attention.chunk)


def plan_cache(needs: Sequence[CacheNeed | None], block_size: int) -> CachePlan:
    """Group layers as vLLM does.

    Mixed reaches: pages are made equal by raising the block size of layers with smaller ones;
    then each reach is cut into groups of as many layers as the rarest reach has, or as the
    commonest when that has less than half more.
    """
    token_bytes = tuple(need.token_bytes if need else 0 for need in needs)
    kinds = _kinds(needs)
    if len(kinds) <= 1:
        groups = tuple(Group(need, block_size, layers) for need, layers in kinds)
        page = block_size * max(token_bytes, default=0)
        return CachePlan(groups, page, token_bytes)
    if all(need.reaches_as(kinds[0][0]) for need, _ in kinds):
        layers = tuple(index for index, need in enumerate(needs) if need)
        return CachePlan((Group(kinds[0][0], block_size, layers),), 0, token_bytes)
    page = block_size * max(need.token_bytes for need, _ in kinds)
    return CachePlan(tuple(_split(kinds, page, block_size)), page, token_bytes)


def _kinds(needs: Sequence[CacheNeed | None]) -> list[tuple[CacheNeed, tuple[int, ...]]]:
    found: dict[CacheNeed, list[int]] = {}
    for index, need in enumerate(needs):
        if need:
            found.setdefault(need, []).append(index)
    return [(need, tuple(layers)) for need, layers in found.items()]


def _split(
    kinds: Sequence[tuple[CacheNeed, tuple[int, ...]]], page: int, block_size: int
) -> list[Group]:
    fewest = min(len(layers) for _, layers in kinds)
    most = max(len(layers) for _, layers in kinds)
    size = most if most < fewest * 1.5 else fewest
    groups = []
    for need, layers in kinds:
        ratio, rest = divmod(page, block_size * need.token_bytes)
        tokens = block_size * (1 if rest else ratio)  # a page that does not divide is padded
        count = -(-len(layers) // size)
        groups += [Group(need, tokens, layers[start::count]) for start in range(count)]
    return groups


def capacity(plan: CachePlan, blocks: int, length: int, in_flight: int, rules: Rules) -> Capacity:
    """What vLLM prints for a pool of `blocks` blocks, with requests of `length` tokens."""
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
    """The longest request, up to `longest` tokens, that the pool holds; 0 when none does."""
    usable = blocks - 1 if rules.null_block_held else blocks
    low, high = 0, longest
    while low < high:
        middle = (low + high + 1) // 2
        if plan.blocks_per_request(middle, in_flight) <= usable:
            low = middle
        else:
            high = middle - 1
    return low
