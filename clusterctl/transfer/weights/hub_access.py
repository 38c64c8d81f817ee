"""Where a hub is and who asks: from the environment and the files that the hubs' own tools use.

Never from an argument: those are visible to every user of the machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

HF = "https://huggingface.co"
MODELSCOPE = "https://www.modelscope.cn"


@dataclass(frozen=True)
class Access:
    """A hub's address and the user's token for it."""

    endpoint: str
    """Without a slash at the end."""
    token: str | None = field(default=None, repr=False)
    how_to_log_in: str = ""
    """The end of a sentence that says how to give a token."""


def huggingface_access(environment: Mapping[str, str] = os.environ) -> Access:
    """HF_ENDPOINT, HF_TOKEN, or the file that `hf auth login` writes:
    https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
    """
    cache = environment.get("XDG_CACHE_HOME") or Path(_home(environment)) / ".cache"
    home = environment.get("HF_HOME") or Path(cache) / "huggingface"
    file = Path(environment.get("HF_TOKEN_PATH") or Path(home) / "token").expanduser()
    token = environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN")
    return Access(
        _endpoint(environment.get("HF_ENDPOINT"), HF),
        _clean(token) or _first_line(file),
        f"give your token: `hf auth login`, or put it in HF_TOKEN or {file}",
    )


def modelscope_access(environment: Mapping[str, str] = os.environ) -> Access:
    """MODELSCOPE_ENDPOINT (or the older MODELSCOPE_DOMAIN) and MODELSCOPE_API_TOKEN. What
    `modelscope login` keeps is a pickle (modelscope_hub: config.py), which is not read here."""
    endpoint = environment.get("MODELSCOPE_ENDPOINT") or environment.get("MODELSCOPE_DOMAIN")
    return Access(
        _endpoint(endpoint, MODELSCOPE),
        _clean(environment.get("MODELSCOPE_API_TOKEN")),
        "give your token in MODELSCOPE_API_TOKEN",
    )


def _home(environment: Mapping[str, str]) -> str:
    return environment.get("HOME") or str(Path.home())


def _endpoint(given: str | None, otherwise: str) -> str:
    address = (given or "").strip() or otherwise
    if not address.lower().startswith(("http://", "https://")):
        address = f"https://{address}"
    return address.rstrip("/")


def _clean(token: str | None) -> str | None:
    """Without the blanks and line ends that copying leaves; they would break the header."""
    return "".join((token or "").split()) or None


def _first_line(file: Path) -> str | None:
    with suppress(OSError, UnicodeDecodeError):
        return _clean(file.read_text())
    return None
