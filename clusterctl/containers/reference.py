"""Image references, such as `registry:5000/acme/vllm:1@sha256:...`. Pure."""

from __future__ import annotations

from dataclasses import dataclass

DOCKER_HUB = "docker.io"


@dataclass(frozen=True)
class Reference:
    """A reference taken apart, with what Docker takes for granted filled in."""

    registry: str  # Host and port: docker.io, registry:5000
    path: str  # library/ubuntu, vllm/vllm-openai
    tag: str  # `latest` where none is said
    digest: str | None  # Of the manifest or index; it wins over the tag

    @property
    def name(self) -> str:
        """The same for all spellings: docker.io/library/ubuntu:latest."""
        return f"{self.registry}/{self.path}:{self.tag}"


def parse(reference: str) -> Reference:
    """`ubuntu` is docker.io/library/ubuntu:latest; a first part with a dot, a colon, or that is
    `localhost` names a registry."""
    repository, tag = repository_and_tag(reference)
    registry, slash, path = repository.partition("/")
    if not slash or not ("." in registry or ":" in registry or registry == "localhost"):
        registry, path = DOCKER_HUB, repository
    if registry == "index.docker.io":
        registry = DOCKER_HUB
    if registry == DOCKER_HUB and "/" not in path:
        path = f"library/{path}"
    return Reference(registry, path, tag or "latest", reference.partition("@")[2] or None)


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
