"""The KV cache of DeepSeek V4, whose layers keep several kinds of data with different reaches.

Each layer keeps the last tokens of a sliding window. Most also keep one row for 4 or for 128
tokens, and a state of the compressor that makes these rows; those with ratio 4 have rows and a
state of an indexer too. vLLM packs them into blocks of one size: `_get_packed_kv_cache_groups` in
v1/core/kv_cache_planning.py, with the sizes of vllm/models/deepseek_v4/ (0.33).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.models.shape import DecoderLayer
from clusterctl.planning.kv_cache import CacheNeed, CachePlan, Group

_BLOCK = 256  # tokens in a block of compressed rows
_ROW = 584  # bytes: 448 in fp8, 64 rotary elements in bf16, and scales
_PAGE_STEP = 576  # pages are padded to a multiple of it
_INDEX_SCALE = 4
_WINDOW_BLOCK = 64
_STATE_BLOCKS = {4: 4, 128: 8}  # tokens in a block of the compressor's state, by ratio
_OVERLAPPING = 4


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Caches that keep the same tokens: bytes of a page by layer, in each of its kinds."""

    need: CacheNeed
    block_size: int
    kinds: tuple[dict[int, int], ...]

    @property
    def repeats(self) -> int:
        return max(map(len, self.kinds), default=0)

    @property
    def balanced(self) -> bool:
        """Whether all kinds are in the same number of layers."""
        return len({len(kind) for kind in self.kinds}) == 1


def plan_compressed_cache(layers: Sequence[DecoderLayer], whole_context: int) -> CachePlan:
    """Return the cache of a model with compressed attention. `whole_context`: ranks that divide
    the context."""
    buckets = [bucket for bucket in _buckets(layers) if bucket.repeats]
    repeats = _repeats_of_a_group(buckets)
    groups: list[Group] = []
    sizes: list[tuple[int, ...]] = []
    for bucket in buckets:
        count = -(-bucket.repeats // repeats) if bucket.balanced and repeats else 1
        for start in range(count):
            held = {
                layer
                for kind in bucket.kinds
                for layer in sorted(kind)[start::count]
            }  # fmt: skip
            by_layer = [sum(kind.get(i, 0) for kind in bucket.kinds) for i in range(len(layers))]
            sizes.append(tuple(size if i in held else 0 for i, size in enumerate(by_layer)))
            block = bucket.block_size * (1 if bucket.need.window else whole_context)
            groups.append(Group(bucket.need, block, tuple(sorted(held))))
    return CachePlan(tuple(groups), 0, (), packed=tuple(sizes))


def _buckets(layers: Sequence[DecoderLayer]) -> list[_Bucket]:
    windows, rows, index_rows = {}, {}, {}
    states: dict[int, dict[int, int]] = {4: {}, 128: {}}
    index_states: dict[int, int] = {}
    window = 0
    for number, layer in enumerate(layers):
        attention = layer.attention
        if attention is None or attention.compressed is None:
            continue
        ratio, dim = attention.compressed.ratio, attention.head_dim
        window = attention.window or window
        windows[number] = _page(_WINDOW_BLOCK * _ROW)
        if ratio not in states:
            continue
        rows[number] = _page(_BLOCK // ratio * _ROW)
        spans = 2 if ratio == _OVERLAPPING else 1
        states[ratio][number] = _page(_STATE_BLOCKS[ratio] * 2 * spans * dim * 4)
        if attention.indexer and ratio == _OVERLAPPING:
            index = attention.indexer.head_dim
            index_rows[number] = _page(_BLOCK // ratio * (index + _INDEX_SCALE))
            index_states[number] = _page(_STATE_BLOCKS[ratio] * 2 * spans * index * 4)
    wide = {number: size for number, size in rows.items() if size > _PAGE_STEP * 10}
    narrow = {number: size for number, size in rows.items() if number not in wide}
    kinds = tuple(kind for kind in (wide, index_rows, narrow) if kind)
    overlapping = tuple(kind for kind in (states[4], index_states) if kind)
    return [
        _Bucket(CacheNeed(1), _BLOCK, kinds),
        _Bucket(CacheNeed(1, window=window or 128), _WINDOW_BLOCK, (windows,)),
        _Bucket(CacheNeed(1, window=2 * 4), _STATE_BLOCKS[4], overlapping),
        _Bucket(CacheNeed(1, window=128), _STATE_BLOCKS[128], (states[128],)),
    ]


def _page(size: int) -> int:
    return -(-size // _PAGE_STEP) * _PAGE_STEP


def _repeats_of_a_group(buckets: Sequence[_Bucket]) -> int:
    """Return how many layers of each kind a group has: chosen like vLLM for the least padding
    (`_approximate_gcd`); 0 if no bucket mixes page sizes."""
    balanced = [bucket for bucket in buckets if bucket.balanced]
    least = max((bucket.repeats for bucket in balanced if len(bucket.kinds) > 1), default=0)
    if not least:
        return 0
    counts = [bucket.repeats for bucket in balanced]
    padding = {
        size: sum(-count % size for count in counts) for size in range(least, max(counts) + 1)
    }
    fewest = min(padding.values())
    return max(size for size, lost in padding.items() if lost == fewest)
