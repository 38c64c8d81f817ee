"""A report as one archive for others to read: files of hosts without secrets."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from clusterctl.diagnosis.redaction import (
    REMOVED,
    records_without_secrets,
    secrets_of,
    without_secrets,
)
from clusterctl.errors import UsageError

LARGEST = 64 * 2**20
"""Bytes of all hosts' logs before compression, at least LEAST for each."""
LEAST = 2**18

_COMPRESSORS = {".zst": ("zstd", "-q", "-10"), ".gz": ("gzip", "-9n")}


_FILE = re.compile(r"(?:\w[\w@.-]{0,127}/)?\w[\w@.-]{0,127}", re.ASCII)


def host_files(said: object) -> dict[str, str]:
    """Return the files that a host sent, by names that cannot escape its directory in an archive.
    Others are left out: none of ours have such names."""
    found = said if isinstance(said, dict) else {}
    return {
        name: text
        for name, text in found.items()
        if isinstance(name, str) and isinstance(text, str) and _FILE.fullmatch(name)
    }


def compressor_for(path: Path) -> tuple[str, ...]:
    """Return the command that compresses for this name. Raises UsageError for a name without an
    archive's extension."""
    if path.suffixes[-2:-1] != [".tar"] or path.suffix not in _COMPRESSORS:
        raise UsageError(f"{path} is no name of an archive", hint="name it report.tar.zst")
    return _COMPRESSORS[path.suffix]


def write_bundle(path: Path, files: Mapping[str, str]) -> int:
    """Write the files into an archive that only its owner can read, and return its size in bytes.

    Raises UsageError if it cannot be written.
    """
    # A secret that one file names may stand in another without a name.
    records = [text for name, text in files.items() if ".json" in name]
    known = sorted({each for text in records for each in secrets_of(text)}, key=len, reverse=True)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, text in sorted(files.items()):
            remove = records_without_secrets if ".json" in name else without_secrets
            kept = remove(text)
            for secret in known:
                kept = kept.replace(secret, REMOVED)
            data = kept.encode(errors="replace")
            entry = tarfile.TarInfo(f"report/{name}")
            entry.size, entry.mode = len(data), 0o600
            tar.addfile(entry, io.BytesIO(data))
    argv = compressor_for(path)
    try:
        packed = subprocess.run(argv, input=archive.getvalue(), capture_output=True, check=True)
        # A new file, mode 0600, in place of whatever has the name
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".report-", delete=False) as file:
            try:
                file.write(packed.stdout)
                file.flush()
                Path(file.name).replace(path)
            except OSError:
                Path(file.name).unlink()
                raise
    except FileNotFoundError as error:
        missing = error.filename == argv[0]
        why = f"{argv[0]} is not installed here" if missing else "its directory does not exist"
        hint = "name it report.tar.gz" if missing else None
        raise UsageError(f"{path} cannot be written: {why}", hint=hint) from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(f"{path} cannot be written: {error}") from error
    return path.stat().st_size
