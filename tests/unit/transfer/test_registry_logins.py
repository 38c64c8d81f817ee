"""Logins are found where docker and podman keep them; certificates and plain HTTP likewise."""

from __future__ import annotations

import base64
import json
import ssl
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from clusterctl.errors import RequirementsNotMet
from clusterctl.transfer.registry.client import (
    Challenge,
    RegistryFailed,
    answered,
    parse_challenges,
    unreached,
)
from clusterctl.transfer.registry.endpoint import find_endpoint
from clusterctl.transfer.registry.logins import Login, Logins

HUB = "https://index.docker.io/v1/"


def auth(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def written(home: Path, config: Any, path: str = ".docker/config.json") -> Logins:
    file = home / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(config if isinstance(config, str) else json.dumps(config))
    return Logins({"HOME": str(home), "PATH": f"{home}/bin:/usr/bin:/bin"})


@pytest.mark.parametrize(
    ("key", "registry"),
    [
        (HUB, "docker.io"),
        ("registry:5000", "registry:5000"),
        ("https://registry:5000", "registry:5000"),
        ("https://registry:5000/v1/", "registry:5000"),
    ],
)
def test_a_login_by_any_of_its_names(tmp_path: Path, key: str, registry: str) -> None:
    logins = written(tmp_path, {"auths": {key: auth("ann", "a:b")}})
    assert logins.find(registry) == Login("ann", "a:b")
    assert logins.find("other:5000") is None


def test_podman_keeps_them_elsewhere(tmp_path: Path) -> None:
    path = ".config/containers/auth.json"
    logins = written(tmp_path, {"auths": {"ghcr.io": auth("ann", "x")}}, path)
    assert logins.find("ghcr.io") == Login("ann", "x")


def test_an_identity_token_stands_for_a_password(tmp_path: Path) -> None:
    logins = written(tmp_path, {"auths": {"r.io": {"identitytoken": "abc"}}})
    found = logins.find("r.io")
    assert found
    assert found.is_token
    assert "abc" not in repr(found)


def helper(home: Path, text: str) -> None:
    path = home / "bin" / "docker-credential-test"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_helper_of_one_registry(tmp_path: Path) -> None:
    helper(tmp_path, 'cat >/dev/null; echo \'{"Username": "ann", "Secret": "x"}\'')
    logins = written(tmp_path, {"credHelpers": {"r.io": "test"}})
    assert logins.find("r.io") == Login("ann", "x")
    assert logins.find("other.io") is None


def test_a_helper_that_knows_nobody(tmp_path: Path) -> None:
    helper(tmp_path, "cat >/dev/null; echo credentials not found in native keychain; exit 1")
    assert written(tmp_path, {"credsStore": "test"}).find("docker.io") is None


@pytest.mark.parametrize("text", ["cat >/dev/null; echo locked; exit 1", "echo nonsense"])
def test_a_helper_that_fails_is_named(tmp_path: Path, text: str) -> None:
    helper(tmp_path, text)
    with pytest.raises(RequirementsNotMet, match="docker-credential-test"):
        written(tmp_path, {"credsStore": "test"}).find("docker.io")


def test_a_helper_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequirementsNotMet, match="docker-credential-gone"):
        written(tmp_path, {"credsStore": "gone"}).find("docker.io")


@pytest.mark.parametrize(
    "config", ["{", {"auths": {"r.io": {"auth": "%%"}}}, {"auths": {"r.io": {"auth": "ü"}}}]
)
def test_a_damaged_file_is_named(tmp_path: Path, config: Any) -> None:
    with pytest.raises(RequirementsNotMet, match=r"config\.json"):
        written(tmp_path, config).find("r.io")


def test_nobody_answers_the_question() -> None:
    assert Logins({"HOME": "/none"}, ask=lambda _: None).ask("r.io") is None


@pytest.mark.parametrize(
    ("registry", "free"),
    [
        ("127.0.0.1:5000", True),
        ("127.8.8.8", True),
        ("[::1]:5000", True),
        ("localhost:5000", True),
        ("registry.example", False),
        ("registry.example:5000", True),
        ("10.1.2.3:5000", True),
        ("192.168.1.1:5000", False),
        ("docker.io", False),
    ],
)
def test_which_registries_may_do_without_tls(tmp_path: Path, registry: str, free: bool) -> None:
    named = ["registry.example:5000", "10.0.0.0/8"]
    (tmp_path / "daemon.json").write_text(json.dumps({"insecure-registries": named}))
    endpoint = find_endpoint(registry, docker=tmp_path)
    assert endpoint.insecure is free
    assert endpoint.urls[0].startswith("https://")
    assert (len(endpoint.urls) == 2) is free
    assert find_endpoint(registry, [registry], tmp_path).insecure


def test_certificates_of_others_are_not_taken_on_trust(tmp_path: Path) -> None:
    assert find_endpoint("r.io", docker=tmp_path).trust().verify_mode is ssl.CERT_REQUIRED
    own = tmp_path / "certs.d" / "r.io"
    own.mkdir(parents=True)
    (own / "ca.crt").write_text("no certificate")
    with pytest.raises(RequirementsNotMet, match=r"certs\.d/r\.io"):
        find_endpoint("r.io", docker=tmp_path).trust()


def test_the_token_is_preferred() -> None:
    both = ['Basic realm="r", Bearer realm="https://t/x",service="s",scope="repository:a,b:pull"']
    assert parse_challenges(both) == Challenge(True, "https://t/x", "s", "repository:a,b:pull")
    assert parse_challenges(reversed(['Bearer realm="t"', 'Basic realm="r"'])) == Challenge(
        True, "t"
    )
    assert parse_challenges(["Negotiate"]) is None


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Retry-After": "90"}, "in 90 s"),
        ({"Retry-After": "Wed, 21 Oct 2065 07:28:00 GMT"}, "min"),
        ({"RateLimit-Limit": "100;w=21600"}, "in 360 min"),
        ({"Retry-After": "soon"}, "(rate limit)"),
        ({}, "(rate limit)"),
    ],
)
def test_when_a_rate_limit_ends(headers: dict[str, str], words: str) -> None:
    error = answered("docker.io", "acme/vllm:1", httpx2.Response(429, headers=headers))
    assert words in error.summary


def test_a_rate_limit_that_ends_at_a_time_of_day() -> None:
    headers = {"X-Retry-After": str(int(time.time()) + 3600)}
    error = answered("docker.io", "acme/vllm:1", httpx2.Response(429, headers=headers))
    assert "in 60 min" in error.summary


@pytest.mark.parametrize(
    ("text", "words", "again"),
    [
        ("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate", "not trusted", False),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "TLS handshake", False),
        ("[Errno -2] Name or service not known", "DNS", False),
        ("[Errno -3] Temporary failure in name resolution", "DNS", True),
        ("[Errno 113] No route to host", "no route to", True),
        ("[Errno 111] Connection refused", "refuses connections", True),
        ("", "broke", True),
    ],
)
def test_no_way_to_the_registry(text: str, words: str, again: bool) -> None:
    error = unreached("r.io", httpx2.ConnectError(text))
    assert isinstance(error, RegistryFailed)
    assert words in error.summary
    assert (error.again is not None) is again
