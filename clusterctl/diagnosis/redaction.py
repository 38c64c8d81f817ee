"""Secrets and prompts taken out of text that others are to read.

What a secret looks like is known by its name (`HF_TOKEN=`, `--api-key`), by its place (in a URL,
after `Bearer`) or by its form (`hf_...`). Rather too much is removed than too little.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

REMOVED = "[removed]"

_NAME = r"(?:token|secret|passw(?:or)?d|pass|pwd|passphrase|credential|(?:api|access|private|secret)[_-]?key|key|pat|auth|authorization|cookie|signature|sig|jwt)"  # noqa: E501
_END = r"(?![\w-])"
_QUOTE = r"""[\\"'\])]{0,8}"""
_QUOTED = r"""'(?:[^'\\]|\\.)*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$)"""
_ESCAPED = r"""(?P<open>\\{1,8}["'])(?:(?!(?<!\\)(?P=open)).)*(?:(?P=open)|$)"""

_TEXTS = r"prompts?|system|instructions|content|text|inputs?|query|documents?|messages|outputs?|completion|response|generated_text|reasoning_content|arguments|multi_modal_data"  # noqa: E501
"""Keys of what users write and models answer."""

# No part of these may be repeated without a limit where another repetition follows: logs have
# lines of megabytes.
_SECRETS = (
    re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL),  # noqa: E501
    re.compile(r"(?<=://)[^/\s'\"]{1,512}(?=@)"),
    re.compile(r"(?<![\w/@.])[^\s:/@'\"=]{1,64}:[^\s/@'\"]{1,256}(?=@[\w.-])"),
    re.compile(r"(?<==)[^\s:/@'\"=]{1,64}:[^\s/@'\"]{1,256}(?=@[\w.-])"),
    re.compile(r"(?i)(?<=bearer )\S+|(?<=basic )[\w+/=]{8,}"),
    re.compile(r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|nvapi-|xox[a-z]-|AKIA|eyJ)[\w.-]{8,}"),
    re.compile(r"""(?i)(?<=cookie)["']?:[^\n]*|(?<=authorization)["']?:[^\n]*"""),
)  # fmt: skip
# vLLM's --api-key takes several: all words up to the next flag.
_FLAG = re.compile(
    rf"""(?i)(?P<name>(?<!-)--(?=\w)[\w-]{{0,60}}?{_NAME}{_END}[\\"']{{0,8}}(?:\s{{0,8}}[=,]\s{{0,8}}|\s))"""
    r"""(?P<value>(?:(?![\s"',\\]--)[^\]\n])*)"""
)
_NAMED = re.compile(
    rf"""(?i)(?P<name>{_NAME}s?{_END}{_QUOTE}\s{{0,8}}[=:]\s{{0,8}}(?:[a-z_]\w{{0,30}}\()?b?)"""
    rf"""(?P<value>\[[^\]\n]*\]?|{_QUOTED}|{_ESCAPED}|[^\s,;&}}\])"']+)"""
)
_HARMLESS = re.compile(r"(?i)[\d.]{1,6}|none|null|true|false")  # counts, and switches
_LISTED = re.compile(
    rf"""(?i)(?P<key>["']?\b(?:{_TEXTS})["']?\s{{0,8}}[:=]\s{{0,8}}\[?\s{{0,80}})(?P<value>(?:{_QUOTED})(?:\s{{0,80}},\s{{0,80}}(?:{_QUOTED})(?!\s{{0,8}}:))*)""",
)
# Whatever else is on its line: a text may have any quotes.
_LINE = re.compile(
    rf"""(?i)(?P<key>\b(?:{_TEXTS})[\\"']{{0,8}}\s{{0,8}}[:=]\s{{0,8}})(?=[\[({{\\"'])[^\n]*"""
)
_IDS = re.compile(r"(?i)(?P<key>token_ids?[\\\"']{0,8}\s{0,8}[:=]\s{0,8})\[[^\]]*(?:\]|$)")
_INPUT_VALUE = re.compile(r"(?P<key>\binput_value=)[^\n]*?(?=, input_type=|$)", re.MULTILINE)

_SECRET_KEY = re.compile(rf"(?i)(?:^|.*){_NAME}s?$")
_TEXT_KEY = re.compile(rf"(?i)^(?:{_TEXTS})$")

_OPEN_VARIABLES = re.compile(
    "(?:NCCL|VLLM|RAY|GLOO|CUDA|NVIDIA|ROCR|HIP|RCCL|TORCH|PYTORCH|TRITON|UCX|OMP|MKL|PYTHON|LD"
    "|CLUSTERCTL)_?[A-Z0-9_]*|HF_HUB_OFFLINE|HF_HOME|TRANSFORMERS_OFFLINE|TZ|LANG"
)
"""Variables whose values are shown; those of any other may be secret."""

LEAST_SECRET = 8
"""Characters of a value that is removed wherever it stands."""


def without_secrets(text: str) -> str:
    """Return a log, or a part of it, without secrets and without what users and models wrote."""
    for expression in _SECRETS:
        text = expression.sub(REMOVED, text)
    text = _INPUT_VALUE.sub(rf"\g<key>{REMOVED}", text)
    text = _IDS.sub(rf"\g<key>[{REMOVED}]", text)
    text = _LISTED.sub(rf"\g<key>{REMOVED}", text)
    text = _LINE.sub(rf"\g<key>{REMOVED}", text)
    text = _FLAG.sub(_keep_counts, text)
    return _NAMED.sub(_keep_counts, text)


def _keep_counts(match: re.Match[str]) -> str:
    value = match["value"]
    harmless = value.startswith(REMOVED[:-1]) or _HARMLESS.fullmatch(value)
    return match[0] if harmless else match["name"] + REMOVED


def document_without_secrets(value: Any, key: str = "", *, own: bool = False) -> Any:
    """Return a JSON value without secrets. `own`: it is a document of clusterctl, in which `text`
    is no user's."""
    if isinstance(value, dict):
        return {
            name: REMOVED
            if key == "env" and each and not _OPEN_VARIABLES.fullmatch(str(name))
            else document_without_secrets(each, str(name), own=own)
            for name, each in value.items()
        }
    if isinstance(value, list):
        made, hidden = [], False
        for each in value:
            is_flag = isinstance(each, str) and each.startswith("-")
            made.append(REMOVED if hidden and not is_flag else
                        document_without_secrets(each, own=own))  # fmt: skip
            hidden = bool(_SECRET_KEY.match(each)) if is_flag else hidden
        return made
    if isinstance(value, str) and value:
        if _SECRET_KEY.match(key) or (not own and _TEXT_KEY.match(key)):
            return REMOVED
        return without_secrets(value)
    return value


def _secrets_in(value: Any, key: str = "") -> Iterator[str]:
    """Yield the values of a JSON document that are secret by their names."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _secrets_in(each, str(name))
    elif isinstance(value, list):
        for each in value:
            yield from _secrets_in(each)
    elif isinstance(value, str) and len(value) >= LEAST_SECRET and _SECRET_KEY.match(key):
        yield value


def records_without_secrets(text: str) -> str:
    """Return a file of clusterctl, one JSON document or one a line; lines that are none are left
    out."""
    return "".join(
        json.dumps(document_without_secrets(each, own=True), indent=indent) + "\n"
        for each, indent in _documents(text)
    )


def secrets_of(text: str) -> Iterator[str]:
    """Yield the values that are secret by their names in such a file."""
    for each, _ in _documents(text):
        yield from _secrets_in(each)


def _documents(text: str) -> Iterator[tuple[Any, int | None]]:
    """Yield the documents, and how far to indent them."""
    try:
        yield json.loads(text), 1
    except (ValueError, RecursionError):
        for line in text.splitlines():
            with suppress(ValueError, RecursionError):
                yield json.loads(line), None
