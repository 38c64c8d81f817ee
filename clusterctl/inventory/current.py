"""The current inventory: the last one bootstrapped, used by commands without an explicit one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile

from clusterctl.errors import UsageError

VARIABLE = "CLUSTERCTL_INVENTORY"
_HINT = "clusterctl bootstrap FILE makes one current; or name one: clusterctl -i FILE ..."


def current(explicit: Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return `explicit` (-i), else $CLUSTERCTL_INVENTORY, else the current inventory.

    Raises UsageError if there is none, or if the current one was deleted.
    """
    if explicit is not None:
        return explicit
    if named := environ.get(VARIABLE):
        return Path(named)
    memory = _memory(environ)
    try:
        text = os.fsdecode(memory.read_bytes()).removesuffix("\n")
    except FileNotFoundError:
        raise UsageError("no inventory given, and there is no current one", hint=_HINT) from None
    except OSError as error:
        raise UsageError(f"{memory} cannot be read: {error.strerror}", hint=_HINT) from error
    path = Path(text)
    if not path.is_absolute():
        raise UsageError(f"{memory} does not contain the path of an inventory", hint=_HINT)
    if not path.exists():
        raise UsageError(f"the current inventory {path} does not exist", hint=_HINT)
    return path


def remember(path: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Make `path` the current inventory. Returns the file that records it.

    Raises UsageError if that file cannot be written.
    """
    memory = _memory(environ)
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=memory.parent, prefix=".current-", delete=False) as file:
            file.write(os.fsencode(path.absolute()) + b"\n")
        Path(file.name).replace(memory)
    except OSError as error:
        raise UsageError(
            f"the current inventory cannot be recorded in {memory}: {error.strerror}",
            hint=f"name it each time: clusterctl -i {path} ...",
        ) from error
    return memory


def _memory(environ: Mapping[str, str]) -> Path:
    """Return $XDG_STATE_HOME/clusterctl/current. A relative XDG_STATE_HOME is ignored, as its
    specification requires."""
    base = Path(environ.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():
        home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111
        base = Path(home) / ".local" / "state"
    return base / "clusterctl" / "current"
