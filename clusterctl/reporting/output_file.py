"""Files that a command writes for its user."""

from __future__ import annotations

from pathlib import Path
from tempfile import NamedTemporaryFile

from clusterctl.errors import UsageError


def is_written(path: Path, data: bytes) -> bool:
    """Return whether `path` already has this content."""
    try:
        return path.read_bytes() == data
    except OSError:
        return False


def write_file(path: Path, data: bytes) -> None:
    """Replace `path` with a world-readable file, atomically. Raises UsageError, also for a link or
    device, which would be replaced too."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UsageError(f"{path} is not a file", hint="name a new file or a regular one")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
            draft = Path(file.name)
            try:
                file.write(data)
                file.flush()
                draft.chmod(0o644)
                draft.replace(path)
            except OSError:
                draft.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", hint="name a path that you can write to"
        ) from error
