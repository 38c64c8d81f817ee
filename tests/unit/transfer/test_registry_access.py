"""Who may read from a registry, and over which ways: logins, tokens, proxies, certificates."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.containers.reference import parse
from clusterctl.errors import RequirementsNotMet, StepFailed
from clusterctl.transfer.registry.client import RegistryClient
from clusterctl.transfer.registry.endpoint import RegistryEndpoint, find_mirrors
from clusterctl.transfer.registry.logins import Logins
from clusterctl.transfer.registry_image import RegistryImage
from tests.fakes.image_archives import MadeImage
from tests.fakes.registry_server import RegistryServer, registry_server

Opened = Callable[..., RegistryImage]


def log_in(home: Path, registry: str, user: str, password: str) -> None:
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    (home / ".docker").mkdir()
    (home / ".docker" / "config.json").write_text(json.dumps({"auths": {registry: {"auth": auth}}}))


def read(found: RegistryImage) -> list[bytes]:
    """Each blob once, as relays ask for them."""
    return [b"".join(found.open(blob)) for blob in dict.fromkeys(found.content.blobs)]


def test_tokens_are_fetched_and_renewed(
    server: RegistryServer, image: MadeImage, pulled: Opened
) -> None:
    server.demand, server.token_life = "token", 2
    assert read(pulled(server.add("acme/vllm:1", image))) == [image.config, *image.layers[:2]]
    assert server.tokens == 2


@pytest.mark.parametrize("demand", ["token", "basic"])
def test_a_login_of_docker_is_used(
    server: RegistryServer, image: MadeImage, pulled: Opened, home: Path, demand: str
) -> None:
    server.demand, server.login = demand, ("ann", "a:secret")
    log_in(home, server.address, "ann", "a:secret")
    read(pulled(server.add("acme/vllm:1", image)))


@pytest.mark.parametrize("demand", ["token", "basic"])
def test_a_person_is_asked_where_no_file_has_a_login(
    server: RegistryServer, image: MadeImage, pulled: Opened, demand: str
) -> None:
    server.demand, server.login = demand, ("ann", "secret")
    reference = server.add("acme/vllm:1", image)
    read(pulled(reference, ask=lambda text: "secret" if "password" in text else "ann"))


@pytest.mark.parametrize("demand", ["token", "basic"])
def test_a_missing_login_says_how_to_give_it(
    server: RegistryServer, image: MadeImage, pulled: Opened, demand: str
) -> None:
    server.demand, server.login = demand, ("ann", "secret")
    with pytest.raises(RequirementsNotMet, match="asks for a login") as raised:
        pulled(server.add("acme/vllm:1", image))
    assert f"docker login {server.address}" in str(raised.value.hint)


@pytest.mark.parametrize("demand", ["token", "basic"])
def test_a_wrong_login_is_said_without_its_password(
    server: RegistryServer, image: MadeImage, pulled: Opened, home: Path, demand: str
) -> None:
    server.demand, server.login = demand, ("ann", "secret")
    log_in(home, server.address, "bob", "hunter2")
    with pytest.raises(RequirementsNotMet, match="refuses user bob") as raised:
        pulled(server.add("acme/vllm:1", image))
    error = raised.value
    assert "hunter2" not in f"{error.summary}{error.hint}{error.detail}"


def test_another_host_is_not_told_the_login(
    server: RegistryServer, image: MadeImage, pulled: Opened, home: Path
) -> None:
    with registry_server() as other:
        other.add("acme/vllm:1", image)
        server.demand, server.login = "basic", ("ann", "secret")
        log_in(home, server.address, "ann", "secret")
        server.redirect = f"http://localhost:{other.port}"
        read(pulled(server.add("acme/vllm:1", image)))
        assert len(other.requests) == 3
        assert not any(one.authorization for one in other.requests)


def test_an_identity_token_is_not_led_elsewhere(
    server: RegistryServer, image: MadeImage, pulled: Opened, home: Path
) -> None:
    with registry_server() as other:
        server.demand, server.redirect = "token", f"http://localhost:{other.port}"
        (home / ".docker").mkdir()
        auths = {"auths": {server.address: {"identitytoken": "refresh-me"}}}
        (home / ".docker" / "config.json").write_text(json.dumps(auths))
        with pytest.raises(StepFailed, match="answers HTTP 307"):
            pulled(server.add("acme/vllm:1", image))
        assert ["refresh-me" in form for form in server.forms] == [True]
        assert other.forms == []


def test_a_proxy_is_used_but_not_for_this_machine(
    server: RegistryServer, image: MadeImage, pulled: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = server.add("acme/vllm:1", image)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://192.0.2.1:9")
    read(pulled(reference))
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://{server.address}")
    far = "registry.invalid:80"
    read(pulled(f"{far}/acme/vllm:1", insecure=[far]))
    with pytest.raises(StepFailed, match="proxy refuses connections"):
        pulled("registry.invalid/acme/vllm:1")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """For localhost, signed by nobody; with its key."""
    path = tmp_path / "certs" / "ca.crt"
    path.parent.mkdir()
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    into = ["-nodes", "-days", "2", "-keyout", str(path.with_suffix(".pem")), "-out", str(path)]
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*make, *into, *name], check=True, capture_output=True)
    return path


def test_a_certificate_of_its_own_must_be_known(certificate: Path, image: MadeImage) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, certificate.with_suffix(".pem"))
    with registry_server(tls) as server:
        server.add("acme/vllm:1", image)
        name = parse(f"localhost:{server.port}/acme/vllm:1")
        strange = RegistryEndpoint(name.registry, insecure=False)
        with pytest.raises(StepFailed, match="is not trusted") as raised:
            RegistryClient(name, strange, Logins(), say=print).manifest("1")
        assert f"certs.d/{name.registry}/ca.crt" in str(raised.value.hint)
        known = RegistryEndpoint(name.registry, False, certificate.parent)
        data, _ = RegistryClient(name, known, Logins(), say=print).manifest("1")
        assert data == image.manifest


def test_a_registry_without_tls_says_how_to_allow_it(
    server: RegistryServer, image: MadeImage
) -> None:
    name = parse(server.add("acme/vllm:1", image))
    strict = RegistryEndpoint(name.registry, insecure=False)
    with pytest.raises(StepFailed, match="TLS handshake with") as raised:
        RegistryClient(name, strict, Logins(), say=print).manifest("1")
    assert "insecure-registries" in str(raised.value.hint)


def test_mirrors_of_docker_hub_are_asked_first_and_by_their_own_login(
    server: RegistryServer, image: MadeImage, pulled: Opened, home: Path, said: list[str]
) -> None:
    with registry_server() as empty:
        server.demand, server.login = "basic", ("ann", "secret")
        server.add("acme/vllm:1", image)
        log_in(home, server.address, "ann", "secret")
        mirrors = [f"http://{empty.address}", f"http://{server.address}/"]
        (home / "daemon.json").write_text(json.dumps({"registry-mirrors": mirrors}))
        found = pulled("acme/vllm:1", docker=home)
        assert found.content.reference == "acme/vllm:1"
        assert read(found) == [image.config, *image.layers[:2]]
        assert any(f"mirror {empty.address} was not used" in line for line in said)
        assert not any(one.authorization for one in empty.requests)


def test_other_registries_have_no_mirrors(tmp_path: Path) -> None:
    (tmp_path / "daemon.json").write_text('{"registry-mirrors": ["https://mirror.example"]}')
    assert [one.registry for one in find_mirrors("docker.io", tmp_path)] == ["mirror.example"]
    assert not find_mirrors("ghcr.io", tmp_path)
