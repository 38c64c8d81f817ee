"""Scripts, images and CI fetch nothing that they do not know by its hash, but for what is named
here with a reason."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]

FETCHING = re.compile(
    r"\b(?:pip3?[\"']? install|uv tool install|pipx install|git clone|npm install|go install|"
    r"(?:curl|wget)\b[^|;]*https?://)"
)
BY_HASH = re.compile(r"--require-hashes|sha256sum -c")

# File and the beginning of the command: why it goes without.
WITHOUT = {
    ("scripts/demo.sh", "curl"): "asks the lab's own API",
    ("scripts/setup.sh", "local pip="): "the beginning of the two commands below it",
    ("scripts/lowest.sh", "uv pip install"): "tries the lowest versions, which no lock names",
    ("scripts/run_cluster.sh", 'fail 5 "$image has no Ray"'): "advice, for an image of one's own",
    ("docker/lab/install.sh", '"$venv/bin/pip" install'): "`lab up` compared the wheels",
}


def commands() -> list[tuple[str, str]]:
    """File and text of every command that fetches, its continued lines joined."""
    files = [
        path
        for folder in ("scripts", "docker", ".ci", ".github")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and path.suffix in ("", ".sh", ".yml", ".yaml")
    ]
    found = []
    for path in files:
        for line in path.read_text().replace("\\\n", " ").splitlines():
            text = line.strip()
            if FETCHING.search(text) and not text.startswith("#"):
                found.append((str(path.relative_to(ROOT)), text))
    return found


def test_what_is_fetched_is_known_by_its_hash() -> None:
    found = commands()
    unknown = [
        f"{file}: {text}"
        for file, text in found
        if not BY_HASH.search(text)
        and not any(file == name and text.startswith(start) for name, start in WITHOUT)
    ]
    assert not unknown
    assert found, "the pattern finds nothing any more"


def test_users_install_from_the_lock() -> None:
    """The two commands whose beginning is `local pip=`."""
    setup = (ROOT / "scripts/setup.sh").read_text()
    asked = re.findall(r'"\$\{pip\[@\]\}" (.*)', setup)
    assert len(asked) == 2
    assert asked[0].startswith("--require-hashes --requirement")
    assert asked[1] == "--no-deps --editable ."


def test_no_reason_is_left_of_a_command_that_is_gone() -> None:
    found = commands()
    for name, start in WITHOUT:
        assert any(file == name and text.startswith(start) for file, text in found), name
