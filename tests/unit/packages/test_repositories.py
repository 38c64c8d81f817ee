"""What hosts are told of repositories, and the keys that must have signed them."""

from __future__ import annotations

import base64
import re

import pytest

from clusterctl.packages.repository import docker, fingerprints, nvidia, source_path, source_text
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


def test_fingerprints_of_an_armored_key() -> None:
    """As `gpg --show-keys` says for the same key."""
    assert fingerprints(KEY.encode()) == {"252689D1E12DF381B083F5479E32FBAB1BF7FBDF"}


def test_fingerprints_of_a_binary_key() -> None:
    block = re.findall(r"\n\n(.*)\n=", KEY, re.DOTALL)[0]
    assert fingerprints(base64.b64decode(block)) == fingerprints(KEY.encode())


@pytest.mark.parametrize(
    "data",
    [
        b"", b"<html>404</html>", KEY.encode()[:90], b"\x98\x02\x03",
        pytest.param(b"\x9a\x00\x01\x11\x70\x04" + bytes(69999), id="longer than any key"),
    ],
)  # fmt: skip
def test_what_is_no_key_is_said(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"key|OpenPGP|packet"):
        fingerprints(data)
