"""Mounts under the lab directory, as the kernel lists them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from clusterctl import deadlines
from clusterctl.errors import StepFailed
from clusterctl.lab.local import run

MOUNTINFO = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")


def mount_points(mountinfo: str) -> tuple[Path, ...]:
    """The mount points of a mountinfo text, in mount order, with their escapes undone."""
    fields = (line.split(" ") for line in mountinfo.splitlines())
    return tuple(
        Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), field[4]))
        for field in fields
        if len(field) > 4
    )


def mounts_under(directory: Path) -> tuple[Path, ...]:
    """Mount points at or below a directory, the first mounted first."""
    points = mount_points(MOUNTINFO.read_text())
    return tuple(point for point in points if point == directory or directory in point.parents)


def is_mounted(point: Path) -> bool:
    return point in mount_points(MOUNTINFO.read_text())


def unmount_under(directory: Path) -> bool:
    """Unmount everything at or below a directory; whether there was anything."""
    found = mounts_under(directory)
    for point in reversed(found):
        # For an overlay the kernel first writes all that its disk still lacks.
        run(["umount", str(point)], timeout=deadlines.LAB_BUILD)
    return bool(found)


def remove_tree(directory: Path) -> None:
    """Delete a directory after unmounting what is below it: a bind mount's far side
    (here: the machine's control groups, a user's files) must never be deleted with it."""
    unmount_under(directory)
    if left := mounts_under(directory):
        raise StepFailed(f"{left[0]} is still mounted", hint=f"umount {left[0]}")
    if directory.is_dir() and not directory.is_symlink():
        shutil.rmtree(directory)
    else:
        directory.unlink(missing_ok=True)


def mount_overlay(lowers: tuple[Path, ...], writable: Path, target: Path) -> None:
    """An overlay of read-only trees, the topmost first, with its writes in `writable`."""
    upper, work = writable / "upper", writable / "work"
    for directory in (upper, work, target):
        directory.mkdir(parents=True, exist_ok=True)
    layers = ":".join(map(str, lowers))
    options = f"lowerdir={layers},upperdir={upper},workdir={work}"
    run(["mount", "-t", "overlay", "overlay", "-o", options, str(target)])
