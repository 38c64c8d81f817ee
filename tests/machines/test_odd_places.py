"""Set-up, and the commands that change nothing, in clones and environments of many kinds."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.cluster import until
from tests.machines.machine import Machine

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="machines are made by root"),
    pytest.mark.timeout(600, func_only=True),
]


def test_a_clone_in_a_path_with_spaces_with_a_closed_umask_in_the_c_locale(
    bare: Machine, clone: Callable[..., Path], python: Callable[..., None]
) -> None:
    python()
    place = clone("my clone of clusterctl")
    bare.environment |= {"LC_ALL": "POSIX", "LANG": "C"}
    first = bare.run("scripts/setup.sh", cwd=place, umask="077", timeout=300)
    assert first.status == 0, first.text
    again = bare.run("scripts/setup.sh", cwd=place, umask="077")
    assert (again.status, again.stdout) == (0, ""), again.text
    fit = ("fit", "qwen2.5-1.5b", "--tp", "2", "--gpus", "H200", "--hosts", "2")
    for words in (("--help",), fit, ("lab", "status")):
        ran = bare.run(".venv/bin/clusterctl", *words, cwd=place, umask="077")
        assert ran.status == 0, ran.text


def test_home_cannot_be_written_to_and_there_is_little_temporary_space(
    bare: Machine, clone: Callable[..., Path], python: Callable[..., None]
) -> None:
    python()
    bare.run("mount", "--bind", "-o", "ro", bare.home, bare.home)
    bare.run("mount", "-o", "remount,bind,ro", bare.home)
    bare.run("mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", "/tmp")
    place = clone()
    ran = bare.run("scripts/setup.sh", cwd=place, timeout=300)
    assert ran.status == 0, ran.text
    (place / "inventory.yaml").write_text("hosts: {}\n")
    for words, status in ((("lab", "status"), 0), (("check", "inventory.yaml"), 3)):
        ran = bare.run(".venv/bin/clusterctl", *words, cwd=place)
        assert ran.status == status, ran.text
        assert "Traceback" not in ran.stdout


def test_a_set_up_that_was_killed_is_made_again(
    bare: Machine, clone: Callable[..., Path], python: Callable[..., None]
) -> None:
    python()
    place = clone()
    process = bare.start("scripts/setup.sh", cwd=place)
    until((place / ".venv/bin/python").exists, within=120, what="a beginning", pause=0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (place / ".venv/.made-from").exists(), "killed too late to show anything"
    ran = bare.run("scripts/setup.sh", cwd=place, timeout=300)
    assert ran.status == 0, ran.text
    assert bare.run(".venv/bin/clusterctl", "--version", cwd=place).status == 0


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_pythons_that_clusterctl_promises(
    bare: Machine, clone: Callable[..., Path], python: Callable[..., None], version: str
) -> None:
    python(version)
    place = clone()
    ran = bare.run("scripts/setup.sh", cwd=place, timeout=300)
    assert ran.status == 0, ran.text
    assert f"python{version}" in ran.stdout
    fit = ("fit", "qwen2.5-1.5b", "--tp", "2", "--gpus", "H200", "--hosts", "2", "--json")
    for words in (("--help",), ("lab", "status"), fit, ("check", "inventory/two-hosts.yaml")):
        ran = bare.run(".venv/bin/clusterctl", *words, cwd=place)
        assert ran.status == (4 if words[0] == "check" else 0), ran.text
