"""Files that a command writes for its user."""

from __future__ import annotations

from pathlib import Path
from tempfile import NamedTemporaryFile

from clusterctl.errors import UsageError


def is_written(path: Path, data: bytes) -> bool:
    """Return whether `path` has this content already."""
    try:
        return path.read_bytes() == data
    except OSError:
        return False


def write_file(path: Path, data: bytes) -> None:
    """Replace `path` by a file that everyone may read. A reader finds the old content or the new
    one. Raises UsageError, also for a link or device, which would be replaced as well."""
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
