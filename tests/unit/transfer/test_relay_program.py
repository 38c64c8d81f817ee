"""The relay runs where clusterctl does not: on the smallest Python of a host."""

from __future__ import annotations

import ast
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from clusterctl.transfer import chain_program

MINIMAL = {
    "collections", "contextlib", "fcntl", "hashlib", "os", "re", "select", "socket", "struct",
    "sys", "threading", "time", "typing",
}  # fmt: skip
"""Of Debian's python3-minimal, what the relay may use. It has no json, http, hmac, queue,
shutil, socketserver, asyncio, secrets, tarfile."""


def modules() -> dict[str, ast.Module]:
    folder = Path(str(resources.files(chain_program.PACKAGE)))
    return {
        file.stem: ast.parse(file.read_text(), feature_version=(3, 6))
        for file in folder.glob("*.py")
        if file.stem != "__init__"
    }


def imported(tree: ast.Module) -> set[str]:
    """Full names; `from clusterctl.transfer.relay import x` counts as that x."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            own = node.module == chain_program.PACKAGE
            found |= {f"{node.module}.{alias.name}" for alias in node.names} if own else set()
            found |= set() if own else {node.module or ""}
    return found


def test_every_module_is_sent() -> None:
    assert set(chain_program.MODULES) == set(modules())


@pytest.mark.parametrize("name", chain_program.MODULES)
def test_a_module_imports_the_minimal_library_and_what_was_sent_before(name: str) -> None:
    before = chain_program.MODULES[: chain_program.MODULES.index(name)]
    allowed = MINIMAL | {f"{chain_program.PACKAGE}.{each}" for each in before}

    assert imported(modules()[name]) <= allowed


@pytest.mark.parametrize("name", chain_program.MODULES)
def test_nothing_newer_than_python_3_6_is_called(name: str) -> None:
    """The syntax is checked by parsing; these are what one reaches for without thinking."""
    words = {node.attr for node in ast.walk(modules()[name]) if isinstance(node, ast.Attribute)}

    assert not words & {"removeprefix", "removesuffix", "cached_property", "create_server"}


def test_it_starts_without_the_users_site_and_ends_with_its_input() -> None:
    argv = chain_program.argv(("python3", "-S"))
    start = chain_program.program()

    done = subprocess.run(argv, input=start, capture_output=True, timeout=20)

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_host_without_python_says_so() -> None:
    words = chain_program.argv()[1:]

    done = subprocess.run(
        ["/bin/sh", *words], env={"PATH": "/nonexistent"}, capture_output=True, text=True
    )

    assert (done.returncode, done.stderr) == (127, "no Python 3.6 or later\n")


def test_the_program_is_small_enough_for_slow_links() -> None:
    assert len(chain_program.program()) < 20 * 1024
