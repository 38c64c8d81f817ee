"""What hosts are told of repositories, and the keys that must have signed them."""

from __future__ import annotations

import base64
import hashlib
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.packages.repository import (
    OtherKey,
    docker,
    nvidia,
    pinned,
    source_path,
    source_text,
)
from clusterctl.packages.target import PackageSystem
from tests.unit.steps.stage_install import KEY

DEBIAN = PackageSystem("debian", "12", "bookworm")
ROCKY = PackageSystem("rocky", "9")


def test_apt_trusts_the_key_for_that_repository_alone() -> None:
    assert source_text(nvidia(DEBIAN), DEBIAN).splitlines()[1] == (
        "deb [signed-by=/etc/apt/keyrings/clusterctl-nvidia-container-toolkit.asc] "
        "https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /"
    )
    assert source_text(docker(DEBIAN), DEBIAN).splitlines()[1] == (
        "deb [signed-by=/etc/apt/keyrings/clusterctl-docker.asc] "
        "https://download.docker.com/linux/debian bookworm stable"
    )


def test_dnf_checks_what_is_signed() -> None:
    """NVIDIA signs its lists of packages, Docker the packages."""
    text = source_text(nvidia(ROCKY), ROCKY)
    assert "gpgcheck=0\nrepo_gpgcheck=1" in text
    assert "stable/rpm/$basearch" in text
    text = source_text(docker(ROCKY), ROCKY)
    assert "gpgcheck=1\nrepo_gpgcheck=0" in text
    assert "https://download.docker.com/linux/centos/9/$basearch/stable" in text
    assert source_path(docker(ROCKY), ROCKY) == "/etc/yum.repos.d/clusterctl-docker.repo"


def test_a_mirror_stands_in_for_the_vendor() -> None:
    mirror = nvidia(DEBIAN, "https://mirror.example/nvidia/")
    assert mirror.key_url == "https://mirror.example/nvidia/gpgkey"
    assert mirror.fingerprints == nvidia(DEBIAN).fingerprints, "it serves NVIDIA's key"


FINGERPRINT = "252689D1E12DF381B083F5479E32FBAB1BF7FBDF"  # As `gpg --show-keys` says
PACKETS = base64.b64decode(re.findall(r"\n\n(.*)\n=", KEY, re.DOTALL)[0])
LENGTH = 2 + PACKETS[1]  # Of the first packet, the primary key, with its header
VENDOR = replace(nvidia(DEBIAN), fingerprints=frozenset({FINGERPRINT}))


def armored(packets: bytes) -> bytes:
    head, end = b"-----BEGIN PGP PUBLIC KEY BLOCK-----", b"-----END PGP PUBLIC KEY BLOCK-----"
    return b"\n".join((head, b"", base64.b64encode(packets), end, b""))


def key_of(version: int) -> bytes:
    """The packet of another key: the same one with another moment of creation."""
    body = bytearray(PACKETS[2:LENGTH])
    body[0], body[4] = version, body[4] ^ 1
    return PACKETS[:2] + bytes(body)


@pytest.mark.parametrize("data", [KEY.encode(), PACKETS, KEY.replace("\n", "\r\n").encode()])
def test_the_pinned_key_is_written_as_it_was_checked(data: bytes) -> None:
    written = pinned(VENDOR, data)
    assert written.strip() == KEY.encode().strip(), "gpg's own armor, with its CRC"


def test_what_stands_beside_the_armor_is_not_written() -> None:
    written = pinned(VENDOR, b"deb [trusted=yes] http://evil ./\n" + KEY.encode() + b"# more\n")
    assert written.strip() == KEY.encode().strip()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (KEY.encode() + armored(key_of(4)), rf"[0-9A-F]{{40}}, {FINGERPRINT}|{FINGERPRINT}, "),
        (PACKETS + key_of(4), f"{FINGERPRINT}"),
        (PACKETS + key_of(6), "a key of version 06"),
        (armored(key_of(5) + PACKETS[LENGTH:]), "a key of version 05"),
        (PACKETS + PACKETS, f"{FINGERPRINT}, {FINGERPRINT}"),
        (key_of(4) + PACKETS[LENGTH:], "its fingerprint is [0-9A-F]{40}$"),
    ],
    ids=["two blocks", "two keys", "with a v6 key", "a v5 key", "twice", "another key"],
)
def test_a_vendor_has_one_key_and_no_other(data: bytes, why: str) -> None:
    with pytest.raises(OtherKey, match=why):
        pinned(VENDOR, data)


def test_of_subkeys_only_pinned_ones_are_written() -> None:
    """Somebody else's, bound to the vendor's key by a signature that nobody checked."""
    body = key_of(4)[2:]
    signature = b"\xc2\x05\x04\x18\x01\x08\x00"
    subkey = b"\xce" + bytes([len(body)]) + body
    with_subkey = PACKETS + subkey + signature
    assert pinned(VENDOR, with_subkey).strip() == KEY.encode().strip()
    print_of = hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()  # noqa: S324
    both = replace(VENDOR, fingerprints=frozenset({FINGERPRINT, print_of}))
    assert base64.b64encode(with_subkey)[-24:] in pinned(both, with_subkey).replace(b"\n", b"")


def test_a_key_of_your_own_is_trusted_as_it_is() -> None:
    own = nvidia(DEBIAN, "https://mirror.example", Path("/keys.asc"))
    both = KEY.encode() + armored(key_of(4))
    assert pinned(own, both) == both


@pytest.mark.parametrize(
    "data",
    [
        b"", b"<html>404</html>", KEY.encode()[:90], b"\x98\x02\x03",
        pytest.param(PACKETS[:-1], id="cut short"),
        pytest.param(PACKETS + b"\xc8\x01\x00", id="compressed data"),
        pytest.param(b"\xc5\x01\x04" + PACKETS, id="a secret key"),
        pytest.param(PACKETS[LENGTH:] + PACKETS, id="begins with a user"),
    ],
)  # fmt: skip
def test_what_is_no_key_is_said(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"key|OpenPGP|packet"):
        pinned(VENDOR, data)


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda more: PACKETS + more))
def test_no_bytes_are_taken_for_the_key(data: bytes) -> None:
    with suppress(ValueError):
        assert pinned(VENDOR, data).strip() == KEY.encode().strip()
