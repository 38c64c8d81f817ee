"""The locks hold what pyproject.toml asks for, every distribution by its hash."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUN = PROJECT["dependencies"]
DEV = [*RUN, *PROJECT["optional-dependencies"]["dev"]]


def entries(name: str) -> list[str]:
    """A requirement with its hashes, on one line each."""
    text = (ROOT / "requirements" / name).read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def locked(name: str) -> dict[str, set[str]]:
    """Distribution: versions, of which there are several where they differ between Pythons."""
    found: dict[str, set[str]] = {}
    for entry in entries(name):
        requirement = Requirement(entry.partition(" --hash")[0])
        (pin,) = requirement.specifier
        assert pin.operator == "==", entry
        found.setdefault(canonicalize_name(requirement.name), set()).add(pin.version)
    return found


@pytest.mark.parametrize(("name", "asked"), [("run.txt", RUN), ("dev.txt", DEV)])
def test_a_lock_has_what_the_project_asks_for(name: str, asked: list[str]) -> None:
    pins = locked(name)
    for requirement in map(Requirement, asked):
        versions = pins.get(canonicalize_name(requirement.name), set())
        assert versions, f"{requirement} is not in requirements/{name}: run scripts/lock.sh"
        for version in versions:
            assert version in requirement.specifier, f"{requirement}, not {version}: lock.sh"


@pytest.mark.parametrize("name", ["run.txt", "dev.txt"])
def test_every_distribution_is_known_by_its_hash(name: str) -> None:
    for entry in entries(name):
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), entry


def test_users_get_the_versions_that_the_tests_ran_with() -> None:
    tested = locked("dev.txt")
    assert {name: tested[name] for name in locked("run.txt")} == locked("run.txt")
