"""Secrets and prompts taken out of text that others are to read.

What a secret looks like is known by its name (`HF_TOKEN=`, `--api-key`), by its place (in a URL,
after `Bearer`) or by its form (`hf_...`). Rather too much is removed than too little.
"""

from __future__ import annotations

import json
import re
from typing import Any

REMOVED = "[removed]"

_NAME = r"(?:[\w-]*[_-])?(?:tokens?|secrets?|passwords?|passwd|passphrase|credentials?|(?:api|access|private|secret)[_-]?keys?|key|pat|auth|authorization|cookie)"  # noqa: E501
_QUOTED = r"""'(?:[^'\\]|\\.)*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$)"""

_TEXTS = r"prompt|content|text|input|inputs|query|documents?|messages|outputs?|completion|response|generated_text|reasoning_content|arguments"  # noqa: E501
"""Keys of what users write and models answer."""

_SECRETS = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),  # noqa: E501
    re.compile(r"(?<=://)[^/\s@'\"]+(?=@)"),
    re.compile(r"(?i)(?<=bearer )\S+|(?<=basic )[\w+/=]{8,}"),
    re.compile(r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|nvapi-|xox[a-z]-|AKIA|eyJ)[\w.-]{8,}"),
)  # fmt: skip
_NAMED = re.compile(
    rf"""(?i)(?P<name>(?:--|\b){_NAME}["']?\s*(?:[=:]\s*|\s(?=\S))(?:b?(?={_QUOTED}))?)"""
    rf"""(?P<value>\[[^\]\n]*\]?|{_QUOTED}|[^\s,;&}}\])"']+)"""
)
_HARMLESS = re.compile(r"(?i)[\d.]{1,6}|none|null|true|false")  # counts, and switches
_QUOTES = re.compile(
    rf"""(?i)(?P<key>["']?\b(?:{_TEXTS})["']?\s*[:=]\s*\[?\s*)(?P<value>(?:{_QUOTED})(?:\s*,\s*(?:{_QUOTED})(?!\s*:))*)""",
    re.MULTILINE,
)
_IDS = re.compile(r"(?i)(?P<key>token_ids?[\"']?\s*[:=]\s*)\[[^\]]*(?:\]|$)", re.MULTILINE)
_INPUT_VALUE = re.compile(r"(?P<key>\binput_value=).*?(?=, input_type=|$)", re.MULTILINE)

_SECRET_KEY = re.compile(rf"(?i)^(?:--)?{_NAME}$")
_TEXT_KEY = re.compile(rf"(?i)^(?:{_TEXTS})$")


def without_secrets(text: str) -> str:
    """Return a log, or a part of it, without secrets and without what users and models wrote."""
    for expression in _SECRETS:
        text = expression.sub(REMOVED, text)
    text = _QUOTES.sub(rf"\g<key>{REMOVED}", text)
    text = _INPUT_VALUE.sub(rf"\g<key>{REMOVED}", text)
    text = _IDS.sub(rf"\g<key>[{REMOVED}]", text)
    return _NAMED.sub(_keep_counts, text)


def _keep_counts(match: re.Match[str]) -> str:
    value = match["value"]
    harmless = value == REMOVED or _HARMLESS.fullmatch(value)
    separated = re.search(r"[=:]", match["name"]) or match["name"].startswith("--")
    return match[0] if harmless or not separated else match["name"] + REMOVED


def document_without_secrets(value: Any, key: str = "", *, own: bool = False) -> Any:
    """Return a JSON value without secrets. `own`: it is a document of clusterctl, in which `text`
    is no user's."""
    if isinstance(value, dict):
        return {
            name: document_without_secrets(each, str(name), own=own) for name, each in value.items()
        }
    if isinstance(value, list):
        made = [document_without_secrets(each, own=own) for each in value]
        for at, word in enumerate(value[:-1]):
            if isinstance(word, str) and word.startswith("--") and _SECRET_KEY.match(word):
                made[at + 1] = REMOVED
        return made
    if isinstance(value, str) and value:
        if _SECRET_KEY.match(key) or (not own and _TEXT_KEY.match(key)):
            return REMOVED
        return without_secrets(value)
    return value


def records_without_secrets(text: str) -> str:
    """Return a file of clusterctl, one JSON document or one a line; lines that are none are left
    out."""
    made = []
    try:
        return json.dumps(document_without_secrets(json.loads(text), own=True), indent=1) + "\n"
    except (ValueError, RecursionError):
        pass
    for line in text.splitlines():
        try:
            made.append(json.dumps(document_without_secrets(json.loads(line), own=True)) + "\n")
        except (ValueError, RecursionError):
            continue
    return "".join(made)
