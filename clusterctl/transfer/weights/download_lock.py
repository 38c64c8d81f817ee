"""One `model pull` of a model at a time on this machine: two would write the same part files, and
the first to end would take them away from under the other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from clusterctl.errors import LockHeld, StepFailed
from clusterctl.transfer.blob_store import locked, same_file
from clusterctl.transport.lock import Holder, this_process


@contextmanager
def only_one(directory: Path, model_id: str) -> Iterator[None]:
    """Have `directory` for the body alone. The kernel lets go of it when the process ends,
    however that is. Raises LockHeld, naming who has it; StepFailed for what the disk says."""
    path = directory.with_name(f"{directory.name}.lock")
    try:
        file = _taken(path, model_id)
    except OSError as error:
        raise StepFailed(
            f"{path} cannot be locked: {error.strerror}",
            hint="set XDG_CACHE_HOME to a directory of a disk of this machine",
        ) from error
    with file:
        try:
            yield
        finally:
            with suppress(OSError):  # the lock ends with the file; its name is nothing but litter
                path.unlink()


def _taken(path: Path, model_id: str) -> BinaryIO:
    """The file, locked and with our name in it. One that its last holder has just removed is
    locked for nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = path.open("a+b")
        if not locked(file):
            with file:
                raise _held(file, model_id)
        if same_file(file, path):
            file.truncate(0)
            file.write(this_process(f"model pull {model_id}").to_json().encode())
            file.flush()
            return file
        file.close()


def _held(file: BinaryIO, model_id: str) -> LockHeld:
    file.seek(0)
    try:
        holder = Holder(**json.loads(file.read()))
    except (ValueError, TypeError):  # it has not written its name yet
        return LockHeld(
            f"another clusterctl gets {model_id} here", hint=f"see which: fuser -v {file.name}"
        )
    return LockHeld(
        f"{model_id} is being got here by {holder}",
        hint=f"wait for its end (tail --pid={holder.pid} -f /dev/null), then run this again",
    )
