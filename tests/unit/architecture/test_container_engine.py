"""Which engine hosts have is known in `clusterctl/containers`: another one is one file there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "clusterctl"
INSTALLERS = {"steps", "packages", "facts", "lab"}
"""These bring Docker to bare hosts, or read what it says of itself: another engine has its own."""


def runs_docker(tree: ast.AST) -> Iterator[int]:
    """Lines that make a command line of Docker's client, or import its driver."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="clusterctl.containers.docker_driver"):
                yield node.lineno
            case (
                ast.List(elts=[ast.Constant(value="docker"), *_])
                | ast.Tuple(elts=[ast.Constant(value="docker"), *_])
            ):
                yield node.lineno


def test_nobody_else_runs_docker_or_makes_its_driver() -> None:
    found = [
        f"{path}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in {"containers", *INSTALLERS}
        for line in runs_docker(ast.parse(path.read_text()))
    ]
    assert not found, "containers.drivers makes drivers, and a driver says its command lines"


def test_such_a_line_is_seen() -> None:
    assert list(runs_docker(ast.parse('run(["docker", "ps"])')))
    assert list(runs_docker(ast.parse('argv = ("docker", "exec", name)')))
