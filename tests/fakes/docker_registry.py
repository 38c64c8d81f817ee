"""Docker's own registry, run on loopback for a test."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import bcrypt
import httpx2
import pytest

from tests.fakes.image_archives import MadeImage, sha256
from tests.fakes.ports import port_of, reserved

START_LIMIT = 30.0


@dataclass(frozen=True)
class Registry:
    """A docker-registry that runs on this machine."""

    address: str
    login: tuple[str, str] | None
    certificate: Path | None = None

    def push(self, image: MadeImage) -> str:
        """The reference to pull."""
        path, tag = image.name.split(":")
        with httpx2.Client(
            base_url=f"{_scheme(self.certificate)}://{self.address}/v2/{path}",
            auth=self.login,
            verify=False,
        ) as http:
            for data in (image.config, *image.layers):
                begun = http.post("/blobs/uploads/")
                where = httpx2.URL(begun.headers["Location"]).copy_merge_params(
                    {"digest": sha256(data)}
                )
                http.put(where, content=data).raise_for_status()
            kind = "application/vnd.oci.image.manifest.v1+json"
            http.put(
                f"/manifests/{tag}", content=image.manifest, headers={"Content-Type": kind}
            ).raise_for_status()
        return f"{self.address}/{image.name}"


def _scheme(certificate: Path | None) -> str:
    return "https" if certificate else "http"


def _configuration(
    home: Path, address: str, login: tuple[str, str] | None, certificate: Path | None
) -> str:
    tls = ""
    if certificate:
        tls = f", tls: {{certificate: {certificate}, key: {certificate.with_suffix('.key')}}}"
    text = (
        "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\n"
        f"storage: {{filesystem: {{rootdirectory: {home}/data}}}}\n"
        f"http: {{addr: '{address}'{tls}}}\n"
    )
    if login:
        hashed = bcrypt.hashpw(login[1].encode(), bcrypt.gensalt(4)).decode()
        (home / "htpasswd").write_text(f"{login[0]}:{hashed}\n")
        text += f"auth: {{htpasswd: {{realm: test, path: {home}/htpasswd}}}}\n"
    return text


@contextmanager
def docker_registry(
    home: Path,
    login: tuple[str, str] | None = None,
    certificate: Path | None = None,
    ip: str = "127.0.0.1",
    port: int | None = None,
) -> Iterator[Registry]:
    """`certificate`: speak TLS with it; its key is beside it. Any free port, without one."""
    with reserved() as reservation, (home / "log").open("wb") as log:
        address = f"{ip}:{port or port_of(reservation)}"
        yield from _running(home, address, login, log, certificate)


def _running(
    home: Path,
    address: str,
    login: tuple[str, str] | None,
    log: BinaryIO,
    certificate: Path | None,
) -> Iterator[Registry]:
    (home / "config.yml").write_text(_configuration(home, address, login, certificate))
    argv = ["docker-registry", "serve", str(home / "config.yml")]
    process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT)
    try:
        _await(f"{_scheme(certificate)}://{address}/v2/", process, home / "log")
        yield Registry(address, login, certificate)
    finally:
        process.terminate()
        process.wait(30)


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT
    while True:
        try:
            httpx2.get(url, verify=False)
        except httpx2.TransportError:
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"docker-registry did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.05)
        else:
            return
