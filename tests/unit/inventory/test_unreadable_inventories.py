"""Files that hold no inventory, or none that ends: said in plain words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clusterctl.errors import InventoryError
from clusterctl.inventory.document import LARGEST_FILE
from clusterctl.inventory.load import load
from tests.unit.inventory.conftest import Problems


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["1:1: the file is empty"]),
        ("# nothing yet\n", ["1:1: the file is empty"]),
        ("- gpu1\n", ["1:1: an inventory is a mapping: cluster, image, hosts"]),
        ("hosts:\n\t- gpu1", ["2:1: a tab; YAML indents with spaces only"]),
        ("a: b: c", ["1:5: no `:` is allowed here; text with `: ` needs quotes, or the line"]),
        ("a: 'x\nb: c", ["2:5: the quote opened on line 1 is never closed"]),
        ("a: @x", ["1:4: text that starts with @ needs quotes"]),
        ("a: *.example.org", ["1:5: text that starts with * or & needs quotes"]),
        ("a: !<", ["1:6: text that starts with ! needs quotes"]),
        ("  a: 1\nb: 2", ["2:1: this line is indented less than the first key of the file"]),
        ("a: - b", ["1:4: no `- ` is allowed here; a list begins on its own line"]),
        ("a: *x", ["1:4: *x is used, but no &x is above it"]),
        ("a: {b: 1\nc: 2", ["2:2: a missing comma or closing }, opened on line 1"]),
        ("a:\n  b: 1\n c: 2", ["3:2: this line is indented unlike line 1, where its block"]),
        ("a: 1\n---\nb: 2", ["2:1: a second document; one file holds one inventory"]),
        ('a: "\\UFFFFFFFF"', ["1:1: an invalid number or escape"]),
        ("cluster: a\nimage: \x07", ["2:8: YAML does not allow the character '\\x07'"]),
        ("[" * 5000, ["1:1: values are nested too deep"]),
        (b"cluster: a\nimage: \xe4\n", ["2:8: not UTF-8 text; save the file as UTF-8"]),
        (b"\xff\xfea\x00", ["1:1: not UTF-8 text; save the file as UTF-8"]),
    ],
)
def test_what_is_not_yaml_is_said_in_plain_words(
    problems: Problems, text: str | bytes, expected: list[str]
) -> None:
    found = problems(text)
    assert len(found) == len(expected)
    assert all(line.startswith(start) for line, start in zip(found, expected, strict=True))


def test_a_missing_file_a_directory_and_a_device_are_named(tmp_path: Path) -> None:
    cases = {tmp_path / "no": "No such file", tmp_path: "a directory", Path("/dev/zero"): "not a"}
    for path, words in cases.items():
        with pytest.raises(InventoryError, match=words) as caught:
            load(path)
        assert "clusterctl -i FILE" in str(caught.value.hint)


def test_a_path_with_a_null_byte_is_an_error() -> None:
    with pytest.raises(InventoryError, match="cannot be read"):
        load(Path("a\0b"))


def test_a_huge_file_is_refused(problems: Problems) -> None:
    (found,) = problems("#" * (LARGEST_FILE + 1))
    assert re.search(r"larger than \d+ KiB", found)


def test_nested_aliases_end_early(problems: Problems) -> None:
    text = "a0: &a0 [x,x,x,x,x,x,x,x]\n" + "".join(
        f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 8)}]\n" for i in range(1, 15)
    )
    (found,) = problems(text)
    assert found.endswith("aliases expand to too many values")


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "a: &a {<<: *a}"])
def test_an_alias_to_itself_ends(problems: Problems, text: str) -> None:
    assert any("nested deeper" in line or "back to itself" in line for line in problems(text))
