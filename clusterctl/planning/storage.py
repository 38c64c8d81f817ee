"""The tensors that hold one matrix, by the way its weights are stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from clusterctl.models.shape import Quantization

_BITSANDBYTES_BLOCK = 64
_BITSANDBYTES_OUTER_BLOCK = 256
"""nf4 keeps one byte of scale for 64 weights and one float32 for 256 of these scales."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One allocation. `movable`: --cpu-offload-gb may take it to the host's memory."""

    size: int
    movable: bool = True


def matrix(rows: int, columns: int, storage: Quantization | None) -> Iterator[Tensor]:
    """Weights of `rows` x `columns` with their scales; plain ones take 2 bytes each."""
    elements = rows * columns
    if storage is None:
        yield Tensor(elements * 2)
    elif storage.method == "fp8":
        yield Tensor(elements)
        side = storage.block
        yield Tensor(-(-rows // side) * -(-columns // side) * 4 if side else 4)
    elif storage.method == "bitsandbytes":
        yield Tensor(elements * storage.bits // 8)
        scales = elements // _BITSANDBYTES_BLOCK
        yield Tensor(scales + scales // _BITSANDBYTES_OUTER_BLOCK * 4, movable=False)
    elif storage.method == "mxfp4":
        yield Tensor(elements // 2)
        yield Tensor(elements // storage.group)
    else:
        yield from _grouped(elements, columns, storage)


def _grouped(elements: int, columns: int, storage: Quantization) -> Iterator[Tensor]:
    """AWQ and GPTQ: packed integers, an fp16 scale per group, and zero points when asymmetric."""
    groups = elements // (storage.group or columns)
    yield Tensor(elements * storage.bits // 8)
    yield Tensor(groups * 2)
    if storage.zeros:
        yield Tensor(groups * storage.bits // 8)
