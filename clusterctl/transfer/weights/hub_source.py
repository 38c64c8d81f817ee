"""A model on a hub as a source of blobs. The first host reads them, or this machine, which passes
them on as they arrive and keeps none. What an interrupted run sent stays on the hosts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub.utils import http_stream_backoff  # type: ignore[attr-defined]  # lazily

from clusterctl.containers.driver import Say
from clusterctl.errors import ClusterctlError, StepFailed
from clusterctl.inventory.outside import Outside
from clusterctl.transfer.chain_link import Web
from clusterctl.transfer.content import CHUNK, Blob
from clusterctl.transfer.resuming import Retries, resumed
from clusterctl.transfer.weights.hashing import HashCache, Hashed, Stamp, hash_file
from clusterctl.transfer.weights.host_transport import credentials, unreached
from clusterctl.transfer.weights.hub import (
    FILE,
    Hub,
    HubFile,
    Listing,
    hub_errors,
    refusal_of_file,
)
from clusterctl.transfer.weights.manifest import Manifest


class HubSource:
    """The BlobSource of the files in `listing`, to be used within `hub_session`. Files that the
    hub's own client has on this machine are read there."""

    def __init__(
        self, hub: Hub, listing: Listing, *, say: Say, cache: HashCache | None = None
    ) -> None:
        self._hub, self._listing = hub, listing
        self._say, self._retries = say, Retries(say)
        self._cache = cache or HashCache()
        self._files: dict[str, HubFile] = {}  # By digest

    def manifest(self, name: str) -> Manifest:
        """Return the manifest of the model in a directory `name`. Reads the files whose SHA-256 the
        hub does not publish: with Hugging Face, the small ones. Raises the hub's errors."""
        hashed: dict[str, Hashed] = {}
        for file in self._listing.files:
            if not file.sha256:
                self._say(f"reading {file.path}")
                hashed[file.path] = self._hashed(file)
        manifest = self._listing.manifest(name, hashed)
        by_path = {file.path: file for file in self._listing.files}
        self._files = {each.blob.digest: by_path[each.path] for each in manifest.files}
        return manifest

    def read_by(self, host: str, outside: Outside, *, entrusted: bool) -> Web:
        """Return how a host reads these files itself: with the user's credentials if it is
        `entrusted`."""
        headers = credentials(self._hub.headers) if entrusted else {}
        urls = {digest.partition(":")[2]: file.url for digest, file in self._files.items()}

        def unserved(digest: str, said: Mapping[str, Any]) -> ClusterctlError:
            file = self._files[f"sha256:{digest}"]
            if "status" in said:
                status, named = int(said["status"]), said["headers"]
                return refusal_of_file(self._hub, self._listing, file.url, status, named)
            return unreached(f"{file.path} did not arrive: {said['text']}", host)

        return Web(urls, headers, outside, unserved)

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        """See BlobSource. Raises the hub's errors."""
        file = self._files[blob.digest]
        path = self._cached(file)
        if path is None:
            yield from self._arriving(file, offset)
            return
        with path.open("rb") as opened:
            opened.seek(offset)
            while piece := opened.read(CHUNK):
                yield piece

    def _arriving(self, file: HubFile, offset: int = 0) -> Iterator[bytes]:
        return resumed(partial(self._ask, file), file.path, file.size, offset, self._retries)

    @contextmanager
    def _ask(self, file: HubFile, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
        """Request the file. The hub's client waits as long as a rate limit says, and retries what
        servers answer when they are overloaded."""
        asked = {**self._hub.headers, **headers, "Accept-Encoding": "identity"}
        model, revision = self._listing.model_id, self._listing.revision
        with (
            hub_errors(self._hub, model, revision),
            http_stream_backoff(
                "GET", file.url, headers=asked, retry_on_exceptions=(), extensions=FILE
            ) as response,
        ):
            if not response.is_success:
                response.read()
                raise self._hub.refusal(response, model, revision)
            yield response

    def _hashed(self, file: HubFile) -> Hashed:
        for _ in range(2):
            whole = hashlib.sha256()
            git = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
            for piece in self._arriving(file):
                whole.update(piece)
                git.update(piece)
            if file.git_sha1 in ("", git.hexdigest()):
                return Hashed(whole.hexdigest(), ())
        raise StepFailed(
            f"{file.path} arrived twice with a hash other than the hub's",
            hint="check the hub's address, and that no other server answers in its place",
        )

    def _cached(self, file: HubFile) -> Path | None:
        """Return the file in the cache of the hub's own client, if it is there and undamaged."""
        path = self._hub.cached(self._listing, file)
        if path is None or not file.sha256 or path.stat().st_size != file.size:
            return None
        stamp = Stamp.of(path)
        found = self._cache.get(stamp) or hash_file(path)
        self._cache.put(stamp, found)
        return path if found.sha256 == file.sha256 else None
