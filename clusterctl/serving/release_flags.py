"""Flags by release of vLLM, so that a start that must fail is refused before anything is stopped
for it.

vllm_releases.json has them:

`scripts/new_release.sh` reads a release's sources, and records in which of these releases a flag
appeared and disappeared. A release between two of them may or may not have a flag; then vLLM itself
decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError
from clusterctl.models.version import Version, parse_version, show_version
from clusterctl.serving.vllm_flags import Argument, parse_arguments

SHUTDOWN_TIMEOUT_SINCE: Version = (0, 18, 0)  # --shutdown-timeout (vllm#34730)

DATA_PARALLEL_BACKEND_SINCE: Version = (0, 9, 2)

_RELEASES = json.loads(Path(__file__).with_name("vllm_releases.json").read_text(encoding="utf-8"))


def _version(text: str | None) -> Version | None:
    return parse_version(text) if text else None


@dataclass(frozen=True)
class FlagHistory:
    """The first known release with a flag (None: before all of them), and the first known one
    without it again."""

    since: Version | None
    gone: Version | None

    def known_to(self, version: Version) -> bool:
        return version >= (self.since or version) and not (self.gone and version >= self.gone)


_READ: tuple[Version, ...] = tuple(parse_version(text) or (0, 0, 0) for text in _RELEASES["read"])
FLAGS = {
    name: FlagHistory(_version(since), _version(gone))
    for name, (since, gone) in _RELEASES["flags"].items()
}
# Values of flags, as "quantization bitsandbytes"
_VALUES = {
    name: FlagHistory(_version(since), _version(gone))
    for name, (since, gone) in _RELEASES["values"].items()
}
BITSANDBYTES_ABSENT_FROM = _VALUES["quantization bitsandbytes"].gone or (999, 0, 0)

NEWEST_RELEASE: dict[str, Any] = _RELEASES["newest"]
NEWEST: Version = parse_version(NEWEST_RELEASE["vllm"]) or _READ[-1]

_NAMED = 4  # Flags that a hint lists

_RUNNER = "use --runner and --convert"
_ROPE = "use --hf-overrides with rope_parameters"
_INSTEAD = {
    "swap-space": "leave it out: it had no effect since 0.8 (vllm#27984)",
    "max-seq-len-to-capture": "leave it out (vllm#25543)",
    "disable-log-requests": "leave it out: requests are not logged by default",
    "enable-reasoning": "leave it out: --reasoning-parser alone is enough",
    "worker-use-ray": "leave it out: clusterctl asks for Ray itself",
    "device": "leave it out: vLLM finds the device",
    "guided-decoding-backend": "use --structured-outputs-config",
    "task": _RUNNER,
    "rope-scaling": _ROPE,
    "rope-theta": _ROPE,
    "cuda-graph-sizes": "use --cudagraph-capture-sizes",
    "speculative-model": "use --speculative-config",
    "quantization bitsandbytes": "use a model quantised as AWQ, GPTQ or FP8, or an image of an "
    "older vLLM",
    "log-config-file": "use --logging-config.pylogging_config_file",
    "mamba-cache-mode": "leave it out: it follows --enable-prefix-caching",
    "disable-cascade-attn": "leave it out: it has no effect",
}


def is_vllm_flag(word: str) -> bool:
    """Return whether `word` of a command line is a flag that some release of vLLM has."""
    return parse_arguments((word,))[0].key in FLAGS


@cache
def flags_of(version: Version | None) -> frozenset[str]:
    """Return the flags of a release, without dashes; those of the newest if it is unknown."""
    asked = version or NEWEST
    return frozenset(name for name, history in FLAGS.items() if history.known_to(asked))


def completed(key: str, version: Version | None = None) -> str:
    """Return the flag that argparse takes `key` for: the only one that begins with it, else `key`
    itself."""
    begun = _begun(key, version)
    return begun[0] if len(begun) == 1 else key


def _begun(key: str, version: Version | None) -> list[str]:
    """Return the flags that begin like `key`; it alone if it is one."""
    known = flags_of(version)
    return [key] if key in known else sorted(name for name in known if name.startswith(key))


def refused_flags(arguments: Iterable[Argument], version: Version | None) -> list[UsageError]:
    """Return an error for each argument that this vLLM is known to refuse; none if its version is
    unknown. A flag that no release has is left to vLLM, since its image may be of a fork, unless it
    looks like a misspelling."""
    if version is None:
        return []
    errors = []
    for argument in arguments:
        flag, hint = _refusal(argument, version)
        begun = _begun(argument.key, version)
        if hint:
            text = f"{flag} ({argument.origin}) does not exist in vLLM {show_version(version)}"
            errors.append(UsageError(text, hint=hint))
        elif len(begun) > 1 and not argument.negated and version <= NEWEST:
            names = [f"--{name}" for name in begun[:_NAMED]]
            more = [f"{len(begun) - _NAMED} more"] if len(begun) > _NAMED else []
            text = f"{flag} ({argument.origin}) is the beginning of several flags of vLLM"
            errors.append(UsageError(text, hint=f"write one in full: {', '.join(names + more)}"))
    return errors


def _refusal(argument: Argument, version: Version) -> tuple[str, str]:
    """Return what this vLLM refuses in an argument, and what to do; an empty hint if nothing."""
    for value in argument.values:
        history = _VALUES.get(f"{argument.key} {value}")
        if history and not history.known_to(version):
            return f"{argument.flag} {value}", _INSTEAD[f"{argument.key} {value}"]

    name = completed(argument.key, version)
    history = FLAGS.get(name)
    if history is None:
        return argument.flag, _misspelt(name, version)
    if history.gone and version >= history.gone:
        return argument.flag, _INSTEAD.get(name, "leave it out")

    # A release between two of those that were read may have the flag already.
    since = history.since or _READ[0]
    lacking = max((read for read in _READ if read < since), default=None)
    if lacking and version <= lacking:
        newer = f"leave it out, or use an image of vLLM {show_version(since)} or newer"
        return argument.flag, newer
    return argument.flag, ""


def _misspelt(name: str, version: Version) -> str:
    """Suggest the nearest flag for one that no release has; "" if it may be from a newer release,
    or is an abbreviation."""
    if version > NEWEST or name.startswith("-") or any(each.startswith(name) for each in FLAGS):
        return ""
    near = get_close_matches(name, FLAGS, n=1, cutoff=0.85)
    return f"did you mean --{near[0]}?" if near else ""


def deprecated_flags(arguments: Iterable[Argument], version: Version | None) -> tuple[str, ...]:
    """Return a sentence for each flag, or value of one, that is deprecated in the newest known
    release."""
    going: dict[str, str] = NEWEST_RELEASE["deprecated"]
    notes = []
    for argument in arguments:
        name = completed(argument.key, version)
        text = " ".join(argument.values)
        for subject, removal in going.items():
            if subject == name or (subject not in FLAGS and subject in text):
                what = f"--{subject}" if subject == name else f"{argument.flag} {subject}"
                when = f"vLLM {removal} removes it" if removal else "a later vLLM removes it"
                instead = f"; {_INSTEAD[subject]}" if subject in _INSTEAD else ""
                notes.append(
                    f"{what} is deprecated in vLLM {show_version(NEWEST)}, {when}{instead}"
                )
    return tuple(notes)
