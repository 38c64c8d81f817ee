"""Every command finds its inventory the same way: FILE where there is one, -i, the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run

COMMANDS = pytest.mark.parametrize("command", ["bootstrap", "plan", "check"])
READ = "cluster nowhere \N{MIDDLE DOT} 2 hosts"


@COMMANDS
@pytest.mark.parametrize("before", [True, False])
def test_the_option_names_what_the_argument_may(
    clusterctl: Run, inventory: Path, command: str, before: bool
) -> None:
    option = ("-i", str(inventory))
    ran = clusterctl(*option, command) if before else clusterctl(command, *option)
    assert READ in ran.stderr
    assert ran.returncode == 4


@COMMANDS
def test_the_environment_names_it_and_the_argument_wins(
    clusterctl: Run, inventory: Path, command: str
) -> None:
    assert READ in clusterctl(command, CLUSTERCTL_INVENTORY=str(inventory)).stderr
    ran = clusterctl(command, str(inventory), CLUSTERCTL_INVENTORY="missing.yaml")
    assert READ in ran.stderr


@COMMANDS
def test_two_that_differ_are_a_usage_error(clusterctl: Run, inventory: Path, command: str) -> None:
    for words in (("-i", "b.yaml", command, "a.yaml"), (command, "a.yaml", "-i", "b.yaml")):
        ran = clusterctl(*words)
        assert ran.returncode == 2
        assert "two inventories are given: a.yaml and -i b.yaml" in ran.stderr
    assert READ in clusterctl("-i", inventory.name, command, str(inventory)).stderr


@COMMANDS
def test_without_any_it_is_said_how_to_name_one(clusterctl: Run, command: str) -> None:
    ran = clusterctl(command)
    assert ran.returncode == 2
    assert "no inventory given, and there is no current one" in ran.stderr
    assert "clusterctl -i FILE" in ran.stderr


def test_bootstrap_goes_on_with_the_one_that_is_remembered(
    clusterctl: Run, inventory: Path, tmp_path: Path
) -> None:
    memory = tmp_path / "state" / "clusterctl" / "current"
    memory.parent.mkdir(parents=True)
    memory.write_text(f"{inventory}\n")
    assert READ in clusterctl("bootstrap", "--dry-run").stderr
