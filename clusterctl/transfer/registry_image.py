"""An image in a registry as a source: blobs are downloaded when they are first requested."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, TypeVar

from clusterctl.containers.driver import Say
from clusterctl.containers.reference import parse
from clusterctl.errors import ClusterctlError, StepFailed
from clusterctl.transfer.blob_store import BlobStore, WrongBytes
from clusterctl.transfer.content import CHUNK, Blob, ImageContent
from clusterctl.transfer.manifests import (
    INDEXES,
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
from clusterctl.transfer.registry.client import RegistryClient
from clusterctl.transfer.registry.endpoint import DOCKER, find_endpoint, find_mirrors
from clusterctl.transfer.registry.failures import RegistryFailed
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

    The first `open` of a blob downloads it into the store, and yields bytes as they arrive; at most
    4 blobs download at a time. `ask` is called for a user name and password if the registry
    requires a login that no file has. `insecure` names registries (host:port) that may be reached
    without TLS, besides loopback ones and those in Docker's configuration on this machine. `ca`:
    CA certificates in PEM to trust besides this machine's.

    Mirrors of Docker Hub in the engine's configuration (in `docker`) are tried first.

    Raises StepFailed and RequirementsNotMet (login, platform), with a hint.
    """

    def read(client: RegistryClient) -> RegistryImage:
        content, digest = _content(client, reference, platform, store)
        return RegistryImage(content, client, store, digest)

    return _at_registry(reference, read, say, ask, insecure, pause, docker, ca)


def tag_digest(reference: str, *, say: Say, docker: Path = DOCKER, ca: str = "") -> str:
    """Return the digest of the manifest or index that the tag of `reference` stands for now. Raises
    as `registry_image`."""
    tag = parse(reference).tag
    return _at_registry(
        reference, lambda client: digest_of(client.manifest(tag)[0]), say, docker=docker, ca=ca
    )


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
    """Return what `read` returns of the first mirror that answers, else of the registry."""
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
    """Return the image, and the digest that its name stands for: of the index, if there is one."""
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


class RegistryImage:
    """An image whose blobs are downloaded from a registry: each once, when it is first requested,
    at most AT_ONCE at a time."""

    def __init__(
        self, content: ImageContent, client: RegistryClient, store: BlobStore, digest: str
    ) -> None:
        self.content, self._client, self._store = content, client, store
        self.digest = digest  # What pins the image: of its index, or of its manifest without one
        self._free = threading.BoundedSemaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._arrivals: dict[str, Arrival] = {}

    def require_room(self, lacking: Collection[str]) -> None:
        """Raise RequirementsNotMet unless the layers with these diff IDs fit into the store."""
        pairs = zip(self.content.layers, self.content.diff_ids, strict=True)
        self._store.require_room(
            self._store.missing(layer for layer, diff_id in pairs if diff_id in lacking)
        )

    def fetch_ahead(self) -> None:
        """Start the download of all blobs. Raises RequirementsNotMet if they do not fit."""
        self._store.require_room(self._store.missing(self.content.blobs))
        for blob in self.content.blobs:
            if not self._store.holds(blob):
                self._start(blob)

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        """Yield the bytes as they arrive, the last chunk only after the digest was verified."""
        if self._store.holds(blob):
            yield from self._store.open(blob, offset)
            return
        arrival = self._start(blob)
        there = arrival.beyond(offset)
        with self._file(blob) as file:
            file.seek(offset)
            while offset < blob.size:
                chunk = file.read(min(CHUNK, there - offset))
                if not chunk:
                    raise StepFailed(f"{blob.digest} was discarded: its source sent wrong bytes")
                offset += len(chunk)
                if offset == blob.size:
                    arrival.beyond(None)
                yield chunk
                there = arrival.beyond(offset)

    def _start(self, blob: Blob) -> Arrival:
        """Return the running download of a blob; start one if there is none or it failed."""
        with self._lock:
            found = self._arrivals.get(blob.digest)
            if found is None or found.failed:
                found = self._arrivals[blob.digest] = Arrival()
                work, name = (blob, found), f"fetch-{blob.hex[:12]}"
                # A daemon: Ctrl-C does not wait for it, and the next run resumes its part file.
                threading.Thread(target=self._bring, args=work, name=name, daemon=True).start()
            return found

    def _bring(self, blob: Blob, arrival: Arrival) -> None:
        try:
            with self._free:
                self._store.fill(blob, lambda at: self._client.blob(blob, at), arrival.reached)
        except BaseException as error:  # raised again in the reading threads
            arrival.end(error)
        else:
            arrival.reached(blob.size)
            arrival.end(None)

    def _file(self, blob: Blob) -> BinaryIO:
        """Open the blob's file under the part name or, once complete, the final one."""
        for path in (self._store.part(blob.digest), self._store.path(blob.digest)):
            with suppress(FileNotFoundError):
                return path.open("rb")
        raise StepFailed(f"{blob.digest} is gone from {self._store.directory}")


class Arrival:
    """The download of a blob: how many of its bytes are in the store."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._ended = False
        self._error: BaseException | None = None

    @property
    def failed(self) -> bool:
        return self._error is not None

    def reached(self, count: int) -> None:
        with self._changed:
            self._count = count
            self._changed.notify_all()

    def end(self, error: BaseException | None) -> None:
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def beyond(self, offset: int | None) -> int:
        """Wait until more than `offset` bytes are in the store, or for None until the blob's digest
        was verified; return how many bytes are there. Raises the download's error; the download has
        timeouts, so the wait ends."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._ended or (offset is not None and self._count > offset)
            )
            if self._error is not None:
                raise _as_ours(self._error)
            return self._count


def _as_ours(error: BaseException) -> BaseException:
    """Copy `error` for each reader: one exception raised in two threads mixes their tracebacks."""
    if isinstance(error, WrongBytes):
        return WrongBytes(error.summary, hint=error.hint)
    if isinstance(error, ClusterctlError):
        return type(error)(error.summary, host=error.host, hint=error.hint, detail=error.detail)
    return error
