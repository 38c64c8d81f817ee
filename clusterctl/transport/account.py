"""Who runs clusterctl on this machine."""

from __future__ import annotations

import getpass
import os


def account() -> str:
    """The user's name; `uid N` for one without an entry in passwd, as containers have."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        return f"uid {os.getuid()}"
