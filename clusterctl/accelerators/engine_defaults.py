"""vLLM's arguments on an accelerator, unless the user or the catalogue sets them.

Imports nothing: `fit --gpus` uses it without pydantic, which would double its run time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineDefaults:
    """Default arguments of vLLM; the field defaults are those for GPUs."""

    # --max-num-seqs and --max-num-batched-tokens; None: vLLM's own on the GPU for which they are
    # smallest
    sequences: int | None = None
    tokens: int | None = None
    eager: bool = False  # Start with --enforce-eager
    sleeps: bool = True  # Has vLLM's sleep mode; on others a service that sleeps frees no memory
    # Variable that sets the size of the KV cache, if it is not a share of the device's memory. The
    # image may set it too.
    cache_variable: str = ""


ON_GPUS = EngineDefaults()  # For any GPU, including those given only by name in `--gpus`
