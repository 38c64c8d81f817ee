"""What the first command says on a machine that cannot carry it: at once, with what to do, and
before anything is downloaded or changed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.units import GIB
from tests.lab.cluster import Ran
from tests.machines.conftest import ROOT
from tests.machines.machine import NOBODY, Machine

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="machines are made by root"),
    pytest.mark.timeout(300, func_only=True),
]

AT_ONCE = 30.0
"""Seconds, on a machine with other things to do; 1 to 3 on one that has none."""


def lab_up(machine: Machine, *words: str) -> Ran:
    return machine.run(sys.executable, "-m", "clusterctl", "lab", "up", *words, cwd=ROOT)


def nothing_was_made(machine: Machine) -> bool:
    links = machine.run("ip", "-br", "link").stdout
    left = {entry.name for entry in machine.lab.iterdir()}
    return "lab-" not in links and left <= {"cache", "lock"}


def test_who_is_not_root_is_told_how_to_become_it(
    bare: Machine, clone: Callable[..., Path]
) -> None:
    ran = bare.run("scripts/demo.sh", cwd=clone(), user=NOBODY)
    assert ran.status == 5, ran.text
    assert "needs root" in ran.stdout
    assert "fix: sudo scripts/demo.sh" in ran.stdout
    assert ran.seconds < AT_ONCE


def test_who_cannot_write_to_the_clone_is_told_so(
    bare: Machine, clone: Callable[..., Path]
) -> None:
    ran = bare.run("scripts/setup.sh", cwd=clone(), user=NOBODY)
    assert ran.status == 5, ran.text
    assert "cannot be written to" in ran.stdout
    assert "fix: clone it" in ran.stdout
    assert ran.seconds < AT_ONCE


def test_too_little_disk_is_told_in_figures(bare: Machine) -> None:
    bare.run("mount", "-t", "tmpfs", "-o", "size=2g", "tmpfs", "/var/lib/clusterctl-lab")
    ran = lab_up(bare)
    assert ran.status == 5, ran.text
    assert "2.0 GiB are free" in ran.stdout
    assert "CLUSTERCTL_LAB_DIR" in ran.stdout
    assert ran.seconds < AT_ONCE
    assert nothing_was_made(bare)


def test_the_memory_that_a_container_may_take_counts(bare: Machine) -> None:
    bare.limit(2 * GIB)
    ran = lab_up(bare)
    assert ran.status == 5, ran.text
    assert "needs 6.0 GiB of memory" in ran.stdout
    assert ran.seconds < AT_ONCE
    assert nothing_was_made(bare)


def test_a_model_that_is_too_large_for_the_machine_is_told_with_one_that_is_not(
    bare: Machine,
) -> None:
    bare.limit(8 * GIB)
    ran = lab_up(bare, "--for", "qwen2.5-1.5b")
    assert ran.status == 5, ran.text
    assert "needs 12.0 GiB of memory" in ran.stdout
    assert "scripts/demo.sh --model tiny" in ran.stdout


def test_all_that_is_too_little_is_told_at_once(bare: Machine) -> None:
    bare.limit(2 * GIB)
    bare.run("mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", "/var/lib/clusterctl-lab")
    ran = lab_up(bare)
    assert ran.status == 5, ran.text
    assert "of disk" in ran.stdout
    assert "of memory" in ran.stdout


def test_a_proxy_that_is_not_there_is_named(
    bare: Machine, clone: Callable[..., Path], python: Callable[..., None]
) -> None:
    python()
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        del bare.environment[name]
    nowhere = "http://user:secret@127.0.0.1:9"
    ran = bare.run("scripts/setup.sh", cwd=clone(), https_proxy=nowhere, http_proxy=nowhere)
    assert ran.status == 5, ran.text
    # .venv itself is made first, without a download. pip tries once: no minutes of retries.
    assert ran.stdout.count("Retrying") == 0
    warning, *_, cause, fix = ran.stdout.strip().splitlines()[1:]
    assert "https_proxy names a proxy at 127.0.0.1:9, and nothing answers there" in warning
    assert "https_proxy names a proxy" in cause
    assert "unset https_proxy" in fix
    assert "secret" not in f"{warning}{cause}{fix}"


def test_a_machine_that_reaches_no_packages_is_told_so(bare: Machine) -> None:
    (bare.directory / "resolv.conf").write_text(
        "nameserver 192.0.2.53\noptions timeout:1 attempts:1\n"
    )
    for setting, words in (
        ("http_proxy=http://user:secret@127.0.0.1:9", "through the proxy 127.0.0.1:9"),
        ("http_proxy=", "does not answer"),
    ):
        program = ("env", setting, sys.executable, "-m", "clusterctl")
        ran = bare.run(*program, "lab", "up", cwd=ROOT)
        assert ran.status == 5, ran.text
        assert words in ran.stdout
        assert "http_proxy" in ran.stdout
        assert "secret" not in ran.stdout
