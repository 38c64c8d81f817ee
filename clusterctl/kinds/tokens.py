"""Models with a vector or a reward for each token: late interaction, tagging, process rewards."""

from __future__ import annotations

from typing import Any

from clusterctl.kinds.kind import Ask, Bench, ModelKind, numbers

# Ends a step for Qwen's models of process rewards, which answer nothing for a text without it
# (151651 in vLLM's models/config.py); to others it is text.
_END_OF_STEP = "<extra_0>"


def _read(content: Any) -> str:
    """Read one vector for the whole text, or one per token."""
    found = content["data"][0]["data"]
    if isinstance(found[0], list):
        return f"{len(found)} x {len(numbers(found[0]))} numbers"
    return f"{len(numbers(found))} numbers"


TOKENS = ModelKind(
    name="tokens",
    result="pooling",
    paths=("/pooling", "/v1/score", "/score", "/v1/rerank", "/rerank", "/v2/rerank"),
    ask=lambda text, _: Ask("/pooling", {"input": text + _END_OF_STEP}),
    read=_read,
    bench=Bench("vllm-pooling", "/pooling"),
)
