"""Models that score how well a text answers a query. The proof is which of two comes first."""

from __future__ import annotations

from typing import Any

from clusterctl.kinds.kind import PASSAGE, QUERY, UNRELATED, Ask, Bench, ModelKind, compared


def _judge(content: Any) -> str:
    scores = {int(one["index"]): float(one["relevance_score"]) for one in content["results"]}
    return compared("the right passage comes first", scores[1], scores[0])


def _read(content: Any) -> str:
    return f"{float(content['results'][0]['relevance_score']):.3g} for a text and itself"


RERANK = ModelKind(
    name="rerank",
    result="scores",
    paths=("/v1/rerank", "/rerank", "/v2/rerank", "/v1/score", "/score", "/classify", "/pooling"),
    ask=lambda text, _: Ask("/rerank", {"query": text, "documents": [text]}),
    read=_read,
    proof=lambda: Ask("/rerank", {"query": QUERY, "documents": [UNRELATED, PASSAGE]}),
    judge=_judge,
    # Late interaction reranks by its vectors of tokens (`tokens`), and classifies nothing.
    mark="/classify",
    unit="pairs",
    bench=Bench("vllm-rerank", "/v1/rerank", "random-rerank"),
)
