"""Named API keys: their limits as users write them, and the document that the gateway follows."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import replace

from clusterctl.errors import UsageError
from clusterctl.node.documents import KeysDocument, NamedKey
from clusterctl.node.gateway import CLUSTER_KEY

PREFIX = "sk-"  # OpenAI's: some clients refuse other keys

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_MODEL = re.compile(r"[A-Za-z0-9._/:@+-]+")  # What no command to HAProxy could misread
_LIMIT = re.compile(r"(\d+)([kKmMgG]?)/(\w+)")
_TIMES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


def new_secret() -> str:
    """Return a key of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def limit(text: str, option: str, period: str) -> int:
    """Return the number of a limit such as `60/min` or `1M/day`. Raises UsageError."""
    found = _LIMIT.fullmatch(text)
    number = int(found[1]) * _TIMES[found[2].lower()] if found else 0
    if found is None or found[3] != period or not 0 < number < 2**31:
        raise UsageError(
            f"{option} {text} is not a limit", hint=f"{option} 60/{period}, or 1M/{period}"
        )
    return number


def with_key(document: KeysDocument, key: NamedKey) -> KeysDocument:
    """Return the document with another key. Raises UsageError for a taken or invalid name."""
    if not _NAME.fullmatch(key.name) or key.name == CLUSTER_KEY:
        raise UsageError(
            f"{key.name} cannot be the name of a key",
            hint="lowercase letters, digits, . _ and -, at most 63; `cluster` is taken",
        )
    for model in key.models:
        if not _MODEL.fullmatch(model):
            raise UsageError(
                f"--models: {model!r} cannot be the name of a model",
                hint=f"clusterctl key create {key.name} --models chat,sql",
            )
    if any(one.name == key.name for one in document.keys):
        raise UsageError(
            f"a key named {key.name} already exists",
            hint=f"clusterctl key revoke {key.name} ends it; its users then need the new one",
        )
    return replace(document, keys=sorted([*document.keys, key], key=lambda one: one.name))


def without_key(document: KeysDocument, name: str) -> KeysDocument:
    """Return the document without the key. Raises UsageError if there is none with that name."""
    left = [key for key in document.keys if key.name != name]
    if len(left) == len(document.keys):
        have = ", ".join(key.name for key in document.keys) or "none"
        raise UsageError(f"no key named {name}; keys: {have}", hint="clusterctl key ls")
    return replace(document, keys=left)


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
