"""What differs between accelerators is known in `clusterctl/accelerators` alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.accelerators.names import MODULES
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.serving.arguments import batch_limits

PACKAGE = Path(__file__).parents[3] / "clusterctl"
OUTSIDE = [path for path in sorted(PACKAGE.rglob("*.py")) if "accelerators" not in path.parts]


def decisions_by_name(tree: ast.AST) -> Iterator[int]:
    """Lines that compare, look up or match an accelerator, or compare anything with the name of
    one."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, ops=ops, comparators=others):
                sides = [left, *others]
                equal = any(isinstance(op, ast.Eq | ast.NotEq) for op in ops)
                if any(_is_accelerator(side) for side in sides) or (
                    equal and any(_is_name_of_one(side) for side in sides)
                ):
                    yield node.lineno
            case ast.Subscript(slice=key) if _is_accelerator(key):
                yield node.lineno
            case ast.Match(subject=subject) if _is_accelerator(subject):
                yield node.lineno
            case ast.Call(func=ast.Attribute(attr="get" | "startswith"), args=[first, *_]) if (
                _is_accelerator(first) or _is_name_of_one(first)
            ):
                yield node.lineno


def _is_accelerator(node: ast.AST) -> bool:
    """A name or an attribute that ends in `accelerator`, its name said by an attribute or not."""
    if isinstance(node, ast.Attribute):
        return node.attr == "accelerator" or (node.attr == "name" and _is_accelerator(node.value))
    return isinstance(node, ast.Name) and node.id.endswith("accelerator")


def _is_name_of_one(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value in MODULES


def test_nothing_outside_decides_by_an_accelerators_name() -> None:
    found = [
        f"{path}:{line}"
        for path in OUTSIDE
        for line in decisions_by_name(ast.parse(path.read_text()))
    ]
    assert not found, "ask accelerators/protocol.py instead"


@pytest.mark.parametrize(
    "text",
    [
        'inventory.accelerator == "nvidia"',
        'accelerator != "cpu"',
        "accelerator in GPUS",
        'kind == "nvidia"',
        "SIZES[inventory.accelerator]",
        "SIZES.get(inventory.accelerator, 0)",
        'match accelerator:\n    case "cpu": pass',
    ],
)
def test_such_a_decision_is_seen(text: str) -> None:
    assert list(decisions_by_name(ast.parse(text)))


@pytest.mark.parametrize("name", MODULES)
def test_each_name_leads_to_an_accelerator(name: str) -> None:
    assert batch_limits(accelerator_named(name).defaults, None).sequences > 0
