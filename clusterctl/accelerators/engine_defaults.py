"""What vLLM is told on an accelerator where neither the user nor the catalogue says otherwise.

Imports nothing: `fit --gpus` reads it and goes without pydantic, which takes half of its time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineDefaults:
    """Unless said otherwise, the values of GPUs."""

    sequences: int = 256  # --max-num-seqs; vLLM's own default on smaller GPUs
    tokens: int = 2048  # --max-num-batched-tokens, likewise
    tokens_on_large: int = 8192  # The same where the smallest device is a large one
    eager: bool = False  # Start with --enforce-eager
    # Variable that says how large the KV cache is, where it is no share of a device's memory. The
    # image may set it.
    cache_variable: str = ""


ON_GPUS = EngineDefaults()  # Of any GPU, also one that only `--gpus` names
