"""Remove secrets and prompts from text for others to read.

A secret is recognised by its name (`HF_TOKEN=`, `--api-key`), its place (in a URL, after `Bearer`),
its form (`hf_...`) or its randomness:

a long word in which letters and digits alternate more often than in any name. When in doubt,
redact.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

REMOVED = "[removed]"

_NAME = r"(?:token|secret|passw(?:or)?d|pass|pwd|pgpass|passphrase|credential|(?:api|access|private|secret)[_-]?key|key|pat|auth|authorization|cookie|session[_-]?id|signature|sig|jwt|bearer|dsn|webhook(?:[_-]?url)?)"  # noqa: E501
_END = r"(?![\w-])"
_QUOTE = r"""[\\"'\])]{0,8}"""
_QUOTED = r"""'(?:[^'\\]|\\.)*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$)"""
_ESCAPED = r"""(?P<open>\\{1,8}["'])(?:(?!(?<!\\)(?P=open)).)*(?:(?P=open)|$)"""

_TEXTS = r"prompts?|system|instructions|content|text|inputs?|query|documents?|messages|outputs?|completion|response|generated_text|reasoning_content|arguments|multi_modal_data"  # noqa: E501
"""Keys of what users write and models answer."""

# Of the kinds in the rules of gitleaks: how the tokens of services begin.
_PREFIXES = (
    "hf_|api_org_|sk-|r8_|gsk_|xai-|pplx-|fw_|nvapi-|lsv2_|csk-|jina_|pcsk_|"
    "gh[pousr]_|github_pat_|gl[a-z]{2,6}-|ATATT3|ATCTT3|ATBB|npm_|pypi-|rubygems_|dckr_[po]at_|"
    "(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])|AIza|ya29\\.|GOCSPX-|AQVN|"
    "xox[a-z]-|xapp-|xoxe\\.|SG\\.|xkeysib-|key-(?=[0-9a-f]{32})|shp(?:at|ss|ca|pa)_|shippo_|"
    "[srp]k_(?:live|test)_|whsec_|sq0[a-z]{3}-|EAAA|EZ[AT]K|FLWSECK|"
    "hv[sbr]\\.|tskey-|dapi|dkea|dose|dop_v1_|doo_v1_|dor_v1_|pul-|pscale_|dp\\.(?:pt|st|ct|sa)\\.|"
    "lin_api_|figd_|PMAK-|NR(?:AK|JS|II|AA)-|glsa_|glc_|sntry[su]_|sq[pua]_|dt0c01\\.|rdme_|HRKU-|"
    "tfp_|pnu_|ops_|AGE-SECRET-KEY-|sha256~|vercel_|sbp_|sl\\.|fo1_|fm[12]_|phc_|phx_|eyJ"
)

# No part of these may be repeated without a limit where another repetition follows: logs have
# lines of megabytes.
_COLOURS = re.compile(
    r"\x1b(?:\[[0-9;?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)?|[@-_])"
)
_SECRETS = (
    re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)", re.DOTALL),  # noqa: E501
    re.compile(r"(?<=://)[^/\s'\"]{1,512}(?=@)"),
    re.compile(r"(?<=://)[^\s/'\"@:]{0,256}:[^\s'\"]{1,256}(?=@)"),
    re.compile(r"(?i)(?<=://)[\w.-]{0,128}(?:hooks?|webhooks?)[\w.-]{0,64}/[^\s'\"]+"),
    re.compile(r"(?i)(?<=://)[\w.-]{1,128}/[^\s'\"]{0,128}?webhooks?/[^\s'\"]+"),
    re.compile(r"(?i)(?<=\bcurl )[^\n]{0,400}?(?:-u|--user)[ =]?[^\s:]{1,128}:\S+"),
    re.compile(r"(?i)(?<= -u )[^\s:]{1,128}:\S+"),
    re.compile(r"(?i)(?<=\blogin )[^\n]{0,200}?-p[ =]?\S+|(?<=sshpass )-p ?\S+"),
    re.compile(r"(?i)(?<=machine )\S{1,256}\s{1,8}login\s{1,8}\S{1,256}\s{1,8}password\s{1,8}\S+"),
    re.compile(r"(?im)(?<=^password )\S+\s*$|(?<=^ password )\S+\s*$|(?<=\tpassword )\S+\s*$"),
    re.compile(r"(?<![\w:])\d{8,10}:[\w-]{35}(?![\w-])"),  # Telegram
    re.compile(r"(?<![\w/@.])[^\s:/@'\"=]{1,64}:[^\s/@'\"]{1,256}(?=@[\w.-])"),
    re.compile(r"(?<==)[^\s:/@'\"=]{1,64}:[^\s/@'\"]{1,256}(?=@[\w.-])"),
    re.compile(r"(?i)(?<=bearer )\S+|(?<=basic )[\w+/=]{8,}"),
    re.compile(rf"(?<![A-Za-z0-9])(?:{_PREFIXES})[\w.~+/=-]{{8,}}"),
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
# Headers as ASGI has them, pairs in lists, and entries of an environment
_PAIRED = re.compile(
    rf"""(?i)(?P<name>["'][\w-]{{0,60}}?{_NAME}s?\\{{0,8}}["']\s{{0,8}},\s{{0,8}}(?:["']value["']\s{{0,8}}:\s{{0,8}})?b?)"""
    rf"""(?P<value>{_QUOTED})"""
)
_LONG_WORD = re.compile(
    r"(?<![\w+/=-])(?!(?:GPU|MIG)-[0-9a-f-]{36}\b)[A-Za-z0-9+/_=-]{24,512}(?![\w+/=-])"
)
_CLASSES = str.maketrans(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
    "A" * 26 + "a" * 26 + "0" * 10,
    "+/_=-",
)
_CHANGES = 0.4  # Per character; in names it is below 0.36, in random words 0.62 on average
_COUNTED = re.compile(r"(?i)(?:passw|pass|pwd|secret|pin)[\w-]{0,30}\W*$")
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

_USE_OF_KEYS = "keys"
"""In clusterctl's own documents: how much the named keys were used (KeyUse), which nobody needs to
read, and which says who the users are. It has no secrets."""

_ENVIRONMENTS = {"env", "environment", "environ"}

LEAST_SECRET = 8
"""Characters of a value that is removed wherever it stands."""


def without_secrets(text: str) -> str:
    """Return a log, or a part of it, without secrets and without the words of users and models."""
    text = _COLOURS.sub("", text)
    text = _without_ends_of_keys(text)
    for expression in _SECRETS:
        text = expression.sub(REMOVED, text)
    text = _INPUT_VALUE.sub(rf"\g<key>{REMOVED}", text)
    text = _IDS.sub(rf"\g<key>[{REMOVED}]", text)
    text = _LISTED.sub(rf"\g<key>{REMOVED}", text)
    text = _LINE.sub(rf"\g<key>{REMOVED}", text)
    text = _FLAG.sub(_keep_counts, text)
    text = _PAIRED.sub(_keep_counts, text)
    text = _NAMED.sub(_keep_counts, text)
    return _LONG_WORD.sub(_without_chance, text)


def _without_ends_of_keys(text: str) -> str:
    """Remove the lines before the end of a private key whose beginning is missing."""
    kept: list[str] = []
    for line in text.splitlines(keepends=True):
        if line.startswith("-----END ") and "PRIVATE KEY" in line:
            while kept and re.fullmatch(r"[A-Za-z0-9+/=]{1,80}\s*", kept[-1]):
                kept.pop()
        kept.append(line)
    return "".join(kept)


def _without_chance(match: re.Match[str]) -> str:
    """Remove a random word of upper-case letters, lower-case letters and digits."""
    classes = match[0].translate(_CLASSES)
    changes = sum(before != after for before, after in pairwise(classes))
    by_chance = {"A", "a", "0"} <= set(classes) and changes >= _CHANGES * len(classes)
    return REMOVED if by_chance and len(classes) >= 20 else match[0]


def _keep_counts(match: re.Match[str]) -> str:
    value = match["value"]
    harmless = value.startswith(REMOVED[:-1]) or _HARMLESS.fullmatch(value)
    if value[:1].isdigit() and _COUNTED.search(match["name"]):
        harmless = False  # A password may be a number
    return match[0] if harmless else match["name"] + REMOVED


def document_without_secrets(value: Any, key: str = "", *, own: bool = False) -> Any:
    """Return a JSON value without secrets. `own`: it is clusterctl's document, in which `text` is
    not a user's."""
    if own and key == _USE_OF_KEYS:
        return []
    if _SECRET_KEY.match(key):
        return _hidden(value, key)
    if isinstance(value, dict):
        named = str(value.get("name") or value.get("key") or "")
        return {
            name: REMOVED
            if (key in _ENVIRONMENTS and each and not _OPEN_VARIABLES.fullmatch(str(name)))
            or (name == "value" and _SECRET_KEY.match(named))
            else document_without_secrets(each, str(name), own=own)
            for name, each in value.items()
        }
    if isinstance(value, list):
        made, hidden = [], False
        if len(value) == 2 and isinstance(value[0], str) and _SECRET_KEY.match(value[0]):
            return [value[0], _hidden(value[1], value[0])]
        for each in value:
            is_flag = isinstance(each, str) and each.startswith("-")
            made.append(REMOVED if hidden and not is_flag else
                        document_without_secrets(each, own=own))  # fmt: skip
            hidden = bool(_SECRET_KEY.match(each)) if is_flag else hidden
        return made
    if isinstance(value, str) and value:
        return REMOVED if not own and _TEXT_KEY.match(key) else without_secrets(value)
    return value


def _hidden(value: Any, key: str) -> Any:
    """Return the value under a secret's name, without anything that could be secret."""
    if isinstance(value, dict):
        return {name: _hidden(each, key) for name, each in value.items()}
    if isinstance(value, list):
        return [_hidden(each, key) for each in value]
    if value in ("", None) or isinstance(value, bool):
        return value
    counts = isinstance(value, int | float) and key.lower().endswith("tokens")
    return value if counts else REMOVED


def _secrets_in(value: Any, key: str = "") -> Iterator[str]:
    """Yield the values in a document of clusterctl that are secret by name."""
    if key == _USE_OF_KEYS and isinstance(value, list):
        return
    if isinstance(value, dict):
        named = str(value.get("name") or "")
        for name, each in value.items():
            below = key if _SECRET_KEY.match(key) else named if name == "value" else str(name)
            yield from _secrets_in(each, below)
    elif isinstance(value, list):
        for each in value:
            yield from _secrets_in(each, key if _SECRET_KEY.match(key) else "")
    elif isinstance(value, str) and len(value) >= LEAST_SECRET and _SECRET_KEY.match(key):
        yield value


def records_without_secrets(text: str) -> str:
    """Return a file of clusterctl, one JSON document or one per line; other lines are left out."""
    return "".join(
        json.dumps(document_without_secrets(each, own=True), indent=indent) + "\n"
        for each, indent in _documents(text)
    )


def secrets_of(text: str) -> Iterator[str]:
    """Yield the values in such a file that are secret by name."""
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
