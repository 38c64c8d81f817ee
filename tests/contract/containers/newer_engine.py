"""A newer Docker than this machine's, with images in containerd: Debian 13's, in a tree of its own.

The tree is made once by debootstrap and kept in /var/cache/clusterctl-tests; that takes under a
minute. The daemon runs in a mount namespace of its own whose root is the tree.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.lab.base import AptSource, debootstrap, machine_source
from clusterctl.lab.paths import cached_directory, content_key

PLACE = Path("/var/cache/clusterctl-tests")
SUITE = "trixie"
WITH_NEWER_ENGINE = pytest.mark.timeout(1800)
"""For tests of which one may be the first, which makes the tree: slow mirrors are no failure."""
PACKAGES = ("docker.io", "iptables")
FEATURES = {"features": {"containerd-snapshotter": True}}

# "$1" tree, "$2" directory that both sides see; then the daemon's command line. The root must be
# a mount point: runc refuses a plain chroot.
ENTER = """\
set -e
tree=$1 home=$2
shift 2
mount --make-rprivate /
mount --bind "$tree" "$tree"
mkdir -p "$tree$home" "$tree/.before"
mount -t proc proc "$tree/proc"
mount --rbind /sys "$tree/sys"
mount --rbind /dev "$tree/dev"
mount -t tmpfs tmpfs "$tree/run"
mount --bind "$home" "$tree$home"
cd "$tree"
pivot_root . .before
umount -l /.before
exec "$@"
"""


def newer_tree() -> Path:
    """Debian 13 with its Docker. Raises LabUnavailable, StepFailed when it cannot be made here."""
    place = PLACE / f"{SUITE}-{content_key(SUITE, *PACKAGES, json.dumps(FEATURES))}"
    cached_directory(place, _build)
    return place


def _build(tree: Path) -> None:
    debootstrap(tree, AptSource(machine_source().uri, SUITE, ("main",)), PACKAGES)
    settings = tree / "etc/docker/daemon.json"
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(json.dumps(FEATURES))


def inside(tree: Path, home: Path, argv: list[str]) -> list[str]:
    """`argv` with the tree as its root, and `home` at the same path as outside."""
    return ["unshare", "--mount", "sh", "-c", ENTER, "enter", str(tree), str(home), *argv]
