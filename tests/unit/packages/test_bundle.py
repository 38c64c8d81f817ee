"""Packages brought along: what is read of a directory or a tar, and what is refused."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from clusterctl.errors import RequirementsNotMet, UsageError
from clusterctl.packages.bundle import fitting, open_bundles
from clusterctl.packages.target import PackageSystem, target_named, target_of

DEBIAN = PackageSystem("debian", "12", "bookworm")


def fill(path: Path, *names: str, system: str = "", sums: bool = False) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name in names:
        (path / name).write_bytes(name.encode())
    if system:
        (path / "manifest.json").write_text(json.dumps({"for": system, "architecture": "x86_64"}))
    if sums:
        lines = [f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n" for name in names]
        (path / "SHA256SUMS").write_text("".join(lines))
    return path


def pack(directory: Path) -> Path:
    tar_path = directory.with_suffix(".tar")
    with tarfile.open(tar_path, "w") as tar:
        for file in sorted(directory.rglob("*")):
            tar.add(file, str(file.relative_to(directory)), recursive=False)
    return tar_path


@pytest.mark.parametrize("packed", [False, True])
def test_a_directory_and_a_tar_of_it_are_one(tmp_path: Path, packed: bool) -> None:
    path = fill(tmp_path / "b", "docker.io_1_amd64.deb", "runc_1_amd64.deb", sums=True)
    (path / "notes.txt").touch()
    (bundle,) = open_bundles(pack(path) if packed else path)
    assert [file.name for file in bundle.files] == ["docker.io_1_amd64.deb", "runc_1_amd64.deb"]
    assert bundle.read(bundle.files[0]) == b"docker.io_1_amd64.deb"


@pytest.mark.parametrize("packed", [False, True])
def test_several_systems_in_one(tmp_path: Path, packed: bool) -> None:
    fill(tmp_path / "all/debian12", "docker.io_1_amd64.deb", system="debian12")
    fill(tmp_path / "all/rocky9", "docker-ce-1.rpm", system="rocky9")
    bundles = open_bundles(pack(tmp_path / "all") if packed else tmp_path / "all")
    rocky = fitting(bundles, PackageSystem("rocky", "9"), "x86_64", host="gpu1")
    assert [file.name for file in rocky.files] == ["docker-ce-1.rpm"]
    with pytest.raises(RequirementsNotMet, match="but the bundle is for debian12 x86_64,"):
        fitting(bundles, PackageSystem("ubuntu", "24.04", "noble"), "x86_64", host="gpu1")


def test_a_damaged_file_is_found_when_it_is_read(tmp_path: Path) -> None:
    path = fill(tmp_path / "b", "docker.io_1_amd64.deb", sums=True)
    (path / "docker.io_1_amd64.deb").write_bytes(b"damaged")
    (bundle,) = open_bundles(path)
    with pytest.raises(UsageError, match="SHA256SUMS has a different checksum"):
        bundle.read(bundle.files[0])


def test_a_file_that_is_gone_when_it_is_read(tmp_path: Path) -> None:
    path = fill(tmp_path / "b", "docker.io_1_amd64.deb")
    (bundle,) = open_bundles(path)
    (path / "docker.io_1_amd64.deb").unlink()
    with pytest.raises(UsageError, match=r"cannot be read: .*No such file"):
        bundle.read(bundle.files[0])


def test_a_bundle_that_was_copied_in_part(tmp_path: Path) -> None:
    path = fill(tmp_path / "b", "docker.io_1_amd64.deb", "runc_1_amd64.deb", sums=True)
    (path / "runc_1_amd64.deb").unlink()
    with pytest.raises(UsageError, match=r"SHA256SUMS names runc_1_amd64\.deb, which is missing"):
        open_bundles(path)


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_nobody_listed_is_refused(tmp_path: Path, packed: bool) -> None:
    path = fill(tmp_path / "b", "docker.io_1_amd64.deb", sums=True)
    (path / "planted_1_amd64.deb").write_bytes(b"planted")
    with pytest.raises(UsageError, match=r"planted_1_amd64\.deb is not named in SHA256SUMS"):
        open_bundles(pack(path) if packed else path)
    (path / "SHA256SUMS").write_text("\n")
    with pytest.raises(UsageError, match="is not named in SHA256SUMS"):
        open_bundles(path)


@pytest.mark.parametrize("packed", [False, True])
def test_the_inventory_says_which_bundle_it_is(tmp_path: Path, packed: bool) -> None:
    def opened(*sums: str) -> int:
        return len(open_bundles(pack(path) if packed else path, sums))

    path = tmp_path / "b"
    fill(path / "debian12", "docker.io_1_amd64.deb", sums=True)
    fill(path / "rocky9", "docker-ce-1.rpm", sums=True)
    sums = [
        hashlib.sha256((path / name / "SHA256SUMS").read_bytes()).hexdigest()
        for name in ("debian12", "rocky9")
    ]
    assert opened() == opened(*sums) == 2
    with pytest.raises(UsageError, match=f"it has a SHA256SUMS with the SHA-256 {sums[1]}"):
        opened(sums[0])
    fill(path / "debian12", "other_1_amd64.deb", sums=True)
    (path / "debian12/docker.io_1_amd64.deb").unlink()
    with pytest.raises(UsageError, match="is not the bundle of the inventory"):
        opened(*sums)
    (path / "debian12/SHA256SUMS").unlink()
    with pytest.raises(UsageError, match="it has no SHA256SUMS"):
        opened(*sums)


@pytest.mark.parametrize("kind", ["gz", "xz", "bz2"])
def test_a_tar_that_was_cut_short(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"b.tar.{kind}"
    with tarfile.open(path, f"w:{kind}") as tar:  # type: ignore[call-overload]
        for number in range(50):
            name = fill(tmp_path / "b", f"a{number}_1_amd64.deb") / f"a{number}_1_amd64.deb"
            tar.add(name, name.name)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(UsageError, match="cannot be read"):
        open_bundles(path)


def test_a_manifest_of_somebody_else(tmp_path: Path) -> None:
    path = fill(tmp_path / "b", "docker.io_1_amd64.deb")
    (path / "manifest.json").write_text("[]")
    with pytest.raises(UsageError, match=r"manifest\.json does not describe a bundle"):
        open_bundles(path)


@pytest.mark.parametrize("what", ["missing", "empty", "no tar"])
def test_nothing_to_install_from(tmp_path: Path, what: str) -> None:
    path = tmp_path / "b"
    if what == "empty":
        path.mkdir()
    elif what == "no tar":
        path.write_text("hello")
    with pytest.raises(UsageError) as raised:
        open_bundles(path)
    assert "clusterctl packages bundle --for debian12" in str(raised.value.hint)


def test_files_without_a_manifest_are_told_by_their_names(tmp_path: Path) -> None:
    (bundle,) = open_bundles(fill(tmp_path / "b", "docker.io_1_arm64.deb"))
    assert fitting([bundle], DEBIAN, "aarch64", host="gpu1") is bundle
    with pytest.raises(RequirementsNotMet):
        fitting([bundle], DEBIAN, "x86_64", host="gpu1")
    with pytest.raises(RequirementsNotMet):
        fitting([bundle], PackageSystem("rocky", "9"), "aarch64", host="gpu1")


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("nvidia-container-toolkit_1.19.1-1_amd64.deb", "1.19.1-1"),
        ("nvidia-container-toolkit-1.18.0-1.x86_64.rpm", "1.18.0-1"),
        ("nvidia-container-toolkit-base_1.19.1-1_amd64.deb", None),
    ],
)
def test_the_toolkits_version_is_in_its_name(
    tmp_path: Path, name: str, version: str | None
) -> None:
    (bundle,) = open_bundles(fill(tmp_path / "b", name))
    assert bundle.toolkit == version


def test_dockers_static_archive_serves_every_system(tmp_path: Path) -> None:
    (bundle,) = open_bundles(fill(tmp_path / "b", "docker-29.1.3.tgz"))
    assert fitting([bundle], PackageSystem("rocky", "9"), "aarch64", host="gpu1").static_engine


@pytest.mark.parametrize(
    ("os", "name", "family"),
    [
        (("debian", (), "12", "bookworm"), "debian12", "apt"),
        (("ubuntu", ("debian",), "24.04", "noble"), "ubuntu24.04", "apt"),
        (("rocky", ("rhel", "centos", "fedora"), "9.5", ""), "rocky9", "dnf"),
        (("ol", ("fedora",), "9.5", ""), "ol9", "dnf"),
        (("linuxmint", ("ubuntu", "debian"), "22", "noble"), "ubuntu24.04", "apt"),
        (("amzn", ("fedora",), "2023", ""), "amzn2023", "dnf"),
        (("anolis", ("rhel", "fedora", "centos"), "23.2", ""), "anolis23.2", "dnf"),
        (("rhel", (), "10.0", ""), "rhel10", "dnf"),
    ],
)
def test_systems_by_os_release(
    os: tuple[str, tuple[str, ...], str, str], name: str, family: str
) -> None:
    found = target_of(*os)
    assert found is not None
    assert (found.name, found.family) == (name, family)


def test_a_system_of_neither_kind_is_none() -> None:
    assert target_of("alpine", (), "3.22", "") is None


def test_systems_by_name() -> None:
    assert target_named("debian12") == DEBIAN
    assert target_named("rocky9").family == "dnf"
    with pytest.raises(ValueError, match="windows11 is not a system"):
        target_named("windows11")
