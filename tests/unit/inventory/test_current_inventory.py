"""Which inventory a command without one means."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.inventory.current import current, remember


@pytest.fixture
def environ(tmp_path: Path) -> Mapping[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path / "home")}


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "a b\nä.yaml"
    path.touch()
    return path


def test_what_was_remembered_is_current(inventory: Path, environ: Mapping[str, str]) -> None:
    remember(inventory, environ)
    assert current(None, environ) == inventory


def test_remembering_replaces_what_was_remembered(
    inventory: Path, environ: Mapping[str, str], tmp_path: Path
) -> None:
    other = tmp_path / "other.yaml"
    other.touch()
    remember(inventory, environ)
    memory = remember(other, environ)
    assert current(None, environ) == other
    assert [file.name for file in memory.parent.iterdir()] == ["current"]


def test_a_relative_path_is_remembered_whole(
    tmp_path: Path, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "i.yaml").touch()
    monkeypatch.chdir(tmp_path)
    remember(Path("i.yaml"), environ)
    monkeypatch.chdir("/")
    assert current(None, environ) == tmp_path / "i.yaml"


def test_the_flag_wins_over_the_variable_and_that_over_memory(
    inventory: Path, environ: Mapping[str, str]
) -> None:
    remember(inventory, environ)
    named = {**environ, "CLUSTERCTL_INVENTORY": "/named.yaml"}
    assert current(Path("flag.yaml"), named) == Path("flag.yaml")
    assert current(None, named) == Path("/named.yaml")
    assert current(None, {**environ, "CLUSTERCTL_INVENTORY": ""}) == inventory


def test_without_any_the_error_says_how_to_name_one(environ: Mapping[str, str]) -> None:
    with pytest.raises(UsageError, match="there is no current one") as caught:
        current(None, environ)
    assert "clusterctl -i FILE" in str(caught.value.hint)


def test_a_remembered_file_that_is_gone_is_named(
    inventory: Path, environ: Mapping[str, str]
) -> None:
    remember(inventory, environ)
    inventory.unlink()
    with pytest.raises(UsageError, match="does not exist"):
        current(None, environ)


@pytest.mark.parametrize("content", [b"", b"\xff\x00garbage", b"relative/path\n"])
def test_a_damaged_memory_is_an_error_and_no_path(
    content: bytes, inventory: Path, environ: Mapping[str, str]
) -> None:
    remember(inventory, environ).write_bytes(content)
    with pytest.raises(UsageError):
        current(None, environ)


def test_a_state_directory_that_cannot_be_made_is_an_error(inventory: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be recorded"):
        remember(inventory, {"XDG_STATE_HOME": str(tmp_path / "file")})


def test_a_state_directory_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be read"):
        current(None, {"XDG_STATE_HOME": str(tmp_path / "file")})


def test_the_default_is_below_home_and_a_relative_state_home_is_ignored(
    inventory: Path, tmp_path: Path
) -> None:
    environ = {"HOME": str(tmp_path), "XDG_STATE_HOME": "state"}
    assert remember(inventory, environ) == tmp_path / ".local/state/clusterctl/current"
