"""Models that divide texts into classes, and those that reward an answer with a number."""

from __future__ import annotations

from typing import Any

from clusterctl.kinds.kind import Ask, Bench, ModelKind, numbers


def _read(content: Any) -> str:
    return f"{len(numbers(content['data'][0]['probs']))} of them"


CLASSIFY = ModelKind(
    name="classify",
    result="classes",
    paths=("/classify", "/pooling"),
    ask=lambda text, _: Ask("/classify", {"input": text}),
    read=_read,
    bench=Bench("vllm-pooling", "/pooling"),
)
