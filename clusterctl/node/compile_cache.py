"""Keeps compiled code of one GPU from being loaded on another of the same host: a plugin of vLLM.

torch.compile writes the index of the GPU into what it compiles. vLLM's ranks see all GPUs of a
host, and the key of its cache has the rank, not the index (vllm pull request 53312): a rank that
restarts on another GPU ends with `CUDA driver error: invalid argument`. So each index except the
first gets its own cache. A rank that sees only its own GPU has index 0.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

VARIABLE = "VLLM_CACHE_ROOT"


def register() -> None:
    """Make vLLM read VARIABLE with the index of this process's GPU. Called by vLLM, before a rank
    chooses its GPU."""
    variables: Any = importlib.import_module("vllm.envs").environment_variables
    root = variables.get(VARIABLE)
    if root is None or hasattr(root, "by_gpu"):
        return

    def by_gpu() -> str:
        return own_cache(root(), _gpu_index())

    by_gpu.by_gpu = True  # type: ignore[attr-defined]
    variables[VARIABLE] = by_gpu


def own_cache(root: str, index: int) -> str:
    return f"{root}/gpu{index}" if index else root


def _gpu_index() -> int:
    """Return the index of the GPU in use; 0 in a process without one."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    return int(cuda.current_device()) if cuda and cuda.is_initialized() else 0
