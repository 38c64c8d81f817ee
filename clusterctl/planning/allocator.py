"""The bytes that tensors occupy in PyTorch's CUDA caching allocator.

`Model loading took X GiB` in vLLM's log is `torch.cuda.max_memory_allocated`, which counts the
allocator's blocks and not the tensors. This follows the rules of c10/cuda/CUDACachingAllocator.cpp:
sizes are rounded up to 512 bytes; blocks up to 1 MiB are taken from 2 MiB segments, up to 10 MiB
from 20 MiB segments, larger ones get their own segment in steps of 2 MiB; the smallest sufficient
free block is used first; and the rest of a large block is split off only if it exceeds 1 MiB,
otherwise it counts as allocated. On a 7B model this is 57 MiB. With max_split_size_mb:20 blocks of
20 MiB and more are never split.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from clusterctl.units import MIB

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
    """Return `torch.cuda.memory_allocated` after creating tensors of these sizes in order.

    `unsplit` means max_split_size_mb:20, which vLLM 0.22 and newer set while loading.
    """
    free_small: list[int] = []
    free_large: list[int] = []
    total = 0
    for size in sizes:
        wanted = round_up(max(size, 1), _SMALLEST_BLOCK)
        small = wanted <= _LARGEST_SMALL
        if unsplit and wanted >= _UNSPLIT_FROM:
            total += _segment(wanted)
        else:
            total += _allocate(wanted, free_small if small else free_large, small=small)
    return total


def _allocate(wanted: int, free: list[int], *, small: bool) -> int:
    """Take a block for `wanted` bytes from the sorted list `free`, and return the rest to it."""
    index = bisect_left(free, wanted)
    block = free.pop(index) if index < len(free) else _segment(wanted)
    rest = block - wanted
    if rest >= _SMALLEST_BLOCK if small else rest > _LARGEST_SMALL:
        insort(free, rest)
        return wanted
    return block


def _segment(wanted: int) -> int:
    if wanted <= _LARGEST_SMALL:
        return _SMALL_SEGMENT
    if wanted < _OWN_SEGMENT_FROM:
        return _SHARED_SEGMENT
    return round_up(wanted, _SEGMENT_STEP)
