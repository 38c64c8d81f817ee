"""A host's package manager, apt-get or dnf: wait for locks, finish interrupted work, explain
errors."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from clusterctl import deadlines
from clusterctl.engine.step import HostView
from clusterctl.errors import CommandFailed, RequirementsNotMet
from clusterctl.node.documents import PRIVATE
from clusterctl.packages.target import PackageSystem, target_of
from clusterctl.steps.files import record_installed
from clusterctl.transport.base import CommandResult

PROXIES = f"{PRIVATE}/proxy"  # Directory with the variables of each cluster's proxy

# What follows runs with these variables, without a host's own configuration being changed.
WITH_PROXY = f"""\
set -a
for file in {PROXIES}/*.env; do [ ! -f "$file" ] || . "$file"; done
set +a
"""
RUN = f'{WITH_PROXY}exec "$@"\n'


def target(view: HostView) -> PackageSystem:
    """Return the host's system; Debian if it could not be identified."""
    system = view.facts.os
    found = target_of(system.id, system.like, system.version, system.codename)
    return found or PackageSystem("debian", system.version, system.codename)


_NO_RELEASE = (
    "that repository answers, but has nothing for this release of the system: use a different "
    "release, or a mirror that has it (packages in the inventory)"
)

# Part of a line that names a cause, in lower case, wherever it stands; and the fix
_CAUSES = (
    ("status code: 404", _NO_RELEASE),
    ("does not have a release file", _NO_RELEASE),
    (
        "containerd.io : conflicts",
        "Docker's containerd.io is installed, but docker.io needs the distribution's: keep it "
        "and use Docker's engine, in the inventory: packages: {docker: {}}",
    ),
    (
        "package podman-docker",
        "podman-docker and Docker's client exclude each other: sudo dnf remove podman-docker; "
        "Podman stays",
    ),
    (
        "conflicts with runc",
        "Podman's runc and Docker's containerd.io, which has its own, exclude each other "
        "(docker's packaging #327): sudo dnf remove runc, which shows what goes with it; Podman "
        "also works with crun; or bring Docker's static archive: docs/offline.md",
    ),
    (" : conflicts: ", "these packages exclude each other: keep the one in use, remove the other"),
    (
        " conflicts with ",
        "these packages exclude each other: keep the one in use, remove the other",
    ),
    ("--fix-broken", "sudo apt-get --fix-broken install"),
)


def _first_known(table: Sequence[tuple[str, str]], lines: Sequence[str]) -> tuple[str, str] | None:
    """Return the line with the first words of `table` that occur, and their fix."""
    for words, fix in table:
        for line in lines:
            if words in line.lower():
                return line.strip(" ->"), fix
    return None


class PackageManager(ABC):
    """A package manager on one host, as root. All methods except `offers` raise CommandFailed with
    its first error and a fix."""

    def __init__(self, view: HostView, pause: Callable[[float], None] = time.sleep) -> None:
        self._view = view
        self._pause = pause

    def prepare(self) -> None:
        """Finish an interrupted earlier installation, and refresh the package lists."""
        self.finish_interrupted()
        self.update()

    @abstractmethod
    def finish_interrupted(self) -> None:
        """Finish an interrupted earlier installation."""

    @abstractmethod
    def update(self) -> None:
        """Refresh the package lists."""

    @abstractmethod
    def offers(self, package: str) -> bool:
        """Whether a source has `package`, which may be pinned to a version."""

    @abstractmethod
    def pinned(self, package: str, version: str) -> str:
        """Return the argument that selects exactly this version."""

    @abstractmethod
    def would_add(self, packages: Sequence[str]) -> list[str]:
        """Return the names of the packages that installing would add, dependencies included.
        Raises RequirementsNotMet if it would remove any."""

    @abstractmethod
    def would_remove(self, packages: Sequence[str]) -> list[str]:
        """Return the names of the packages that removing would remove, dependents included."""

    @abstractmethod
    def install(self, packages: Sequence[str]) -> None: ...

    @abstractmethod
    def purge(self, packages: Sequence[str]) -> None: ...

    def _run_as_root(
        self, argv: Sequence[str], timeout: float = deadlines.COMMAND
    ) -> CommandResult:
        run = ["sh", "-c", RUN, "clusterctl", *argv]
        return self._view.transport.run(run, sudo=True, timeout=timeout)

    def _waiting_for_lock(
        self, argv: Sequence[str], whose: str, locked: Sequence[str], timeout: float
    ) -> CommandResult:
        """Run the command until its output contains none of the words `locked`, for at most
        deadlines.PACKAGE_LOCK; return its result. `whose`: programs that may hold the lock."""
        deadline = time.monotonic() + deadlines.PACKAGE_LOCK
        while True:
            result = self._run_as_root(argv, timeout)
            text = (result.stdout + result.stderr).lower()
            if result.ok or not any(words in text for words in locked):
                return result
            if time.monotonic() > deadline:
                return result
            self._view.say(f"waiting for another {whose} to end")
            self._pause(3.0)

    def _failure(
        self,
        result: CommandResult,
        doing: str,
        errors: Sequence[str],
        fixes: Sequence[tuple[str, str]],
        missed: Sequence[str] = (),
    ) -> CommandFailed:
        """Build the error. `fixes`: part of a line in lower case, and its fix, searched for in the
        first of `errors`, after those of `_CAUSES` in all lines: a package manager's last words are
        often about the consequence. `missed`: earlier errors for the detail."""
        lines = f"{result.stdout}\n{result.stderr}".strip().splitlines()
        first = errors[0] if errors else (result.last_lines(1) or f"status {result.status}")
        cause, fix = (
            _first_known(_CAUSES, lines)
            or _first_known(fixes, [first])
            or _first_known(fixes, errors)
            or (first, f"run it by hand on the host: {doing}")
        )
        return CommandFailed(
            f"{doing} failed: {cause}",
            host=self._view.host.name,
            hint=fix,
            detail="\n".join([*missed, *lines[-20:]]),
        )


_APT_ENVIRONMENT = ("env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "NEEDRESTART_MODE=l")
_APT_OPTIONS = (
    "-q",
    *("-o", f"DPkg::Lock::Timeout={deadlines.PACKAGE_LOCK:.0f}"),
    *("-o", "Acquire::Retries=2"),
    *("-o", "Acquire::http::Timeout=15"),
)
_KEEP_CONFIGURATION = (
    *("-o", "Dpkg::Options::=--force-confdef"),
    *("-o", "Dpkg::Options::=--force-confold"),
)

_SEE_HOLDER = "find out what holds it: lsof /var/lib/dpkg/lock-frontend; then run clusterctl again"

_APT_FIXES = (
    ("could not get lock", _SEE_HOLDER),
    ("locked by another process", _SEE_HOLDER),
    ("no space left", "make room: df -h / /var"),
    ("not enough free space", "make room: df -h / /var"),
    ("unable to locate package", "the host's package sources do not have it: check /etc/apt"),
    ("' was not found", "the host's package sources have other versions: apt-cache madison NAME"),
    ("has no installation candidate", "the host's package sources do not have it: check /etc/apt"),
    ("could not resolve", "the host cannot reach its package sources: /etc/apt, DNS, proxy"),
    ("could not connect", "the host cannot reach its package sources: /etc/apt, route, proxy"),
    ("failed to fetch", "the host cannot reach its package sources: /etc/apt, route, proxy"),
    ("unmet dependencies", "to see what holds a package: apt-mark showhold; apt-get check"),
    ("held broken packages", "to see what holds a package: apt-mark showhold; apt-get check"),
    ("dpkg was interrupted", "dpkg --configure -a"),
    ("dpkg exited unexpectedly", "run clusterctl again: it finishes what dpkg began"),
)


class Apt(PackageManager):
    """apt-get. `only`: a directory on the host whose source list (offline.list) replaces the host's
    sources."""

    def __init__(
        self, view: HostView, pause: Callable[[float], None] = time.sleep, *, only: str = ""
    ) -> None:
        super().__init__(view, pause)
        # With `only`, its own lists: the host's stay unchanged.
        self._sources = (
            *("-o", f"Dir::Etc::SourceList={only}/offline.list"),
            *("-o", "Dir::Etc::SourceParts=-"),
            *("-o", f"Dir::State::Lists={only}/lists"),
            # Only root may enter the directory, and nothing is downloaded.
            *("-o", "APT::Sandbox::User=root"),
        ) if only else ()  # fmt: skip
        # Errors of `update`: the reason if a package is not found later
        self._missed: list[str] = []

    def finish_interrupted(self) -> None:
        """Configure packages that an interrupted dpkg left half installed."""
        argv = ["dpkg", "--configure", "-a"]
        self._run(argv, "finishing dpkg's work", timeout=deadlines.PACKAGE_REMOVAL)

    def update(self) -> None:
        """Refresh the package lists. A source that fails is an error only if it is the only one."""
        self._view.say("reading package lists")
        done = self._apt_get(["update"], "apt-get update", timeout=deadlines.PACKAGE_INDEX)
        self._missed = re.findall(r"^[WE]: (Failed to fetch .+)$", done.stderr, re.MULTILINE)

    def offers(self, package: str) -> bool:
        name, _, version = package.partition("=")
        argv = [*_APT_ENVIRONMENT, "apt-cache", *self._sources, "policy", name]
        policy = self._run_as_root(argv).stdout
        if version:
            return re.search(rf"^ [ *]*{re.escape(version)} ", policy, re.MULTILINE) is not None
        return "Candidate:" in policy and "Candidate: (none)" not in policy

    def pinned(self, package: str, version: str) -> str:
        return f"{package}={version}"

    def would_add(self, packages: Sequence[str]) -> list[str]:
        words = ["-s", "--no-install-recommends", "install", *packages]
        doing = f"apt-get install {' '.join(packages)}"
        done = self._apt_get(words, doing, timeout=deadlines.PACKAGE_PLAN)
        if removed := re.findall(r"^Remv (\S+) ", done.stdout, re.MULTILINE):
            raise RequirementsNotMet(
                f"installing {' '.join(packages)} would remove {', '.join(sorted(removed))}",
                host=self._view.host.name,
                hint=f"find out what needs them: apt-get -s remove {' '.join(sorted(removed))}; "
                "if nothing does, remove them",
            )
        return sorted(re.findall(r"^Inst (\S+) \(", done.stdout, re.MULTILINE))

    def would_remove(self, packages: Sequence[str]) -> list[str]:
        words = ["-s", "purge", *packages]
        done = self._apt_get(words, "apt-get purge", timeout=deadlines.PACKAGE_PLAN)
        return sorted(set(re.findall(r"^(?:Purg|Remv) (\S+) \[", done.stdout, re.MULTILINE)))

    def install(self, packages: Sequence[str]) -> None:
        words = [*_KEEP_CONFIGURATION, "-y", "--no-install-recommends", "install", *packages]
        doing = f"apt-get install {' '.join(packages)}"
        self._apt_get(words, doing, timeout=deadlines.PACKAGE_INSTALLATION)

    def purge(self, packages: Sequence[str]) -> None:
        words = ["-y", "purge", *packages]
        self._apt_get(words, "apt-get purge", timeout=deadlines.PACKAGE_REMOVAL)

    def _apt_get(self, words: Sequence[str], doing: str, *, timeout: float) -> CommandResult:
        argv = ["apt-get", *_APT_OPTIONS, *self._sources, *words]
        return self._run(argv, doing, timeout=timeout)

    def _run(self, argv: Sequence[str], doing: str, *, timeout: float) -> CommandResult:
        """Run the command, and retry while another holds a lock: DPkg::Lock::Timeout covers dpkg's
        locks only, not those of `apt-get update` and `dpkg`."""
        # With `E:`, since apt-get also prints the text for a lock that it waited for and then got.
        # dpkg prints `is locked by another process`, since 1.20 `was locked by another process`.
        locked = ("e: could not get lock", "locked by another process")
        argv = [*_APT_ENVIRONMENT, *argv]
        result = self._waiting_for_lock(argv, "apt-get or dpkg", locked, timeout)
        if result.ok:
            return result
        text = f"{result.stdout}\n{result.stderr}"
        found = re.findall(r"^(?:E|dpkg: error|Err): ?(.+)$", text, re.MULTILINE)
        # Printed whenever there is no terminal; never the cause.
        errors = [line for line in found if not line.startswith("Can not write log")]
        # If package lists could not be fetched, that is why a package is not found.
        if any(line.startswith("Unable to locate package") for line in errors):
            errors = [*self._missed[:1], *errors]
        raise self._failure(result, doing, errors, _APT_FIXES, self._missed)


_DNF = (
    "env", "LC_ALL=C", "dnf", "--setopt=install_weak_deps=False", "--setopt=exit_on_lock=True",
)  # fmt: skip
# dnf5 knows --noautoremove only after `remove`, and dnf 4 this option as well.
_NO_AUTOREMOVE = ("--setopt=clean_requirements_on_remove=False",)
_DNF_LOCKED = ("transaction lock", "another app is currently")

# A row of the table that dnf prints before it asks: name, architecture, version, ...
_TABLE_ROW = re.compile(r"^ (\S+) +(?:x86_64|aarch64|noarch) ", re.MULTILINE)

_DNF_FIXES = (
    (
        "transaction lock",
        "to see what holds it: ps -C dnf,yum,packagekitd; then run clusterctl again",
    ),
    ("no match for argument", "no repository of the host has it: dnf repolist"),
    ("unable to find a match", "no repository of the host has it: dnf repolist"),
    ("failed to download metadata", "the host cannot reach that repository: route, DNS, proxy"),
    ("cannot download", "the host cannot reach that repository: route, DNS, proxy"),
    ("no urls in mirrorlist", "the host cannot reach that repository: route, DNS, proxy"),
    ("gpg", "the repository is signed with a different key: check gpgkey= in /etc/yum.repos.d"),
    ("at least", "make room: df -h / /var"),
    ("no space left", "make room: df -h / /var"),
)


class Dnf(PackageManager):
    """dnf. `files`: paths of packages to install; repositories are then disabled."""

    def __init__(
        self,
        view: HostView,
        pause: Callable[[float], None] = time.sleep,
        *,
        files: Sequence[str] = (),
    ) -> None:
        super().__init__(view, pause)
        self._files = tuple(files)

    def finish_interrupted(self) -> None:
        """Do nothing: dnf leaves no transaction half done."""

    def update(self) -> None:
        if self._files:
            return
        self._view.say("reading package lists")
        self._run(["makecache", "--refresh"], "dnf makecache", timeout=deadlines.PACKAGE_INDEX)

    def offers(self, package: str) -> bool:
        if self._files:
            names = (file.rpartition("/")[2] for file in self._files)
            return any(re.match(rf"{re.escape(package)}-\d", name) for name in names)
        argv = [*_DNF, "--quiet", "list", "--available", package]
        return self._run_as_root(argv, deadlines.PACKAGE_INDEX).ok

    def pinned(self, package: str, version: str) -> str:
        return f"{package}-{version}"

    def would_add(self, packages: Sequence[str]) -> list[str]:
        doing = f"dnf install {' '.join(packages)}"
        table = self._table(["install", *self._sources(packages)], doing)
        return sorted(set(_TABLE_ROW.findall(table.partition("\nUpgrading:")[0])))

    def would_remove(self, packages: Sequence[str]) -> list[str]:
        table = self._table([*_NO_AUTOREMOVE, "remove", *packages], "dnf remove")
        return sorted(set(_TABLE_ROW.findall(table)))

    def install(self, packages: Sequence[str]) -> None:
        doing = f"dnf install {' '.join(packages)}"
        words = ["install", *self._sources(packages)]
        self._run(words, doing, timeout=deadlines.PACKAGE_INSTALLATION)

    def purge(self, packages: Sequence[str]) -> None:
        words = [*_NO_AUTOREMOVE, "remove", *packages]
        self._run(words, "dnf remove", timeout=deadlines.PACKAGE_REMOVAL)

    def _sources(self, packages: Sequence[str]) -> Sequence[str]:
        return ("--disablerepo=*", *self._files) if self._files else packages

    def _table(self, words: Sequence[str], doing: str) -> str:
        """Return the table that dnf prints before it asks for confirmation, which is declined."""
        result = self._run(words, doing, timeout=deadlines.PACKAGE_INDEX, confirm=False)
        return result.stdout.partition("\nTransaction Summary")[0]

    def _run(
        self, words: Sequence[str], doing: str, *, timeout: float, confirm: bool = True
    ) -> CommandResult:
        argv = [*_DNF, "--assumeyes" if confirm else "--assumeno", *words]
        result = self._waiting_for_lock(argv, "dnf", _DNF_LOCKED, timeout)
        text = f"{result.stdout}\n{result.stderr}"
        if result.ok or (not confirm and "Operation aborted" in text):
            return result
        # dnf reports an unreachable repository as an error only once a package is not found; then
        # it comes first.
        # dnf5 prints its errors without `Error:`.
        errors = re.findall(r"^Error: *(\S.*)$", text, re.MULTILINE)
        errors += re.findall(r"^ *Problem[^:]*: (.+)$", text, re.MULTILINE)
        errors += re.findall(r"^(Failed to (?!resolve).+|No match for .+)$", text, re.MULTILINE)
        raise self._failure(result, doing, errors, _DNF_FIXES)


def install_recorded(view: HostView, manager: PackageManager, package: str, record: str) -> None:
    """Install a package. The file `record` on the host gets the names of everything installed with
    it, so that `down --purge` removes only those. Raises CommandFailed."""
    manager.prepare()
    record_installed(view, manager.would_add([package]), record)
    view.say(f"installing {package}")
    manager.install([package])


def own_manager(view: HostView, pause: Callable[[float], None] = time.sleep) -> PackageManager:
    """Return the host's package manager with its own sources."""
    return Apt(view, pause) if target(view).family == "apt" else Dnf(view, pause)
