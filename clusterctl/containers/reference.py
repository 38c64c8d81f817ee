"""Image references, such as `registry:5000/acme/vllm:1@sha256:...`. Pure."""

from __future__ import annotations

from dataclasses import dataclass

DOCKER_HUB = "docker.io"


@dataclass(frozen=True)
class Reference:
    """A parsed reference, with Docker's defaults filled in."""

    registry: str  # Host and port: docker.io, registry:5000
    path: str  # library/ubuntu, vllm/vllm-openai
    tag: str  # `latest` if none is given
    digest: str | None  # Of the manifest or index; takes precedence over the tag

    @property
    def name(self) -> str:
        """The full name, such as docker.io/library/ubuntu:latest for `ubuntu`."""
        return f"{self.registry}/{self.path}:{self.tag}"


def parse(reference: str) -> Reference:
    """Parse a reference. The first part names a registry if it has a dot or a colon, or is
    `localhost`; `ubuntu` is docker.io/library/ubuntu:latest."""
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
    """Split into `registry:5000/acme/vllm` and `1`; the latter is None if there is no tag."""
    name = reference.partition("@")[0]
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        return name, None
    return repository, tag


def pinned(reference: str, digest: str) -> str:
    """Return the reference with its tag, which is its name on hosts, and with that digest."""
    return f"{reference.partition('@')[0]}@{digest}"


def tagged(reference: str) -> str:
    """Return the name of an image on a host: with its tag (default `latest`), without a digest."""
    repository, tag = repository_and_tag(reference)
    return f"{repository}:{tag or 'latest'}"
