"""What the package imports is declared, and what is declared is imported."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
NOT_INSTALLED = {"packaging", "pip", "ray", "torch", "triton", "vllm", "_typeshed"}
"""The last is for mypy alone; the others are in images, and imported there."""
IMPORTED_AS = {
    "pyyaml": "yaml",
    "huggingface-hub": "huggingface_hub",
    "prometheus-client": "prometheus_client",
}


READ = {"plotly"}  # A file of the package is read; none of its modules is imported


def foreign(path: Path) -> Iterator[str]:
    """Top names of the libraries that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        else:
            continue
        tops = {name.partition(".")[0] for name in names}
        yield from tops - sys.stdlib_module_names - {"clusterctl"}


def declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {canonicalize_name(Requirement(one).name) for one in project["dependencies"]}
    return {IMPORTED_AS.get(name, name) for name in names}


def test_libraries_that_are_imported_are_the_ones_declared() -> None:
    modules = (ROOT / "clusterctl").rglob("*.py")
    imported = {name for path in modules for name in foreign(path)} - NOT_INSTALLED
    assert imported | READ == declared()
