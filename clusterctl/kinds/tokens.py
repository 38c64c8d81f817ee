"""Models with a vector or a reward for each token: late interaction, tagging, process rewards."""

from __future__ import annotations

from typing import Any

from clusterctl.kinds.kind import Ask, Bench, ModelKind, numbers


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
    ask=lambda text, _: Ask("/pooling", {"input": text}),
    read=_read,
    bench=Bench("vllm-pooling", "/pooling"),
)
