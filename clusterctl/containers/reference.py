"""Image references, such as `registry:5000/acme/vllm:1@sha256:...`. Pure."""

from __future__ import annotations


def repository_and_tag(reference: str) -> tuple[str, str | None]:
    """`registry:5000/acme/vllm` and `1`; None where no tag is said."""
    name = reference.partition("@")[0]
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        return name, None
    return repository, tag


def tagged(reference: str) -> str:
    """The name an image goes by on a host: with its tag, `latest` by default, no digest."""
    repository, tag = repository_and_tag(reference)
    return f"{repository}:{tag or 'latest'}"
