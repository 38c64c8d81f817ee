"""Uncompressed layers are compressed on their way where asked, or over a slow link."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.transfer.archive_image import archive_image
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.content import Blob
from clusterctl.transfer.engine_state import WORTH_COMPRESSING, uncompressed
from clusterctl.transfer.relay import wire
from clusterctl.transfer.relay.upstream import Source, UpstreamStats
from clusterctl.transfer.source_multiplexer import (
    PIECE,
    SharedSource,
    SourceMultiplexer,
    Throttle,
)
from clusterctl.transfer.transfer import SLOW_LINK, Route
from tests.fakes.image_archives import MadeImage, layer_tar, sha256, tar_of

PLAIN = b"a line of text\n" * 100_000
DENSE = os.urandom(1_000_000)


def test_the_layers_that_hosts_lack_are_compressed(tmp_path: Path) -> None:
    large, small = tar_of({"big": bytes(WORTH_COMPRESSING)}), layer_tar("ray", 5000)
    path = tmp_path / "image.tar"
    path.write_bytes(MadeImage("acme/vllm:1", (large, small)).legacy())
    store = BlobStore(tmp_path / "cache")
    content = archive_image(path, store, reference=None, platform=None, say=print).content
    first, second = content.diff_ids
    assert uncompressed(content, {first, second}) == content.layers
    assert uncompressed(content, {first}) == content.layers[:1]
    assert uncompressed(content, {second}) == (), "it is there before it is compressed"


@pytest.mark.parametrize(
    ("compress", "rate", "compresses"),
    [
        (None, None, False),
        (None, SLOW_LINK, False),
        (None, SLOW_LINK - 1, True),
        (True, None, True),
        (False, SLOW_LINK - 1, False),
    ],
)
def test_the_flag_decides(compress: bool | None, rate: int | None, compresses: bool) -> None:
    route = Route({}, lambda host: host, limit_rate=rate, compress=compress)
    assert route.compresses is compresses


class Bytes:
    """A source of PLAIN and DENSE."""

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        data = PLAIN if blob.size == len(PLAIN) else DENSE
        yield data[offset:]


class ToRelay:
    """Gives the frames of the source to a relay's end of the line."""

    def __init__(self) -> None:
        self.kinds: set[bytes] = set()
        self.sent = 0
        self.source = Source(UpstreamStats("source"), self._ask)
        self.line: SourceMultiplexer | None = None

    def send(self, kind: bytes, stream: int, payload: bytes) -> None:
        self.kinds.add(kind)
        self.sent += len(payload)
        self.source.deliver(kind, stream, payload)

    def close(self) -> None:
        raise AssertionError("the line broke")

    def _ask(self, kind: bytes, stream: int, payload: bytes) -> None:
        assert self.line
        threading.Thread(target=self.line.take, args=(kind, stream, payload)).start()


@pytest.mark.parametrize(("data", "is_packed"), [(PLAIN, True), (DENSE, True), (PLAIN, False)])
def test_a_relay_gets_the_bytes_as_they_were(data: bytes, is_packed: bool) -> None:
    blob = Blob(sha256(data), len(data))
    packed = {blob.digest} if is_packed else set()
    shared = SharedSource(Bytes(), {blob.digest: blob}, Throttle(None), packed=packed)
    relay = ToRelay()
    relay.line = SourceMultiplexer(shared, relay)
    begin = PIECE // 2
    got = b"".join(relay.source.pieces(blob.hex, begin, blob.size - begin, 60.0))
    relay.line.close()
    assert got == data[begin:]
    # The end is sent after the last byte, which the reader does not wait for.
    assert relay.kinds - {wire.END} == {wire.PACKED if is_packed else wire.DATA}
    assert shared.sent == relay.sent
    if is_packed and data is PLAIN:
        assert relay.sent < len(zlib.compress(PLAIN, 1)) * 2
