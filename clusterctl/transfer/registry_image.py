"""An image in a registry as a source."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from clusterctl.containers.driver import Say
from clusterctl.containers.meter import Meter
from clusterctl.containers.reference import parse
from clusterctl.errors import ClusterctlError, StepFailed
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.content import (
    INDEXES,
    Blob,
    ImageContent,
    NotAnImage,
    blob_of,
    choose,
    digest_of,
    document,
    fits,
    image_content,
    listed,
    wrong_platform,
)
from clusterctl.transfer.registry.client import RegistryClient, RegistryFailed
from clusterctl.transfer.registry.endpoint import DOCKER, find_endpoint, find_mirrors
from clusterctl.transfer.registry.logins import Logins
from clusterctl.transport.credentials import Ask, nobody

T = TypeVar("T")

AT_ONCE = 4  # Parallel downloads: one stream seldom fills a fast link, and registries count them


def registry_image(
    reference: str,
    platform: str,
    store: BlobStore,
    *,
    say: Say,
    ask: Ask = nobody,
    insecure: Collection[str] = (),
    pause: Callable[[float], None] = time.sleep,
    docker: Path = DOCKER,
    ca: str = "",
) -> RegistryImage:
    """Return the image `reference` for `platform` (linux/amd64); only its manifest and config are
    fetched here.

    `ask` prompts for a user name and password if the registry requires a login that is in no file.
    `insecure` names registries (host:port) that may be reached without TLS, besides loopback ones
    and those in Docker's configuration on this machine. `ca`: CA certificates in PEM to trust
    besides this machine's.

    Mirrors of Docker Hub in the engine's configuration (in `docker`) are tried first.

    Raises StepFailed and RequirementsNotMet (login, platform), with a hint.
    """

    def read(client: RegistryClient) -> RegistryImage:
        content, digest = _content(client, reference, platform, store)
        return RegistryImage(content, client, store, digest)

    return _at_registry(reference, read, say, ask, insecure, pause, docker, ca)


def tag_digest(reference: str, *, say: Say, ca: str = "") -> str:
    """Return the digest of the manifest or index that the tag of `reference` stands for now. Raises
    what `registry_image` raises."""
    tag = parse(reference).tag
    return _at_registry(reference, lambda client: digest_of(client.manifest(tag)[0]), say, ca=ca)


def _at_registry(
    reference: str,
    read: Callable[[RegistryClient], T],
    say: Say,
    ask: Ask = nobody,
    insecure: Collection[str] = (),
    pause: Callable[[float], None] = time.sleep,
    docker: Path = DOCKER,
    ca: str = "",
) -> T:
    """Return the result of `read` for the first mirror that answers, else for the registry."""
    named = parse(reference)

    def attempt(client: RegistryClient) -> T:
        try:
            return read(client)
        except NotAnImage as error:
            raise RegistryFailed(f"{reference} cannot be used: {error}") from error

    for mirror in find_mirrors(named.registry, docker, ca):
        # Under the mirror's name, so that its own login is used and not Docker Hub's.
        there = replace(named, registry=mirror.registry)
        client = RegistryClient(there, mirror, Logins(), say=say, pause=pause)
        try:
            return attempt(client)
        except ClusterctlError as error:
            say(f"the mirror {mirror.registry} was not used: {error.summary}")
    endpoint = find_endpoint(named.registry, insecure, docker, ca)
    client = RegistryClient(named, endpoint, Logins(ask=ask), say=say, pause=pause)
    return attempt(client)


def _content(
    client: RegistryClient, reference: str, platform: str, store: BlobStore
) -> tuple[ImageContent, str]:
    """Return the image, and the digest of its name: the index's, if there is one."""
    named = parse(reference)
    manifest, kind = _document(client, named.digest or named.tag, store)
    digest = digest_of(manifest)
    if kind in INDEXES:
        found = listed(document(manifest, "the index"))
        chosen = choose(found, platform, reference)
        manifest, kind = _document(client, chosen.blob.digest, store)
    config_blob = blob_of(document(manifest, "the manifest").get("config"))
    if store.holds(config_blob):
        config = b"".join(store.open(config_blob))
    else:
        config = client.config(config_blob)
    content = image_content(reference, manifest, config, kind)
    store.keep(config)
    if content.platform and not fits(content.platform, platform):
        raise wrong_platform(reference, platform, (content.platform,))
    return content, digest


def _document(client: RegistryClient, name: str, store: BlobStore) -> tuple[bytes, str]:
    """Return a manifest and its media type (from itself, else from the registry). A manifest named
    by digest is requested once."""
    if name.startswith("sha256:"):
        kind = store.recall(f"manifest-{name.removeprefix('sha256:')}")
        if isinstance(kind, str):
            with suppress(OSError):
                return store.path(name).read_bytes(), kind
    data, kind = client.manifest(name)
    kind = str(document(data, "the manifest").get("mediaType") or kind)
    if kind.startswith("application/vnd.docker.distribution.manifest.v1"):
        raise NotAnImage("its manifest has schema version 1, which is no longer supported")
    store.remember(f"manifest-{store.keep(data).name}", kind)
    return data, kind


@dataclass(frozen=True)
class RegistryImage:
    """An image in a registry, which is read whenever a blob is requested that the store lacks.
    Receivers verify the bytes by their digest."""

    content: ImageContent
    client: RegistryClient
    store: BlobStore
    digest: str  # What pins the image: of its index, or of its manifest without one

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        if self.store.holds(blob):
            return self.store.open(blob, offset)
        return self.client.blob(blob, offset)

    def download(self, say: Say) -> None:
        """Download all blobs into the store, AT_ONCE at a time; a later run resumes. Raises
        RequirementsNotMet if they do not fit, WrongBytes, LockHeld, RegistryFailed."""
        blobs = {blob.digest: blob for blob in self.content.blobs}
        lacking = [blob for blob in blobs.values() if not self.store.holds(blob)]
        missing = self.store.missing(lacking)
        self.store.require_room(missing)

        meter, counting, stopped = Meter(say, missing), threading.Lock(), threading.Event()

        def fetch(blob: Blob, offset: int) -> Iterator[bytes]:
            for chunk in self.client.blob(blob, offset):
                if stopped.is_set():
                    raise StepFailed("the download was stopped")
                yield chunk
                with counting:
                    meter.reached(meter.bytes + len(chunk))

        pool = ThreadPoolExecutor(AT_ONCE, "registry")
        try:
            for _ in pool.map(lambda blob: self.store.fill(blob, partial(fetch, blob)), lacking):
                pass
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)
