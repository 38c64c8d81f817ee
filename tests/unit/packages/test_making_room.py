"""Where a bundle may not be put is said before anything is downloaded, and a vendor's key that
cannot be had is told with the way around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.errors import StepFailed, UsageError
from clusterctl.packages.making import make
from clusterctl.packages.repository import docker, nvidia, vendor_key
from clusterctl.packages.target import BundleRequest, target_named

DEBIAN = target_named("debian12")


def said_before_downloading(output: Path) -> str:
    said: list[str] = []
    with pytest.raises(UsageError) as raised:
        make(BundleRequest(DEBIAN), output, said.append)
    assert said == []
    return raised.value.summary


def test_a_file_stands_where_a_directory_is_to_be(tmp_path: Path) -> None:
    (tmp_path / "b").touch()
    assert said_before_downloading(tmp_path / "b") == f"{tmp_path}/b is a file"


def test_a_directory_stands_where_a_tar_is_to_be(tmp_path: Path) -> None:
    (tmp_path / "b.tar").mkdir()
    assert said_before_downloading(tmp_path / "b.tar") == f"{tmp_path}/b.tar is a directory"


def test_other_things_are_in_the_directory(tmp_path: Path) -> None:
    (tmp_path / "letter").touch()
    assert "that holds other files" in said_before_downloading(tmp_path)


def test_a_file_stands_where_its_parent_is_to_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = said_before_downloading(tmp_path / "file" / "b")
    assert said.startswith(f"{tmp_path}/file/b cannot be written: ")


def test_each_key_out_of_reach_has_its_own_way_around(tmp_path: Path) -> None:
    nowhere = f"file:{tmp_path}/none"
    with pytest.raises(StepFailed) as of_docker:
        vendor_key(docker(DEBIAN, nowhere))
    with pytest.raises(StepFailed) as of_nvidia:
        vendor_key(nvidia(DEBIAN, nowhere))
    assert (of_docker.value.hint or "").endswith("or name a mirror: --docker URL")
    assert (of_nvidia.value.hint or "").endswith("or leave it out: --engine-only")
    assert "urlopen" not in of_docker.value.summary


def test_a_mirror_without_the_key_of_its_packages_is_refused(tmp_path: Path) -> None:
    """dnf trusts no key of this machine for a repository that is named by its address."""
    said: list[str] = []
    rocky = BundleRequest(target_named("rocky9"), mirror="https://mirror.example/9/BaseOS")
    with pytest.raises(
        UsageError, match=r"no key is known for the packages of https://mirror\.example"
    ):
        make(rocky, tmp_path / "b", said.append)
    assert said == []
