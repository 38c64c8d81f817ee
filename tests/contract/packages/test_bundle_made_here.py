"""A bundle made by this machine's apt-get: its own release's engine, and NVIDIA's toolkit from a
mirror that is signed with a key of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.packages.bundle import open_bundles
from clusterctl.packages.making import make
from clusterctl.packages.target import TOOLKIT, BundleRequest, PackageSystem, target_named
from tests.fakes.nvidia_packages import build_repository

TOOLS = ("apt-get", "apt-ftparchive", "gpg")

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not all(shutil.which(tool) for tool in TOOLS), reason=f"needs {', '.join(TOOLS)}"
    ),
]


@pytest.fixture(scope="module")
def here() -> PackageSystem:
    """This machine's release. Its package sources must be reached, as for the tests' set-up."""
    lines = Path("/etc/os-release").read_text().splitlines()
    told = dict(line.split("=", 1) for line in lines if "=" in line)
    if told["ID"] not in ("debian", "ubuntu"):
        pytest.skip("this machine is neither Debian nor Ubuntu")
    return target_named(told["ID"] + told["VERSION_ID"].strip('"'))


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    root = tmp_path_factory.mktemp("mirror")
    key = build_repository(root)
    root.chmod(0o755)
    return f"file:{root}", key


def test_a_bundle_holds_engine_and_toolkit_with_all_they_need(
    here: PackageSystem, mirror: tuple[str, Path], tmp_path: Path
) -> None:
    url, key = mirror
    wanted = BundleRequest(here, nvidia_url=url, nvidia_key=key)
    made = make(wanted, tmp_path / "bundle.tar", lambda _: None)
    (bundle,) = open_bundles(made.path)
    assert (bundle.system, bundle.toolkit) == (here.name, wanted.toolkit)
    names = {file.name.partition("_")[0] for file in bundle.files}
    assert {"docker.io", "containerd", "runc", "iptables", *TOOLKIT} <= names
    assert "dpkg" not in names, "every Debian has it"
    assert not [file.name for file in bundle.files if "%" in file.name]
    for file in bundle.files:
        assert len(bundle.read(file)) == file.size
    assert list(tmp_path.iterdir()) == [made.path]


def test_a_mirror_with_another_key_than_nvidias_is_refused(
    here: PackageSystem, mirror: tuple[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="returned a different key") as raised:
        make(BundleRequest(here, nvidia_url=mirror[0]), tmp_path / "bundle", lambda _: None)
    assert "--nvidia-key" in str(raised.value.hint)
    assert not list(tmp_path.iterdir())


def test_the_command_replaces_an_older_bundle_and_nothing_else(
    here: PackageSystem, mirror: tuple[str, Path], tmp_path: Path
) -> None:
    older, mine = tmp_path / "bundle", tmp_path / "mine"
    for directory in (older, mine):
        directory.mkdir()
        (directory / "docker.io_0_old.deb").touch()
    (older / "manifest.json").touch()
    argv = ["packages", "bundle", "--for", here.name, "--json"]
    argv += ["--nvidia", mirror[0], "--nvidia-key", str(mirror[1])]
    command = [sys.executable, "-m", "clusterctl", *argv, "-o"]
    done = subprocess.run([*command, older], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert f'"for": "{here.name}"' in done.stdout
    assert not (older / "docker.io_0_old.deb").exists()
    refused = subprocess.run([*command, mine], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2, refused.stderr
    assert "holds other files" in refused.stdout
