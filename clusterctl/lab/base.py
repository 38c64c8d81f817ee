"""Run build commands, and build the file tree that all hosts share: a bare Debian with systemd and
sshd, without an engine."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from clusterctl import deadlines
from clusterctl.errors import StepFailed
from clusterctl.lab import cgroups
from clusterctl.lab.local import remove_tree, run
from clusterctl.lab.paths import content_key
from clusterctl.lab.requirements import LabUnavailable, read_os_release

BASE_PACKAGES = (
    "ca-certificates",
    "dbus",
    "iproute2",
    "iputils-ping",
    "kmod",
    "openssh-server",
    "procps",
    "python3-minimal",
    "sudo",
    "systemd",
    "systemd-sysv",
)
OPERATOR = "ops"
# Part of the cache key: raise it when `build_base` changes.
_VERSION = "1"

# Control group of builds: no process of a build outlives the run that started it.
GROUP = "build"
# Seconds before a download is tried again.
PAUSES = (5.0, 30.0)
# Seconds within which a reachable server begins to answer.
ANSWER_LIMIT = 10.0

# Timers that would look for updates without a network, and a console that is not shown.
_MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "console-getty.service",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
)


@dataclass(frozen=True)
class AptSource:
    """A source of Debian packages for this machine's own release."""

    uri: str
    suite: str
    components: tuple[str, ...]


def machine_source() -> AptSource:
    """Return this machine's first package source for its own release, as apt is configured."""
    suite = read_os_release().get("VERSION_CODENAME", "")
    shown = run(
        ["apt-get", "indextargets", "--format", "$(SUITE) $(CODENAME) $(COMPONENT) $(REPO_URI)",
         "Created-By: Packages"]
    )  # fmt: skip
    return choose_source(suite, shown)


def choose_source(suite: str, targets: str) -> AptSource:
    """Return the first source for `suite` among lines `suite codename component uri`."""
    rows = [row for line in targets.splitlines() if len(row := line.split()) == 4]
    rows = [row for row in rows if suite in row[:2]]
    if not rows:
        raise LabUnavailable(
            f"apt has no package source for this machine's release ({suite or 'unknown'})",
            hint="apt-get update",
        )
    uri = rows[0][3]
    return AptSource(uri, suite, tuple(dict.fromkeys(row[2] for row in rows if row[3] == uri)))


def base_key(suite: str) -> str:
    return content_key(_VERSION, suite, json.dumps([BASE_PACKAGES, _MASKED]))


def build_base(tree: Path, source: AptSource) -> None:
    """Run debootstrap into `tree` and prepare it to boot as any of the hosts."""
    debootstrap(tree, source, BASE_PACKAGES)
    run(["chroot", str(tree), "useradd", "-m", "-s", "/bin/bash", "-G", "sudo", OPERATOR])
    for unit in _MASKED:
        (tree / "etc/systemd/system" / unit).symlink_to("/dev/null")
    for key in (tree / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    (tree / "etc/machine-id").write_text("")
    (tree / "etc/apt/sources.list").write_text("")
    (tree / "data/models").mkdir(parents=True)


def debootstrap(tree: Path, source: AptSource, packages: tuple[str, ...]) -> None:
    """Install a minimal Debian or Ubuntu with `packages` into `tree`; the log is next to it."""
    argv = [
        "debootstrap",
        "--variant=minbase",
        f"--components={','.join(source.components)}",
        f"--include={','.join(packages)}",
        source.suite,
        str(tree),
        source.uri,
    ]

    def from_nothing() -> None:
        remove_tree(tree)
        run_build(argv, log=tree.with_name(tree.name + ".log"))

    persistently(from_nothing, source.uri)
    for archive in (tree / "var/cache/apt/archives").glob("*.deb"):
        archive.unlink()


def run_build(argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> None:
    """Run a build command; on an error or interrupt, kill all of its processes."""
    end_builds()
    files = cgroups.create(GROUP)
    try:
        grouped = cgroups.entering(files, argv)
        run(grouped, log=log, env=env, timeout=deadlines.LAB_BUILD, shown=argv)
    finally:
        end_builds()


def persistently(build: Callable[[], None], source: str | None = None) -> None:
    """Call `build`, which downloads many files, up to three times: servers fail now and then.
    Raises LabUnavailable, at once if this machine cannot reach `source`, a URL."""
    for pause in PAUSES:
        try:
            return build()
        except StepFailed as error:
            if source and (why := out_of_reach(source)):
                raise LabUnavailable(
                    f"the lab's packages cannot be downloaded: {why}",
                    hint="check /etc/resolv.conf, `ip route`, http_proxy and apt's sources",
                ) from error
            time.sleep(pause)
    return build()


def out_of_reach(url: str) -> str | None:
    """Return why no server answers at `url`; None if one does, with any status."""
    server = urlsplit(url)
    proxy = urlsplit(urllib.request.getproxies().get(server.scheme, ""))
    if urllib.request.proxy_bypass(server.hostname or ""):
        proxy = urlsplit("")
    by = f" through the proxy {proxy.hostname}:{proxy.port}" if proxy.hostname else ""
    try:
        # An opener of its own: urlopen keeps the proxies that the process first had.
        urllib.request.build_opener().open(url, timeout=ANSWER_LIMIT).close()
    except OSError as error:
        reason = getattr(error, "reason", error)
        if isinstance(error, urllib.error.HTTPError) or isinstance(reason, ssl.SSLError):
            return None
        return f"{server.netloc} does not answer{by}: {getattr(reason, 'strerror', None) or reason}"
    return None


def end_builds() -> None:
    """Kill the build of an interrupted run."""
    cgroups.kill_all(GROUP)
    cgroups.remove(GROUP)


def run_in_tree(
    root: Path,
    argv: Sequence[str],
    *,
    binds: Mapping[Path, str],
    env: Mapping[str, str],
    log: Path,
) -> None:
    """Run a command inside a tree, without a network, with `binds` mounted read-only."""
    command = [
        "systemd-nspawn",
        "--quiet",
        f"--directory={root}",
        f"--machine={GROUP}",
        "--register=no",
        "--keep-unit",
        "--private-network",
        "--as-pid2",
        "--pipe",
        "--resolv-conf=off",
        "--timezone=off",
        "--link-journal=no",
        *(f"--bind-ro={source}:{target}" for source, target in binds.items()),
        *(f"--setenv={name}={value}" for name, value in env.items()),
        *argv,
    ]
    run_build(command, log=log, env={"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "0"}
              if not cgroups.unified_only() else None)  # fmt: skip
