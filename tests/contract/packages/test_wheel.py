"""The wheel that users install: built from the tree, put into a fresh environment, run there."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from clusterctl import __version__
from clusterctl.cli.commit import commit
from scripts.man_page import page

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    words = (sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(out), str(ROOT))
    built = subprocess.run(words, capture_output=True, text=True)
    if built.returncode and "setuptools" in built.stderr and "version" in built.stderr:
        pytest.skip("setuptools to build with cannot be downloaded")
    assert built.returncode == 0, built.stderr
    (file,) = out.glob("clusterctl-*.whl")
    return file


def test_it_has_every_file_of_the_package(wheel: Path) -> None:
    listed = ("git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard")
    tracked = subprocess.run((*listed, "clusterctl"), capture_output=True, text=True, check=True)
    there = {name for name in tracked.stdout.split() if (ROOT / name).is_file()}
    with zipfile.ZipFile(wheel) as opened:
        assert there - set(opened.namelist()) == set()


def test_installed_it_plans_a_model_of_the_catalogue(wheel: Path, tmp_path: Path) -> None:
    """The dependencies are those of the environment that runs the tests."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    install = ("-m", "pip", "--python", str(python), "install", "--no-deps", "-q", str(wheel))
    subprocess.run((sys.executable, *install), check=True)
    (own,) = home.glob("lib/python*/site-packages")
    (own / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}

    def run(*words: str) -> str:
        ran = subprocess.run(
            (str(home / "bin" / "clusterctl"), *words),
            cwd=tmp_path, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    where = (str(python), "-c", "import clusterctl; print(clusterctl.__file__)")
    found = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert found.stdout.startswith(str(own)), "the tree, and not what was installed"
    assert f"{__version__} ({commit()})" in run("--version"), "the commit is in the wheel"
    assert (home / "share/man/man1/clusterctl.1").read_text() == page()
    assert "Qwen/Qwen3-32B" in run("fit", "qwen3-32b", "--gpus", "2xA100")
    # The shell is named, since a runner may have none above it.
    environment["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"
    assert "clusterctl" in run("--show-completion", "bash")
