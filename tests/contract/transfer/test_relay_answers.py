"""What a relay answers, and to whom."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import pytest

from clusterctl.transfer.chain import Chain
from clusterctl.transfer.content import Blob, ImageContent
from tests.contract.transfer.conftest import MIB, Bench

MANIFEST = b'{"schemaVersion": 2,\n\t"mediaType": "100%"\r\n}'
"""Bytes that a line protocol could hurt."""


@dataclass
class Answering:
    chain: Chain
    blob: Blob
    content: bytes
    closing: contextlib.ExitStack

    @property
    def root(self) -> str:
        path, _, _ = self.chain.pull_reference("h1").partition("/")[2].rpartition(":")
        return f"/v2/{path}"

    def as_engine(self) -> Client:
        return self.closing.enter_context(Client(self.engine))

    def as_relay(self) -> Client:
        return self.closing.enter_context(Client(self.peer))

    @property
    def engine(self) -> int:
        return int(self.chain.pull_reference("h1").partition(":")[2].partition("/")[0])

    @property
    def peer(self) -> int:
        return self.chain._supervisors["h1"].ports.peer

    @property
    def token(self) -> str:
        return self.chain._supervisors["h1"]._token


@pytest.fixture
def answering(bench: Bench) -> Iterator[Answering]:
    blob = bench.source.add(MIB)
    image = ImageContent(
        reference="registry.example:5000/team/vllm:v1@sha256:00",
        manifest=MANIFEST,
        media_type="application/vnd.oci.image.manifest.v1+json",
        config=blob,
        layers=(),
        diff_ids=(),
        platform="linux/amd64",
    )
    with (
        bench.chain(bench.links(1), [], image=image) as chain,
        contextlib.ExitStack() as closing,
    ):
        yield Answering(chain, blob, bench.source.data[blob.digest], closing)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """One kept connection."""

    def __init__(self, port: int) -> None:
        self.stream = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.file = self.stream.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_reason: object) -> None:
        self.file.close()
        self.stream.close()

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        rows = [f"{method} {path} HTTP/1.1", "Host: x", *(f"{k}: {v}" for k, v in headers.items())]
        self.stream.sendall("\r\n".join([*rows, "", ""]).encode())
        status = int(self.file.readline().split()[1])
        found = {}
        while line := self.file.readline().strip():
            name, _, value = line.decode().partition(": ")
            found[name.lower()] = value
        size = 0 if method == "HEAD" else int(found.get("content-length", 0))
        return Answer(status, found, self.file.read(size))


def test_an_engine_reads_the_manifest_and_the_blobs(answering: Answering) -> None:
    client = answering.as_engine()
    digest = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"

    assert client.ask("/v2/").status == 200
    for name in ("v1", digest):
        head = client.ask(f"{answering.root}/manifests/{name}", method="HEAD")
        got = client.ask(f"{answering.root}/manifests/{name}")
        assert (head.status, head.body, got.body) == (200, b"", MANIFEST)
        assert got.headers == head.headers
        assert got.headers["docker-content-digest"] == digest
        assert got.headers["content-type"] == "application/vnd.oci.image.manifest.v1+json"
    path = f"{answering.root}/blobs/{answering.blob.digest}"
    head = client.ask(path, method="HEAD")
    assert (head.status, head.headers["content-length"]) == (200, str(MIB))
    assert client.ask(path).body == answering.content


def test_ranges_of_blobs(answering: Answering) -> None:
    client = answering.as_engine()
    path = f"{answering.root}/blobs/{answering.blob.digest}"

    middle = client.ask(path, Range="bytes=10-19")
    assert (middle.status, middle.body) == (206, answering.content[10:20])
    assert middle.headers["content-range"] == f"bytes 10-19/{MIB}"
    assert client.ask(path, Range=f"bytes={MIB - 5}-").body == answering.content[-5:]
    assert client.ask(path, Range="bytes=-5").body == answering.content[-5:]
    assert client.ask(path, Range=f"bytes={MIB}-").status == 416
    assert client.ask(path, Range="lines=1-2").status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v2/_catalog",
        "{root}/manifests/v2",
        "{root}/blobs/sha256:" + "0" * 64,
        "/v2/" + "0" * 32 + "/vllm/manifests/v1",
        "/v2/vllm/blobs/{digest}",
        "/",
    ],
)
def test_an_engine_gets_nothing_that_the_relay_was_not_told_of(
    answering: Answering, path: str
) -> None:
    asked = path.format(root=answering.root, digest=answering.blob.digest)

    assert answering.as_engine().ask(asked).status == 404


def test_nothing_can_be_written(answering: Answering) -> None:
    answer = answering.as_engine().ask(f"{answering.root}/blobs/uploads/", method="POST")

    assert answer.status == 405


def test_an_engine_that_tries_tls_is_told_in_http(answering: Answering) -> None:
    """containerd goes on without TLS only if the answer begins so."""
    with socket.create_connection(("127.0.0.1", answering.engine), timeout=20) as stream:
        stream.sendall(b"\x16\x03\x01\x02\x00" + b"\x01" * 512)
        assert stream.recv(5) == b"HTTP/"


def test_a_relay_gets_blobs_with_the_token_of_the_run_alone(answering: Answering) -> None:
    path = f"/blobs/{answering.blob.digest}"
    assert re.fullmatch(r"[0-9a-f]{64}", answering.token)

    assert answering.as_relay().ask(path).status == 401
    assert answering.as_relay().ask(path, Authorization="Bearer guessed").status == 401
    token = {"Authorization": f"Bearer {answering.token}"}
    assert answering.as_relay().ask(path, **token).status == 206
    assert answering.as_relay().ask("/blobs/sha256:" + "0" * 64, **token).status == 404
    assert answering.as_relay().ask("/etc/passwd", **token).status == 404
    assert answering.as_relay().ask(f"{answering.root}/manifests/v1", **token).status == 404


def test_noise_ends_a_connection_and_nothing_else(answering: Answering) -> None:
    for noise in (b"\0" * 100 + b"\r\n\r\n", b"GET\r\n\r\n", b"x" * 100_000):
        with socket.create_connection(("127.0.0.1", answering.peer), timeout=20) as stream:
            stream.sendall(noise)
            stream.shutdown(socket.SHUT_WR)
            assert stream.recv(12) in (b"", b"HTTP/1.1 400", b"HTTP/1.1 414")
    assert answering.as_engine().ask("/v2/").status == 200


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_other_users_of_the_host_get_no_image_although_they_see_its_name(
    answering: Answering,
) -> None:
    """The name is among the arguments of `docker pull`."""
    path = f"{answering.root}/manifests/v1"
    asked = (
        "import os, socket, sys; 'x'.encode('idna'); os.setuid(65534); "
        f"s = socket.create_connection(('127.0.0.1', {answering.engine}), 20); "
        f"s.sendall(b'GET {path} HTTP/1.0\\r\\n\\r\\n'); "
        "sys.stdout.write(s.makefile().read())"
    )
    done = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 or "ConnectionResetError" in done.stderr, done.stderr
    assert done.stdout == ""
    assert answering.as_engine().ask(path).body == MANIFEST
