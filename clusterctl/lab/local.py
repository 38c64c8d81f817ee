"""Run commands and manage mounts on this machine. Failures raise StepFailed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterctl import deadlines
from clusterctl.errors import StepFailed


def run(
    argv: Sequence[str],
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = deadlines.LAB_COMMAND,
    log: Path | None = None,
    shown: Sequence[str] = (),
) -> str:
    """Run a command and return its stdout. Raises StepFailed, with the last lines of output, if it
    fails.

    `env` adds to the environment. With `log`, all output goes to that file instead. `shown`
    replaces `argv` in errors, for an `argv` that wraps the command.
    """
    status, stdout, stderr = _outcome(argv, stdin, env, timeout, log)
    if status != 0:
        text = log.read_text(errors="replace") if log else stderr or stdout
        words = shown or argv
        raise StepFailed(
            f"`{' '.join(words[:3])}` ended with status {status}",
            hint=f"read {log}" if log else None,
            detail="\n".join([" ".join(words), *text.strip().splitlines()[-15:]]),
        )
    return stdout


def start(argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> None:
    """Start a command that outlives this process, with its output appended to `log`."""
    with log.open("ab") as output:
        subprocess.run(
            ["setsid", "--fork", *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=lab_environment(env),
            timeout=deadlines.LAB_COMMAND,
            check=True,
        )


def last_lines(file: Path, count: int = 15) -> str:
    """Return the end of a log, or "" if it does not exist."""
    if not file.is_file():
        return ""
    return "\n".join(file.read_text(errors="replace").splitlines()[-count:])


def succeeds(argv: Sequence[str], *, timeout: float = deadlines.LAB_COMMAND) -> bool:
    """Whether the command exits with status 0; its output is discarded."""
    return _outcome(argv, None, None, timeout, None)[0] == 0


def lab_environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment with sbin on PATH and messages untranslated."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"
    return {**os.environ, "PATH": path, "LC_ALL": "C.UTF-8", **(env or {})}


def _outcome(
    argv: Sequence[str],
    stdin: str | None,
    env: Mapping[str, str] | None,
    timeout: float,
    log: Path | None,
) -> tuple[int, str, str]:
    output = log.open("w") if log else subprocess.PIPE
    try:
        done = subprocess.run(
            argv,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            stdout=output,
            stderr=subprocess.STDOUT if log else subprocess.PIPE,
            env=lab_environment(env),
            timeout=timeout,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        raise StepFailed(f"`{' '.join(argv[:3])}` took longer than {timeout:g} s") from error
    except FileNotFoundError as error:
        raise StepFailed(f"`{argv[0]}` is not installed") from error
    finally:
        if not isinstance(output, int):
            output.close()
    return done.returncode, done.stdout or "", done.stderr or ""


MOUNTINFO = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")


def mount_points(mountinfo: str) -> tuple[Path, ...]:
    """Return the mount points of a mountinfo text, in mount order, unescaped."""
    fields = (line.split(" ") for line in mountinfo.splitlines())
    return tuple(
        Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), field[4]))
        for field in fields
        if len(field) > 4
    )


def mounts_under(directory: Path) -> tuple[Path, ...]:
    """Return mount points at or below a directory, in mount order."""
    points = mount_points(MOUNTINFO.read_text())
    return tuple(point for point in points if point == directory or directory in point.parents)


def is_mounted(point: Path) -> bool:
    return point in mount_points(MOUNTINFO.read_text())


def unmount_under(directory: Path) -> bool:
    """Unmount everything at or below a directory. Return whether there was anything."""
    found = mounts_under(directory)
    for point in reversed(found):
        # For an overlay the kernel first flushes all dirty pages to its disk.
        run(["umount", str(point)], timeout=deadlines.LAB_BUILD)
    return bool(found)


def remove_tree(directory: Path) -> None:
    """Delete a directory after unmounting everything below it, so that the source of a bind mount
    (the machine's control groups, a user's files) is never deleted."""
    unmount_under(directory)
    if left := mounts_under(directory):
        raise StepFailed(f"{left[0]} is still mounted", hint=f"umount {left[0]}")
    if directory.is_dir() and not directory.is_symlink():
        shutil.rmtree(directory)
    else:
        directory.unlink(missing_ok=True)


def ensure_link(link: Path, target: Path) -> bool:
    """Make `link` a symbolic link to `target`. Return whether it changed."""
    if link.is_symlink() and link.readlink() == target:
        return False
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    return True


def mount_overlay(lowers: tuple[Path, ...], writable: Path, target: Path) -> None:
    """Mount an overlay of read-only trees, topmost first, with its writes in `writable`."""
    upper, work = writable / "upper", writable / "work"
    for directory in (upper, work, target):
        directory.mkdir(parents=True, exist_ok=True)
    layers = ":".join(map(str, lowers))
    options = f"lowerdir={layers},upperdir={upper},workdir={work}"
    run(["mount", "-t", "overlay", "overlay", "-o", options, str(target)])
