"""A class name means one thing in the package; a Protocol and what implements it may share."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "clusterctl"


def is_protocol(node: ast.ClassDef) -> bool:
    return any(
        isinstance(base, ast.Name | ast.Subscript) and "Protocol" in ast.dump(base)
        for base in node.bases
    )


def shared_names(sources: dict[str, str]) -> dict[str, list[str]]:
    """Names of more than one class that is not a Protocol, with the files that define them."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for file, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and not is_protocol(node):
                found[node.name].append(file)
    return {name: files for name, files in found.items() if len(files) > 1}


def test_a_class_name_means_one_thing() -> None:
    sources = {
        str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))
    }
    assert not shared_names(sources)


def test_twins_are_found_and_protocols_are_not() -> None:
    twins = {"a.py": "class Answer: pass", "b.py": "class Answer: pass"}
    assert shared_names(twins) == {"Answer": ["a.py", "b.py"]}
    protocol = {**twins, "b.py": "class Answer(Protocol): pass"}
    assert not shared_names(protocol)
