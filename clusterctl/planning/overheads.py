"""Memory of a rank that neither weights nor activations explain: measured, not derived.

These are the least certain figures of a plan; `margin_gib` says by how much, and a measured
value of the same GPU and image replaces them (`Measured`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clusterctl.planning.rules import Rules

# What connects the ranks of a tensor parallel group; `none` for a single rank.
Fabric = Literal["none", "nvlink", "pcie", "network"]


@dataclass(frozen=True, slots=True)
class Measured:
    """What an earlier start on a host reported, in GiB; None is unknown."""

    runtime_gib: float | None = None
    graphs_gib: float | None = None


_V0_ALONE = 0.09
_V0_JOINED = 0.40  # `non_torch_memory` in logs of vLLM 0.7.1 on one V100 and 0.7.2 on two RTX 3090

# CUDA modules, cuBLAS workspaces and buffers of the model runner: 0.24 to 0.27 GiB outside
# PyTorch in 40 starts of vLLM 0.19 on an H100 (llm-d-planner, accuracy/results/v0.19.0; Granite
# took 0.46), and 0.05 of PyTorch's own beyond the activations.
_ALONE = 0.30

# With NCCL: 0.40 over PCIe (two RTX 3090, vLLM 0.7.2); 2.06 to 2.10 with TP 2 and NVLink in the
# same H100 starts, and the 0.05. Over sockets less was measured than over NVLink, how much less
# is not recorded.
_JOINED: dict[Fabric, float] = {"none": _ALONE, "pcie": 0.40, "network": 0.40, "nvlink": 2.12}

_NVLINK_MORE = 0.10  # TP 4 and NVLink: 2.13 to 2.21 in the same starts

# How far starts of the same kind lay from these figures.
_SPREAD: dict[Fabric, float] = {"none": 0.15, "pcie": 0.4, "network": 0.8, "nvlink": 0.8}

_GRAPHS_ALONE = 0.9
# vLLM 0.18 and 0.19 print 0.42, 0.86, 0.93 and 1.11 GiB as their own estimate on one GPU; 0.7.2
# and 0.8.5 took 0.85 and 1.99 with TP 2: the middle of each.
_GRAPHS_JOINED = 1.6

_GRAPHS_SPREAD = 0.5


def runtime_gib(rules: Rules, tp: int, fabric: Fabric, measured: Measured | None = None) -> float:
    """GiB outside weights, activations and graphs."""
    if measured and measured.runtime_gib is not None:
        return measured.runtime_gib
    if rules.engine_v0:
        return _V0_JOINED if tp > 1 else _V0_ALONE
    more = _NVLINK_MORE if fabric == "nvlink" and tp > 2 else 0.0
    return _JOINED[fabric] + more if tp > 1 else _ALONE


def graphs_gib(tp: int, *, eager: bool, measured: Measured | None = None) -> float:
    """GiB that captured CUDA graphs take; 0 with --enforce-eager."""
    if eager:
        return 0.0
    if measured and measured.graphs_gib is not None:
        return measured.graphs_gib
    return _GRAPHS_JOINED if tp > 1 else _GRAPHS_ALONE


def margin_gib(
    fabric: Fabric,
    *,
    charged: bool,
    unknown: bool,
    weights_gib: float,
    measured: Measured | None = None,
) -> float:
    """How far the free memory of a rank may be off, in GiB.

    `charged`: CUDA graphs are part of the sum. `unknown`: something about the model was
    assumed, which adds a tenth of its weights.
    """
    spread = 0.05 if measured and measured.runtime_gib is not None else _SPREAD[fabric]
    if charged and not (measured and measured.graphs_gib is not None):
        spread += _GRAPHS_SPREAD
    return spread + (0.1 * weights_gib if unknown else 0.003 * weights_gib)
