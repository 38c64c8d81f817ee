"""Parse operating system, identity, memory, disks, clock and users from a probe's output."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence

from clusterctl.facts.model import CONTAINERD_ROOT, Disk, Os
from clusterctl.facts.sections import Files, Section, first_line
from clusterctl.transport.python import OLDEST

_DF_LINE = re.compile(r"^.*?\s+(\d+)\s+-?\d+\s+(-?\d+)\s+(?:\d+%|-)\s+/")


# A derivative has its own VERSION_CODENAME, and one of these for the release that it is based on.
_CODENAMES = ("UBUNTU_CODENAME", "DEBIAN_CODENAME", "VERSION_CODENAME")


def parse_os(files: Files, machine: str) -> Os:
    """Parse the shell assignments of /etc/os-release, as specified by os-release(5)."""
    release = {}
    for line in files.get("/etc/os-release") or files.get("/usr/lib/os-release") or ():
        key, equals, value = line.partition("=")
        if not equals or line.startswith("#"):
            continue
        try:
            release[key.strip()] = " ".join(shlex.split(value))
        except ValueError:
            release[key.strip()] = value.strip("\"'")
    return Os(
        id=release.get("ID", ""),
        like=tuple(release.get("ID_LIKE", "").split()),
        version=release.get("VERSION_ID", ""),
        codename=next((release[key] for key in _CODENAMES if release.get(key)), ""),
        pretty=release.get("PRETTY_NAME", ""),
        architecture=machine,
        kernel=first_line(files, "/proc/sys/kernel/osrelease"),
    )


def parse_cpus(files: Files) -> int:
    """Count the processors that a process may use: 5 for `0-3,8`. Raises ValueError."""
    allowed = _after(files["/proc/self/status"], "Cpus_allowed_list:")
    ranges = [part.split("-") for part in allowed.split(",")]
    return sum(int(ends[-1]) - int(ends[0]) + 1 for ends in ranges)


def parse_uid(files: Files) -> int:
    return int(_after(files["/proc/self/status"], "Uid:").split()[1])


def parse_memory(files: Files) -> int:
    """Return the host's memory in bytes, from /proc/meminfo, which is in KiB."""
    return int(_after(files["/proc/meminfo"], "MemTotal:").split()[0]) * 1024


def _after(lines: Sequence[str], key: str) -> str:
    """Return the text after `key` on its line. Raises LookupError."""
    for line in lines:
        if line.startswith(key):
            return line[len(key) :].strip()
    raise LookupError(f"no {key}")


def parse_nofile(shell: Mapping[str, str]) -> int:
    """Return the engine's limit if it runs and its limits can be read, else the session's."""
    word = shell.get("engine-nofile") or shell["nofile"]
    return sys.maxsize if word == "unlimited" else int(word)


def parse_memlock(shell: Mapping[str, str]) -> int | None:
    """Return bytes, from `ulimit -Hl`, which prints KiB; None if the probe has no such output."""
    word = shell.get("memlock", "")
    if not word:
        return None
    return sys.maxsize if word == "unlimited" else int(word) * 1024


def parse_python(shell: Mapping[str, str]) -> tuple[str | None, str, bool]:
    """Return the path of a usable Python (or None), the version of the Python found, and whether it
    lacks part of its standard library."""
    path, version, minimal, *_ = [*shell.get("python3", "").split(), "", "", ""]
    major, _, minor = version.partition(".")
    new_enough = minor.isdecimal() and (int(major), int(minor)) >= OLDEST
    return (path if new_enough and not minimal else None), version, bool(minimal)


def parse_disks(section: Section) -> dict[str, Disk]:
    """Return disks by requested path, except those for which `df` reports errors. Raises ValueError
    if answers cannot be matched to paths.

    The section has lines of `requested TAB existing`, then df's, in the same order.
    """
    pairs = [line.split("\t") for line in section.lines if "\t" in line]
    complaints = df_complaints(section)
    # Such as `df: /data: Stale file handle`; GNU quotes the path if necessary.
    answered = [
        asked
        for asked, path in pairs
        if not any(line.startswith((f"df: {path}: ", f"df: '{path}': ")) for line in complaints)
    ]
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


def parse_clock(section: Section | None, end: Section | None) -> float:
    """Return Unix seconds at the probe's end: the output of `date`, plus the uptime since then."""
    if section is None or end is None:
        raise ValueError("the probe has no clock section")
    uptime, now = section.lines[0].split()
    # A busybox without nanoseconds prints the format's letters.
    seconds = float(now if re.fullmatch(r"\d+\.\d+", now) else now.partition(".")[0])
    return seconds + float(end.lines[0]) - float(uptime)


_TOML_ROOT = re.compile(r"""root *= *["'](/[^"']*)["']""")


def parse_containerd_root(files: Files) -> str:
    """Return the directory of containerd's image store, which its configuration may set."""
    lines = files.get("/etc/containerd/config.toml") or ()
    named = (found[1] for found in map(_TOML_ROOT.match, lines) if found)
    return next(named, CONTAINERD_ROOT)


def parse_ephemeral(files: Files) -> tuple[int, ...]:
    """Return the first and the last port; () if unknown. Raises ValueError."""
    words = first_line(files, "/proc/sys/net/ipv4/ip_local_port_range").split()
    first, last = map(int, words or (0, 0))
    return (first, last) if words else ()


def parse_sudo(section: Section) -> str | None:
    """Return None if `sudo -n` works, else its message."""
    *words, status = section.lines
    return None if status == "status 0" else " ".join(words) or f"sudo ended with {status}"


def parse_shell(lines: Sequence[str]) -> dict[str, str]:
    """Parse `word value` lines."""
    return {word: value.strip() for word, _, value in (line.partition(" ") for line in lines)}
