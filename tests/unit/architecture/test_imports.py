"""Who may import whom, and what `--help` must not load: the layout is the architecture."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "clusterctl"

OWN_DEADLINES = {"errors", "deadlines", "node"}
"""All other packages may import deadlines, units and published tables; what runs in containers has
its own deadlines."""

ALLOWED = {
    "errors": set(),
    "deadlines": set(),
    "units": set(),
    "local_cache": set(),
    "published": set(),
    "kinds": set(),
    "node": {"kinds", "errors"},
    # Names alone: which there are is known below what they do.
    "inventory": {"accelerators.names", "errors"},
    # Where documents and their copies are
    "transport": {"inventory", "node.documents", "errors"},
    "facts": {"transport", "inventory", "errors"},
    "containers": {"transport", "inventory", "errors"},
    "engine": {"facts", "transport", "inventory", "errors"},
    "accelerators": {
        "steps", "packages", "node", "containers", "engine", "facts", "transport", "inventory",
        "errors",
    },
    "ray_cluster": {
        "accelerators", "steps",
        "node", "containers", "engine", "facts", "transport", "inventory", "errors",
    },
    "network": {
        "ray_cluster", "accelerators", "node", "containers", "engine", "facts", "transport",
        "inventory", "errors",
    },
    "survey": {
        "network", "ray_cluster", "accelerators", "steps", "node", "containers", "engine", "facts",
        "transport", "inventory", "errors",
    },
    "models": {"transport", "inventory", "errors"},
    "diagnosis": {"node.attempt", "node.documents", "node.readings", "errors"},
    "serving": {
        "accelerators.engine_defaults",
        "diagnosis", "models", "survey", "network", "ray_cluster", "node", "containers", "engine",
        "facts",
        "transport", "inventory", "errors",
    },
    "planning": {
        "local_cache",
        "serving", "models", "survey", "network", "ray_cluster", "accelerators", "node",
        "containers", "facts", "transport", "inventory", "errors",
    },
    "transfer": {
        "local_cache",
        "models", "survey", "steps", "node", "containers", "engine", "facts", "transport",
        "inventory", "errors",
    },
    "monitoring": {"survey", "ray_cluster", "errors"},
    "packages": {"inventory", "errors"},
    "steps": {
        "packages", "node", "containers", "engine", "facts", "transport", "inventory", "errors",
    },
    "operations": {
        "monitoring", "diagnosis", "planning", "serving", "models", "transfer", "survey", "network",
        "ray_cluster", "accelerators", "steps", "packages", "node", "containers", "engine", "facts",
        "transport",
        "inventory",
        "errors",
    },
    "commands": {
        "operations",
        "monitoring", "diagnosis", "planning", "serving", "models", "transfer", "survey", "network",
        "ray_cluster", "accelerators", "steps", "packages", "node", "containers", "engine", "facts",
        "transport",
        "inventory",
        "errors",
    },
    # `survey.status` is plain data; the screens draw it.
    "reporting": {"diagnosis", "engine", "errors", "survey.status"},
    "lab": {"accelerators.names", "errors"},
}  # fmt: skip
"""Package: what it may import of clusterctl, itself aside. `cli` may import everything."""

LIBRARIES = {
    "fabric": {"transport"},
    "paramiko": {"transport"},
    "invoke": {"transport"},
    "docker": {"containers"},
    "yaml": {"diagnosis", "inventory", "serving"},
    "typer": {"cli"},
    "ray": {"node"},
    "rich": {"reporting", "cli"},
    "prometheus_client": {"survey", "monitoring"},
}
"""Library: the packages that know it."""

HEAVY = (
    "fabric",
    "paramiko",
    "docker",
    "ray",
    "pydantic",
    "httpx2",
    "huggingface_hub",
    "yaml",
    "rich.live",
    "requests",
    "prometheus_client",
)


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "clusterctl":
            yield from (f"clusterctl.{a.name}" for a in node.names if a.name != "__version__")
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_layers_below_it(path: Path) -> None:
    package = package_of(path)
    if package not in ALLOWED:
        assert package in {"cli", "__init__", "__main__"}, f"{package} has no rule"
        return
    allowed = (
        ALLOWED[package]
        | {package}
        | (set() if package in OWN_DEADLINES else {"deadlines", "kinds", "units", "published"})
    )
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "clusterctl" or len(parts) == 1:
            continue
        assert parts[1] in allowed or ".".join(parts[1:]) in allowed, f"{path.name}: {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_library_stays_behind_its_edge(path: Path) -> None:
    for name in imports(path):
        users = LIBRARIES.get(name.split(".")[0])
        assert users is None or package_of(path) in users, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_sizes_and_words(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 600
    assert path.stem not in {"utils", "helpers", "common", "manager"}
    assert "shell=True" not in text
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= 100, f"{path.name}: {node.name} has {length} lines"


ON_HOSTS = (
    "node/",
    "network/host_",
    "network/pairs/host_",
    "transfer/relay/",
    "transfer/weights/fetcher/",
)
"""What runs there by itself."""


def timeouts(node: ast.AST) -> Iterator[tuple[str | None, ast.expr]]:
    """What a call gives by name, and the defaults of a function, by the name of the parameter."""
    if isinstance(node, ast.Call):
        yield from ((given.arg, given.value) for given in node.keywords)
    elif isinstance(node, ast.FunctionDef):
        places = node.args.posonlyargs + node.args.args
        yield from (
            (place.arg, value)
            for place, value in zip(reversed(places), reversed(node.args.defaults), strict=False)
        )
        yield from (
            (place.arg, value)
            for place, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            if value
        )


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_deadlines_come_from_their_table(path: Path) -> None:
    if str(path.relative_to(PACKAGE)).startswith(ON_HOSTS):
        return
    for node in ast.walk(ast.parse(path.read_text())):
        for name, value in timeouts(node):
            literal = isinstance(value, ast.Constant) and value.value is not None
            assert name != "timeout" or not literal, f"{path.name}: line {value.lineno}"


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--help"], "bootstrap"), (["fit", "qwen3-8b", "--gpus", "2xH100"], "KV cache")],
)
def test_help_and_a_forecast_load_nothing_heavy(words: list[str], said: str) -> None:
    script = (
        f"import sys, json; sys.argv = ['clusterctl', *{words}]\n"
        "from clusterctl.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = set(json.loads(done.stderr.splitlines()[-1]))
    assert not loaded & set(HEAVY)
    assert said in done.stdout
