"""A real dnf on a root of its own, with a repository of packages made here."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.engine.step import HostView
from clusterctl.errors import CommandFailed
from clusterctl.inventory.model import Host
from clusterctl.packages import making
from clusterctl.packages.target import TOOLKIT, TOOLKIT_VERSION, BundleRequest, PackageSystem
from clusterctl.steps.package_manager import Dnf
from clusterctl.transport.local import LocalTransport
from tests.fakes.host import FakeHost, fake_view
from tests.unit.steps.stage import facts

TOOLS = ("dnf", "rpmbuild", "createrepo_c")

pytestmark = pytest.mark.skipif(
    not all(shutil.which(tool) for tool in TOOLS), reason=f"needs {', '.join(TOOLS)}"
)

SIGNING_TOOLS = ("gpg", "rpmsign")
NEEDS = {"docker-ce": ("docker-ce-cli", "containerd.io"), "docker-ce-cli": (), "containerd.io": ()}


def build(name: str, needs: Sequence[str], work: Path, *, version: str = "29.1.3") -> Path:
    spec = work / f"{name}.spec"
    requires = "".join(f"Requires: {other}\n" for other in needs)
    spec.write_text(
        f"Name: {name}\nVersion: {version}\nRelease: 1\nSummary: stand-in\nLicense: none\n"
        f"BuildArch: noarch\n{requires}%description\nstand-in\n%files\n"
    )
    subprocess.run(
        ["rpmbuild", "-bb", "--define", f"_topdir {work}", spec], check=True, capture_output=True
    )
    (file,) = (work / "RPMS/noarch").glob(f"{name}-{version}-1.noarch.rpm")
    return file


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("rpms")
    for name, needs in {**NEEDS, "python3": (), "nftables": ()}.items():
        build(name, needs, work)
    subprocess.run(["createrepo_c", work / "RPMS"], check=True, capture_output=True)
    return work / "RPMS"


@pytest.fixture
def root(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty root that every `dnf` in this test works on."""
    root, repos, programs = tmp_path / "root", tmp_path / "repos", tmp_path / "bin"
    for directory in (root, repos, programs):
        directory.mkdir()
    (repos / "test.repo").write_text(
        f"[test]\nname=test\nbaseurl=file://{repository}\nenabled=1\ngpgcheck=0\n"
    )
    (programs / "dnf").write_text(
        f"#!/bin/sh\nexec {shutil.which('dnf')} --installroot={root} --releasever=9 "
        f'--setopt=reposdir={repos} --setopt=cachedir={tmp_path}/cache "$@"\n'
    )
    (programs / "dnf").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin:/usr/sbin:/sbin")
    return root


@pytest.fixture
def view(root: Path) -> HostView:
    del root
    transport = LocalTransport(Host(name="gpu1", address="localhost"))
    return replace(fake_view(FakeHost("gpu1"), facts()), transport=transport)


def installed(root: Path) -> list[str]:
    argv = ["rpm", "--root", str(root), "-qa", "--qf", "%{NAME}\n"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    return sorted(done.stdout.split())


def test_packages_come_with_what_they_need_and_go_alone(view: HostView, root: Path) -> None:
    dnf = Dnf(view)
    dnf.prepare()
    assert dnf.offers("docker-ce")
    assert dnf.offers(dnf.pinned("docker-ce", "29.1.3-1"))
    assert not dnf.offers(dnf.pinned("docker-ce", "1.0-1"))
    assert not dnf.offers("docker.io")
    assert dnf.would_add(["docker-ce"]) == sorted(NEEDS)
    assert installed(root) == []
    dnf.install(["docker-ce"])
    assert installed(root) == sorted(NEEDS)
    assert dnf.would_add(["docker-ce"]) == []
    dnf.purge(["docker-ce", "docker-ce-cli"])
    assert installed(root) == ["containerd.io"]


def test_files_are_installed_without_any_repository(
    view: HostView, root: Path, repository: Path
) -> None:
    files = [str(file) for name in NEEDS for file in repository.rglob(f"{name}-2*.rpm")]
    dnf = Dnf(view, files=files)
    dnf.prepare()
    assert dnf.would_add(["docker-ce"]) == sorted(NEEDS)
    dnf.install(["docker-ce"])
    assert installed(root) == sorted(NEEDS)


def test_a_package_that_no_repository_has(view: HostView) -> None:
    with pytest.raises(CommandFailed, match="no-such-package") as raised:
        Dnf(view).install(["no-such-package"])
    assert "dnf repolist" in str(raised.value.hint)


def test_a_repository_that_is_gone(view: HostView, tmp_path: Path) -> None:
    (tmp_path / "repos/gone.repo").write_text(
        "[gone]\nname=gone\nbaseurl=file:///no/such/place\nenabled=1\ngpgcheck=0\n"
    )
    dnf = Dnf(view)
    dnf.prepare()
    assert dnf.offers("docker-ce"), "from the other one"
    with pytest.raises(
        CommandFailed, match="Failed to download metadata for repo 'gone'"
    ) as raised:
        dnf.install(["no-such-package"])
    assert "cannot reach that repository" in str(raised.value.hint)


@pytest.fixture
def vendors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Docker's and NVIDIA's layouts, signed as theirs: here the packages, there the lists."""
    home = tmp_path / "gnupg"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("GNUPGHOME", str(home))
    gpg = ["gpg", "--batch", "--pinentry-mode", "loopback", "--passphrase", ""]
    subprocess.run(
        [*gpg, "--quick-generate-key", "tests", "rsa2048", "sign", "never"],
        check=True, capture_output=True,
    )  # fmt: skip
    armored = subprocess.run(["gpg", "--armor", "--export"], check=True, capture_output=True).stdout
    (tmp_path / "key.asc").write_bytes(armored)
    stable = tmp_path / "docker/centos/9/x86_64/stable"
    toolkit = tmp_path / "nvidia/stable/rpm/x86_64"
    for directory, packages, version in (
        (stable, NEEDS, "29.1.3"),
        (toolkit, dict.fromkeys(TOOLKIT, ()), TOOLKIT_VERSION.partition("-")[0]),
    ):
        directory.mkdir(parents=True)
        for name, needs in packages.items():
            file = shutil.move(build(name, needs, tmp_path, version=version), directory)
            subprocess.run(
                [
                    "rpmsign", "--define", "_gpg_name tests",
                    "--define", f"__gpg {shutil.which('gpg')}", "--addsign", file,
                ],
                check=True, capture_output=True,
            )  # fmt: skip
        subprocess.run(["createrepo_c", directory], check=True, capture_output=True)
    metadata = toolkit / "repodata/repomd.xml"
    subprocess.run([*gpg, "--armor", "--detach-sign", metadata], check=True, capture_output=True)
    return tmp_path


@pytest.mark.skipif(
    not all(shutil.which(tool) for tool in SIGNING_TOOLS), reason="needs gpg and rpmsign"
)
def test_a_bundle_for_rocky_is_gathered(vendors: Path, repository: Path) -> None:
    key = vendors / "key.asc"
    wanted = BundleRequest(
        PackageSystem("rocky", "9"),
        docker_url=f"file://{vendors}/docker",
        docker_key=key,
        nvidia_url=f"file://{vendors}/nvidia",
        nvidia_key=key,
        mirror=f"file://{repository}",
    )
    (vendors / "work").mkdir()
    names = [file.name for file in making.download_by_dnf(wanted, vendors / "work")]
    assert len(names) == 9
    assert {"python3-29.1.3-1.noarch.rpm", "nftables-29.1.3-1.noarch.rpm"} <= set(names)
    for name in TOOLKIT:
        assert f"{name}-1.19.1-1.noarch.rpm" in names
