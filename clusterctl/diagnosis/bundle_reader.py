"""Open an archive written by `diagnose --bundle`: its files by host, and its question."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from clusterctl.diagnosis.bundle import LARGEST
from clusterctl.diagnosis.cluster import OF_HOSTS, Asked
from clusterctl.errors import UsageError

SUFFIXES = (".tar.zst", ".tar.gz")

_PROGRAMS = {".zst": ("zstd", "-dcq"), ".gz": ("gzip", "-dc")}
_MOST = 4 * LARGEST  # bytes of all files; whoever sends an archive may have made it
_MOST_FILES = 20_000
_FILE = re.compile(r"report/(?P<host>[\w.-]+)/(?P<name>[\w.@:+-]+)")
_QUESTION = "report/clusterctl.json"


def read_bundle(path: Path) -> tuple[dict[str, dict[str, str]], Asked]:
    """Return the files of each host by their names, and the question that the archive answers.

    Raises UsageError if it is not such an archive, or too large.
    """
    files: dict[str, dict[str, str]] = {}
    asked = ""
    for name, text in _texts(path):
        if name == _QUESTION:
            asked = text
        elif match := _FILE.fullmatch(name):
            files.setdefault(match["host"], {})[_as_on_hosts(match["name"])] = text
    try:
        document = json.loads(asked)
        names = {str(at): str(host) for at, host in document["names"].items()}
        question = Asked(str(document["service"]), float(document["time"]), names)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is not an archive of this release's clusterctl diagnose --bundle",
            hint="unpack it, and give diagnose the directory",
        ) from error
    return files, question


def _as_on_hosts(name: str) -> str:
    plain = name.removesuffix(".log")
    return plain if plain in OF_HOSTS else name


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each regular file in the archive."""
    try:
        with path.open("rb") as packed:
            argv = (*_PROGRAMS[path.suffix],)
            with subprocess.Popen(
                argv, stdin=packed, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ) as unpacking:
                try:
                    yield from _members(path, unpacking.stdout)
                finally:
                    unpacking.kill()
    except FileNotFoundError as error:
        missing = path if error.filename == str(path) else error.filename
        raise UsageError(f"{missing} is not there", hint="install it, or check the name") from error
    except (OSError, tarfile.TarError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _members(path: Path, stream: IO[bytes] | None) -> Iterator[tuple[str, str]]:
    left = _MOST
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for count, member in enumerate(archive):
            left -= member.size
            if left < 0 or count >= _MOST_FILES:
                raise UsageError(f"{path} has more than clusterctl writes into an archive")
            file = archive.extractfile(member) if member.isreg() else None
            if file:
                yield member.name, file.read().decode("utf-8", "replace")
