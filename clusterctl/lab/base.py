"""The file tree that all hosts share: a bare Debian with systemd and sshd, without an engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from clusterctl.lab.builds import persistently, run_build
from clusterctl.lab.cache import content_key
from clusterctl.lab.local import remove_tree, run
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
OPERATOR_PASSWORD = "lab-ops"  # noqa: S105  (a lab has no secrets; its hosts have no route out)
# Part of the cache key: raise it when `_prepare` changes.
_VERSION = "1"

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
    _prepare(tree)


def debootstrap(tree: Path, source: AptSource, packages: tuple[str, ...]) -> None:
    """Install a minimal Debian or Ubuntu with `packages` into `tree`; the log is beside it."""
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


def _prepare(tree: Path) -> None:
    run(["chroot", str(tree), "useradd", "-m", "-s", "/bin/bash", "-G", "sudo", OPERATOR])
    run(["chroot", str(tree), "chpasswd"], stdin=f"{OPERATOR}:{OPERATOR_PASSWORD}\n")
    for unit in _MASKED:
        (tree / "etc/systemd/system" / unit).symlink_to("/dev/null")
    for key in (tree / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    (tree / "etc/machine-id").write_text("")
    (tree / "etc/apt/sources.list").write_text("")
    (tree / "data/models").mkdir(parents=True)
