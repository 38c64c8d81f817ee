"""The tensors of a mixture of experts, as the kernels that vLLM chooses want them laid out."""

from __future__ import annotations

from collections.abc import Iterator

from clusterctl.models.shape import Experts, Quantization
from clusterctl.planning.allocator import round_up
from clusterctl.planning.storage import Tensor, matrix

_MARLIN_WIDTH_STEP = 128
_MARLIN_HIDDEN_STEP = 256
"""Padding of mxfp4 experts for Marlin kernels (fused_moe/oracle/mxfp4.py)."""

_TRITON_WIDTH_STEP = 64
_TRITON_SCALE_ROWS = 256
"""For Triton on Hopper the width alone is padded, and rows of scales to 32 times 8 warps
(HopperMXScaleLayout in third_party/triton_kernels). The allocator's blocks after a start of
gpt-oss-20b on an H200 (vLLM 0.25.1) have exactly these sizes."""


def expert_tensors(
    experts: Experts, hidden: int, width: int, storage: Quantization | None
) -> Iterator[Tensor]:
    """All experts of a layer as two stacked matrices, and the router. `width`: of this rank."""
    if storage and storage.method == "mxfp4" and not storage.padded:
        yield from _triton(experts, hidden, round_up(width, _TRITON_WIDTH_STEP), storage)
        return
    router = experts.count * hidden
    if storage and storage.method == "mxfp4":
        width, hidden = round_up(width, _MARLIN_WIDTH_STEP), round_up(hidden, _MARLIN_HIDDEN_STEP)
    up, down = experts.count * 2 * width, experts.count * hidden
    yield from matrix(up, hidden, storage)
    yield from matrix(down, width, storage)
    yield Tensor(router * 2)
    if experts.bias:
        yield from (Tensor(rows * 2) for rows in (up, down, experts.count))


def _triton(experts: Experts, hidden: int, width: int, storage: Quantization) -> Iterator[Tensor]:
    """mxfp4 as Triton's kernels for Hopper take it; biases become float32."""
    for rows, columns in ((2 * width, hidden), (hidden, width)):
        yield Tensor(experts.count * rows * columns // 2)
        scales = round_up(rows, _TRITON_SCALE_ROWS) * columns // storage.group
        yield Tensor(experts.count * scales)
    yield Tensor(experts.count * hidden * 2)
    if experts.bias:
        yield from (Tensor(experts.count * rows * 4) for rows in (2 * width, hidden))
        yield Tensor(experts.count * 2)
