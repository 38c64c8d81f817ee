"""Models that turn a text into one vector. The proof has two texts about one thing and another."""

from __future__ import annotations

from typing import Any

from clusterctl.kinds.kind import (
    PASSAGE,
    QUERY,
    UNRELATED,
    Ask,
    Bench,
    ModelKind,
    compared,
    cosine,
    numbers,
)


def _judge(content: Any) -> str:
    query, passage, unrelated = (numbers(one["embedding"]) for one in content["data"])
    near, far = cosine(query, passage), cosine(query, unrelated)
    return f"{len(query)} numbers, {compared('similar texts are nearer', near, far)}"


EMBED = ModelKind(
    name="embed",
    result="embeddings",
    paths=("/v1/embeddings", "/v2/embed", "/v1/score", "/score", "/v1/rerank", "/rerank",
           "/v2/rerank", "/pooling"),
    ask=lambda text, _: Ask("/v1/embeddings", {"input": text}),
    read=lambda content: f"{len(numbers(content['data'][0]['embedding']))} numbers",
    proof=lambda: Ask("/v1/embeddings", {"input": [QUERY, PASSAGE, UNRELATED]}),
    judge=_judge,
    bench=Bench("openai-embeddings", "/v1/embeddings"),
)  # fmt: skip
