"""Install packages with dnf: wait for locks, explain errors."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from clusterctl import deadlines
from clusterctl.engine.step import HostView
from clusterctl.errors import CommandFailed
from clusterctl.steps.package_manager import waiting_for_lock
from clusterctl.transport.base import CommandResult

_DNF = (
    "env",
    "LC_ALL=C",
    "dnf",
    "--setopt=install_weak_deps=False",
    "--setopt=exit_on_lock=True",
)
_LOCKED = ("transaction lock", "another app is currently")

# A row of the table that dnf prints before it asks: name, architecture, version, ...
_TABLE_ROW = re.compile(r"^ (\S+) +(?:x86_64|aarch64|noarch) ", re.MULTILINE)

_HINTS = (
    ("transaction lock", "see what holds it: ps -C dnf,yum,packagekitd; then run clusterctl again"),
    ("no match for argument", "no repository of the host has it: dnf repolist"),
    ("unable to find a match", "no repository of the host has it: dnf repolist"),
    ("failed to download metadata", "the host cannot reach that repository: route, DNS, proxy"),
    ("cannot download", "the host cannot reach that repository: route, DNS, proxy"),
    ("no urls in mirrorlist", "the host cannot reach that repository: route, DNS, proxy"),
    ("gpg", "the repository is signed by another key: look at gpgkey= in /etc/yum.repos.d"),
    ("at least", "make room there: df -h / /var"),
    ("no space left", "make room there: df -h / /var"),
    ("conflicts", "remove what conflicts there: dnf remove podman-docker runc containers-common"),
)


class Dnf:
    """dnf on one host, as root. Raises CommandFailed with dnf's first error and a fix.

    `files`: paths of packages to install; repositories are then disabled.
    """

    def __init__(
        self,
        view: HostView,
        pause: Callable[[float], None] = time.sleep,
        *,
        files: Sequence[str] = (),
    ) -> None:
        self._view = view
        self._pause = pause
        self._files = tuple(files)

    def prepare(self) -> None:
        """Refresh the package lists. dnf never leaves half-done transactions to finish."""
        if self._files:
            return
        self._view.say("reading package lists")
        self._run(["makecache", "--refresh"], "dnf makecache", timeout=deadlines.PACKAGE_INDEX)

    def offers(self, package: str) -> bool:
        if self._files:
            names = (file.rpartition("/")[2] for file in self._files)
            return any(re.match(rf"{re.escape(package)}-\d", name) for name in names)
        argv = [*_DNF, "--quiet", "list", "--available", package]
        return self._view.transport.run(argv, sudo=True, timeout=deadlines.PACKAGE_INDEX).ok

    def pinned(self, package: str, version: str) -> str:
        return f"{package}-{version}"

    def would_add(self, packages: Sequence[str]) -> list[str]:
        doing = f"dnf install {' '.join(packages)}"
        table = self._table(["install", *self._sources(packages)], doing)
        return sorted(set(_TABLE_ROW.findall(table.partition("\nUpgrading:")[0])))

    def would_remove(self, packages: Sequence[str]) -> list[str]:
        table = self._table(["--noautoremove", "remove", *packages], "dnf remove")
        return sorted(set(_TABLE_ROW.findall(table)))

    def _table(self, words: Sequence[str], doing: str) -> str:
        """Return the table that dnf prints before it asks for confirmation, which is declined."""
        result = self._waiting([*_DNF, "--assumeno", *words], timeout=deadlines.PACKAGE_INDEX)
        if not result.ok and "Operation aborted" not in result.stdout + result.stderr:
            raise failure(result, doing, self._view.host.name)
        return result.stdout.partition("\nTransaction Summary")[0]

    def install(self, packages: Sequence[str]) -> None:
        doing = f"dnf install {' '.join(packages)}"
        self._run(
            ["install", *self._sources(packages)], doing, timeout=deadlines.PACKAGE_INSTALLATION
        )

    def purge(self, packages: Sequence[str]) -> None:
        self._run(
            ["--noautoremove", "remove", *packages], "dnf remove", timeout=deadlines.PACKAGE_REMOVAL
        )

    def _sources(self, packages: Sequence[str]) -> Sequence[str]:
        return ("--disablerepo=*", *self._files) if self._files else packages

    def _run(self, words: Sequence[str], doing: str, *, timeout: float) -> CommandResult:
        result = self._waiting([*_DNF, "--assumeyes", *words], timeout=timeout)
        if not result.ok:
            raise failure(result, doing, self._view.host.name)
        return result

    def _waiting(self, argv: Sequence[str], *, timeout: float) -> CommandResult:
        return waiting_for_lock(
            self._view, argv, locked=_is_locked, whose="dnf", timeout=timeout, pause=self._pause
        )


def _is_locked(result: CommandResult) -> bool:
    text = (result.stdout + result.stderr).lower()
    return any(words in text for words in _LOCKED)


def failure(result: CommandResult, doing: str, host: str) -> CommandFailed:
    """Build the error: dnf's first error as the cause, the rest as detail. dnf reports an
    unreachable repository as an error only once a package is not found; then it comes first."""
    text = f"{result.stdout}\n{result.stderr}"
    found = re.findall(r"^Error: *(\S.*)$", text, re.MULTILINE)
    found += re.findall(r"^ *Problem[^:]*: (.+)$", text, re.MULTILINE)
    first = found[0] if found else (result.last_lines(1) or f"status {result.status}")
    hints = (fix for words, fix in _HINTS if words in first.lower())
    return CommandFailed(
        f"{doing} failed: {first}",
        host=host,
        hint=next(hints, f"run it there by hand: {doing}"),
        detail="\n".join(text.strip().splitlines()[-20:]),
    )
