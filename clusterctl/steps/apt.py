"""Install packages with apt-get: wait for locks, finish interrupted work, explain errors."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from clusterctl import deadlines
from clusterctl.engine.step import HostView
from clusterctl.errors import CommandFailed
from clusterctl.steps.package_manager import waiting_for_lock
from clusterctl.transport.base import CommandResult

_QUIET = ("env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "NEEDRESTART_MODE=l")
_OPTIONS = (
    "-q",
    *("-o", f"DPkg::Lock::Timeout={deadlines.PACKAGE_LOCK:.0f}"),
    *("-o", "Acquire::Retries=2"),
    *("-o", "Acquire::http::Timeout=15"),
)
_KEEP_CONFIGURATION = (
    "-o",
    "Dpkg::Options::=--force-confdef",
    "-o",
    "Dpkg::Options::=--force-confold",
)

_LOCKED = "could not get lock"

_HINTS = (
    (_LOCKED, "see what holds it: lsof /var/lib/dpkg/lock-frontend; then run clusterctl again"),
    ("no space left", "make room there: df -h / /var"),
    ("not enough free space", "make room there: df -h / /var"),
    ("unable to locate package", "the host's package sources do not have it: see /etc/apt"),
    ("' was not found", "the host's package sources have other versions: apt-cache madison NAME"),
    ("has no installation candidate", "the host's package sources do not have it: see /etc/apt"),
    ("could not resolve", "the host cannot reach its package sources: see /etc/apt, DNS, proxy"),
    ("could not connect", "the host cannot reach its package sources: see /etc/apt, route, proxy"),
    ("failed to fetch", "the host cannot reach its package sources: see /etc/apt, route, proxy"),
    ("unmet dependencies", "apt-get --fix-broken install"),
    ("dpkg was interrupted", "dpkg --configure -a"),
    ("dpkg exited unexpectedly", "run clusterctl again: it finishes what dpkg began"),
)


class Apt:
    """apt-get on one host, as root. Raises CommandFailed with apt's first error and a fix.

    `only`: a directory on the host whose source list (offline.list) replaces the host's sources.
    """

    def __init__(
        self, view: HostView, pause: Callable[[float], None] = time.sleep, *, only: str = ""
    ) -> None:
        self._view = view
        self._pause = pause
        self._options = (*_OPTIONS, *_only(only)) if only else _OPTIONS
        # Errors of `update`: the reason if a package is not found later
        self._missed: list[str] = []

    def prepare(self) -> None:
        self.finish_interrupted()
        self.update()

    def finish_interrupted(self) -> None:
        """Configure packages that an interrupted dpkg left half installed."""
        self._waiting_for_lock(
            ["dpkg", "--configure", "-a"],
            "finishing dpkg's work",
            timeout=deadlines.PACKAGE_REMOVAL,
        )

    def update(self) -> None:
        """Refresh the package lists. A source that fails is an error only if it is the only one."""
        self._view.say("reading package lists")
        argv = ["apt-get", *self._options, "update"]
        told = self._waiting_for_lock(argv, "apt-get update", timeout=deadlines.PACKAGE_INDEX)
        self._missed = re.findall(r"^[WE]: (Failed to fetch .+)$", told.stderr, re.MULTILINE)

    def offers(self, package: str) -> bool:
        name, _, version = package.partition("=")
        argv = [*_QUIET, "apt-cache", *self._options[len(_OPTIONS) :], "policy", name]
        told = self._view.transport.run(argv, sudo=True).stdout
        if version:
            return re.search(rf"^ [ *]*{re.escape(version)} ", told, re.MULTILINE) is not None
        return "Candidate:" in told and "Candidate: (none)" not in told

    def pinned(self, package: str, version: str) -> str:
        return f"{package}={version}"

    def would_add(self, packages: Sequence[str]) -> list[str]:
        """Return the packages that installing would add, dependencies included."""
        argv = ["apt-get", *self._options, "-s", "--no-install-recommends", "install", *packages]
        told = self._waiting_for_lock(
            argv, f"apt-get install {' '.join(packages)}", timeout=deadlines.PACKAGE_PLAN
        )
        return sorted(re.findall(r"^Inst (\S+) \(", told.stdout, re.MULTILINE))

    def would_remove(self, packages: Sequence[str]) -> list[str]:
        argv = ["apt-get", *self._options, "-s", "purge", *packages]
        told = self._waiting_for_lock(argv, "apt-get purge", timeout=deadlines.PACKAGE_PLAN)
        return sorted(set(re.findall(r"^(?:Purg|Remv) (\S+) \[", told.stdout, re.MULTILINE)))

    def install(self, packages: Sequence[str]) -> None:
        argv = ["apt-get", *self._options, *_KEEP_CONFIGURATION, "-y", "--no-install-recommends"]
        doing = f"apt-get install {' '.join(packages)}"
        self._waiting_for_lock(
            [*argv, "install", *packages], doing, timeout=deadlines.PACKAGE_INSTALLATION
        )

    def purge(self, packages: Sequence[str]) -> None:
        argv = ["apt-get", *self._options, "-y", "purge", *packages]
        self._waiting_for_lock(argv, "apt-get purge", timeout=deadlines.PACKAGE_REMOVAL)

    def _waiting_for_lock(
        self, argv: Sequence[str], doing: str, *, timeout: float
    ) -> CommandResult:
        """Run the command, and retry while another holds a lock: DPkg::Lock::Timeout covers dpkg's
        locks only, not those of `apt-get update` and `dpkg`."""
        result = waiting_for_lock(
            self._view,
            [*_QUIET, *argv],
            locked=_is_locked,
            whose="apt-get or dpkg",
            timeout=timeout,
            pause=self._pause,
        )
        if not result.ok:
            raise failure(result, doing, self._view.host.name, self._missed)
        return result


def _only(directory: str) -> tuple[str, ...]:
    """Options that restrict apt to the packages in that directory; its own lists stay unchanged."""
    settings = {
        "Dir::Etc::SourceList": f"{directory}/offline.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": f"{directory}/lists",
    }
    return tuple(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))


def _is_locked(result: CommandResult) -> bool:
    text = result.stderr.lower()
    return _LOCKED in text or "is locked by another process" in text


def failure(
    result: CommandResult, doing: str, host: str, missed: Sequence[str] = ()
) -> CommandFailed:
    """Build the error: apt's first error as the cause, the rest as detail. If a package is not
    found and package lists could not be fetched (`missed`), those are the cause."""
    text = f"{result.stdout}\n{result.stderr}"
    found = re.findall(r"^(?:E|dpkg: error|Err): ?(.+)$", text, re.MULTILINE)
    # Printed whenever there is no terminal; never the cause.
    errors = [line for line in found if not line.startswith("Can not write log")]
    if missed and any(line.startswith("Unable to locate package") for line in errors):
        errors.insert(0, missed[0])
    first = errors[0] if errors else (result.last_lines(1) or f"status {result.status}")
    hints = (fix for words, fix in _HINTS if words in first.lower())
    return CommandFailed(
        f"{doing} failed: {first}",
        host=host,
        hint=next(hints, f"run it there by hand: {doing}"),
        detail="\n".join([*missed, *text.strip().splitlines()[-20:]]),
    )
