"""Image references taken apart."""

from __future__ import annotations

import pytest

from clusterctl.containers.reference import repository_and_tag


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("vllm/vllm-openai:v0.33.0", ("vllm/vllm-openai", "v0.33.0")),
        ("vllm/vllm-openai", ("vllm/vllm-openai", None)),
        ("registry:5000/acme/vllm", ("registry:5000/acme/vllm", None)),
        ("registry:5000/acme/vllm:1", ("registry:5000/acme/vllm", "1")),
        ("acme/vllm:1@sha256:" + "0" * 64, ("acme/vllm", "1")),
        ("acme/vllm@sha256:" + "0" * 64, ("acme/vllm", None)),
    ],
)
def test_repository_and_tag(reference: str, parts: tuple[str, str | None]) -> None:
    assert repository_and_tag(reference) == parts
