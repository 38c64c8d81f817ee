"""The commit that this clusterctl was made from. Imports nothing of the package: setup.py runs it
too."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

RECORD = "commit.txt"  # In a wheel, beside clusterctl/__init__.py
_SHORT = 10


def commit(package: Path = Path(__file__).parents[1]) -> str:
    """Return the commit recorded in the wheel, else that of the clone around `package`, by reading
    git's own files: git may not be installed. "" if neither is known."""
    with suppress(OSError, UnicodeDecodeError):
        return (package / RECORD).read_text().strip()[:_SHORT]
    with suppress(OSError, UnicodeDecodeError):
        git = package.parent / ".git"
        if git.is_file():  # A worktree: `gitdir: DIRECTORY`
            git = package.parent / git.read_text().partition(":")[2].strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head[:_SHORT]
        return _resolved(git, head.removeprefix("ref: "))[:_SHORT]
    return ""


def _resolved(git: Path, ref: str) -> str:
    """Return the commit of a branch, from its own file or the packed refs. Raises OSError."""
    shared = git
    with suppress(FileNotFoundError):  # Of a worktree: the clone's own directory
        shared = git / (git / "commondir").read_text().strip()
    with suppress(FileNotFoundError):
        return (shared / ref).read_text().strip()
    lines = (line.split() for line in (shared / "packed-refs").read_text().splitlines())
    return next((words[0] for words in lines if words[1:] == [ref]), "")
