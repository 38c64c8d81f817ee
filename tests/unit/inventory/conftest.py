from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.errors import InventoryError
from clusterctl.inventory.load import load
from clusterctl.inventory.model import Inventory

Problems = Callable[[str | bytes], list[str]]

HOST = """\
cluster: demo
image: a
hosts:
  gpu1:
    address: 10.0.0.1
"""
"""Keys of the host, or of the cluster, can go on at its end."""
TWO_HOSTS = """\
cluster: demo
image: vllm/vllm-openai:v0.33.0
hosts:
  gpu1: {address: 192.168.1.1, role: head}
  gpu2: {address: 192.168.1.2}
"""


@pytest.fixture
def two_hosts() -> str:
    """The text of a valid inventory."""
    return TWO_HOSTS


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[[str | bytes], Inventory]:
    """Loads an inventory from its text."""

    def load_text(content: str | bytes) -> Inventory:
        path = tmp_path / "inventory.yaml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return load(path)

    return load_text


@pytest.fixture
def problems(loaded: Callable[[str | bytes], Inventory], tmp_path: Path) -> Problems:
    """The problems of a text, each as `line:column: text`."""

    def problems_of(content: str | bytes) -> list[str]:
        with pytest.raises(InventoryError) as caught:
            loaded(content)
        assert caught.value.hint
        lines = (caught.value.detail or caught.value.summary).splitlines()
        return [line.removeprefix(f"{tmp_path / 'inventory.yaml'}:") for line in lines]

    return problems_of
