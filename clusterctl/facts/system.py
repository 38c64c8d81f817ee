"""Parse operating system, identity, memory, disks, clock and users from a probe's output."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence

from clusterctl.facts.model import Disk, Os
from clusterctl.facts.sections import Section

Files = Mapping[str, Sequence[str]]

_DF_LINE = re.compile(r"^.*?\s+(\d+)\s+-?\d+\s+(-?\d+)\s+(?:\d+%|-)\s+/")


def first_line(files: Files, *paths: str) -> str:
    """Return the first line of the first of `paths` that has one, else ""."""
    return next((files[path][0].strip() for path in paths if files.get(path)), "")


def parse_os(files: Files, machine: str) -> Os:
    release = _os_release(files.get("/etc/os-release") or files.get("/usr/lib/os-release") or ())
    return Os(
        id=release.get("ID", ""),
        like=tuple(release.get("ID_LIKE", "").split()),
        version=release.get("VERSION_ID", ""),
        codename=release.get("VERSION_CODENAME", ""),
        pretty=release.get("PRETTY_NAME", ""),
        architecture=machine,
        kernel=first_line(files, "/proc/sys/kernel/osrelease"),
    )


def _os_release(lines: Sequence[str]) -> dict[str, str]:
    """Parse shell assignments, as specified by os-release(5)."""
    pairs = (line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return {key.strip(): _unquote(value) for key, value in pairs}


def _unquote(value: str) -> str:
    try:
        return " ".join(shlex.split(value))
    except ValueError:
        return value.strip("\"'")


def parse_cpus(files: Files) -> int:
    """Count the processors that a process may use: 5 for `0-3,8`. Raises ValueError."""
    allowed = _after(files["/proc/self/status"], "Cpus_allowed_list:")
    ranges = [part.split("-") for part in allowed.split(",")]
    return sum(int(ends[-1]) - int(ends[0]) + 1 for ends in ranges)


def parse_uid(files: Files) -> int:
    return int(_after(files["/proc/self/status"], "Uid:").split()[1])


def parse_memory(files: Files, key: str) -> int:
    """Return the bytes of a key of /proc/meminfo, which is in KiB."""
    return int(_after(files["/proc/meminfo"], f"{key}:").split()[0]) * 1024


def _after(lines: Sequence[str], key: str) -> str:
    """Return the text after `key` on its line. Raises LookupError."""
    for line in lines:
        if line.startswith(key):
            return line[len(key) :].strip()
    raise LookupError(f"no {key}")


def parse_nofile(word: str) -> int:
    return sys.maxsize if word == "unlimited" else int(word)


def parse_memlock(shell: Mapping[str, str]) -> int | None:
    """Return bytes, from `ulimit -Hl`, which prints KiB; None if the probe has no such output."""
    word = shell.get("memlock", "")
    if not word:
        return None
    return sys.maxsize if word == "unlimited" else int(word) * 1024


def parse_disks(section: Section) -> dict[str, Disk]:
    """Return disks by requested path, without those that `df` reports errors for. Raises ValueError
    if answers cannot be matched to paths.

    The section has lines of `requested TAB existing`, then df's, in the same order.
    """
    pairs = [line.split("\t") for line in section.lines if "\t" in line]
    complaints = df_complaints(section)
    answered = [asked for asked, existing in pairs if not _blamed(existing, complaints)]
    matches = [_DF_LINE.match(line) for line in section.lines if "\t" not in line]
    sizes = [(int(found[1]) * 1024, int(found[2]) * 1024) for found in matches if found]
    if len(sizes) != len(answered):
        raise ValueError("; ".join(complaints) or "df gave no answer")
    return {
        path: Disk(path, total, max(free, 0))
        for path, (total, free) in zip(answered, sizes, strict=True)
    }


def df_complaints(section: Section) -> list[str]:
    return [line for line in section.lines if line.startswith("df: ")]


def _blamed(path: str, complaints: Sequence[str]) -> bool:
    """Match `df: /data: Stale file handle`; GNU quotes the path if necessary."""
    starts = (f"df: {path}: ", f"df: '{path}': ")
    return any(line.startswith(starts) for line in complaints)


def parse_clock(section: Section, end: Section) -> float:
    """Return Unix seconds at the probe's end: the output of `date`, plus the uptime since then."""
    uptime, now = section.lines[0].split()
    # A busybox without nanoseconds prints the format's letters.
    seconds = float(now if re.fullmatch(r"\d+\.\d+", now) else now.partition(".")[0])
    return seconds + float(end.lines[0]) - float(uptime)


def parse_sudo(section: Section) -> str | None:
    """Return None if `sudo -n` works, else its message."""
    *words, status = section.lines
    return None if status == "status 0" else " ".join(words) or f"sudo ended with {status}"


def parse_shell(lines: Sequence[str]) -> dict[str, str]:
    """Parse `word value` lines."""
    return {word: value.strip() for word, _, value in (line.partition(" ") for line in lines)}
