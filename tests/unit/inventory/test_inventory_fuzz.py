"""Whatever the file holds: an inventory, or an InventoryError in words for users."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterctl.errors import InventoryError
from clusterctl.inventory.load import load
from clusterctl.inventory.model import Gpu, Host, Inventory, Network, Nics, Packages, RayPorts, Ssh

SETTINGS = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
KEYS = sorted(
    {
        name
        for model in (Gpu, Host, Inventory, Network, Nics, Packages, RayPorts, Ssh)
        for name in model.model_fields
    }
)
JARGON = ("pydantic", "https://errors", "Input should", "ctx", "NoneType", "yaml.org", "errors.py")

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.dates(),
    st.binary(max_size=4),
    st.sampled_from(
        ["head", "10.0.0.1", "10.0.0.0/24", "eth0", "24 GiB", "/data", "~/x", "~x/y", "yes", "0o7"]
    ),
)
keys = st.one_of(st.sampled_from(KEYS), st.text(max_size=6), st.integers(), st.none())
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=6)),
    max_leaves=25,
)
hosts = st.dictionaries(
    st.one_of(st.sampled_from(["gpu1", "gpu2", "on"]), keys),
    st.dictionaries(keys, trees, max_size=8),
    max_size=4,
)
inventories = st.dictionaries(keys, trees, max_size=5).flatmap(
    lambda rest: hosts.map(lambda some: {"cluster": "a", "image": "a", **rest, "hosts": some})
)


def assert_inventory_or_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "fuzzed.yaml"
    path.write_bytes(content)
    try:
        assert isinstance(load(path), Inventory)
    except InventoryError as error:
        text = f"{error}\n{error.detail}\n{error.hint}"
        written = content.decode(errors="replace")  # a user's own words may be repeated
        assert not [word for word in JARGON if word in text and word not in written]


@SETTINGS
@given(st.binary(max_size=200))
def test_any_bytes(tmp_path: Path, content: bytes) -> None:
    assert_inventory_or_error(tmp_path, content)


YAML_PIECES = [
    "hosts:", "gpu1:", "address:", "\n", "\n  ", "\n    ", "\t", "- ", ": ", "{", "}", "[", "]",
    ",", "'", '"', "&a ", "*a", "<<: ", "!!str ", "!x ", "|", ">", "#", "? ", "---", "...",
    "%YAML 1.2", "~", "1e3", "010", "0x", ".inf", "\\x", "a", "@", "\r", "\u2028", "\ufeff", "\0",
]  # fmt: skip


@SETTINGS
@given(st.lists(st.sampled_from(YAML_PIECES), max_size=40))
def test_any_mix_of_yamls_own_signs(tmp_path: Path, pieces: list[str]) -> None:
    assert_inventory_or_error(tmp_path, "".join(pieces).encode())


@SETTINGS
@given(inventories)
def test_any_tree_below_known_keys(tmp_path: Path, tree: object) -> None:
    text = yaml.safe_dump(tree, allow_unicode=True)
    assert_inventory_or_error(tmp_path, text.encode("utf-8", "surrogatepass"))


@SETTINGS
@given(st.data())
def test_a_valid_file_with_one_piece_changed(
    tmp_path: Path, two_hosts: str, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(two_hosts)))
    length = data.draw(st.integers(0, 8))
    piece = data.draw(st.one_of(st.sampled_from(YAML_PIECES), st.text(max_size=3)))
    text = two_hosts[:at] + piece + two_hosts[at + length :]
    assert_inventory_or_error(tmp_path, text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("nesting", [10, 100, 1_000, 50_000])
@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_any_depth(tmp_path: Path, nesting: int, opening: str) -> None:
    assert_inventory_or_error(tmp_path, (opening * nesting).encode())
