"""Arguments of `vllm serve` as data: read from a command line, laid over each other, written.

vLLM takes `--flag value`, `--flag=value`, underscores for dashes, `--no-flag`, dotted parts of
a JSON flag (`--hf-overrides.rope_theta 1e6`) and short flags (`-tp 2`). Without the list of its
flags (which differs between releases) one cannot say whether `--x y` is one flag with a value
or a switch and a stray word; vLLM has no stray words after the model, so the former holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clusterctl.errors import UsageError

# vllm/engine/arg_utils.py of 0.32. `-O3` stays as it is: its meaning changed in between.
SHORT_FLAGS = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-dpa": "data-parallel-address",
    "-dpb": "data-parallel-backend",
    "-dpe": "data-parallel-external-lb",
    "-dph": "data-parallel-hybrid-lb",
    "-dpl": "data-parallel-size-local",
    "-dpn": "data-parallel-rank",
    "-dpp": "data-parallel-rpc-port",
    "-dpr": "data-parallel-start-rank",
    "-dcp": "decode-context-parallel-size",
    "-pcp": "prefill-context-parallel-size",
    "-ep": "enable-expert-parallel",
    "-n": "nnodes",
    "-r": "node-rank",
    "-q": "quantization",
    "-ac": "attention-config",
    "-cc": "compilation-config",
    "-sc": "speculative-config",
}

# Switches that are on unless turned off (defaults of vLLM 0.32)
ON_BY_DEFAULT = frozenset(
    {
        "async-scheduling",
        "cohere-is-reasoning-model",
        "disable-cascade-attn",
        "enable-chunked-prefill",
        "enable-flash-late-interaction",
        "enable-log-deltas",
        "enable-prefix-caching",
        "mm-device-do-normalize",
        "scheduler-reserve-full-isl",
        "swa-bounded-replay",
        "use-tqdm-on-load",
    }
)

COMMAND_LINE = "command line"

_OPTION = re.compile(r"^--?[A-Za-z]")


@dataclass(frozen=True)
class Argument:
    """One flag with its values; none for a switch."""

    name: str  # Without leading dashes, dashes for underscores, `no-` taken off; dotted parts kept
    values: tuple[str, ...] = ()
    negated: bool = False
    # Who asked for it, for messages: `command line`, or `file:line:column`
    origin: str = "clusterctl"

    @property
    def key(self) -> str:
        """The flag that a dotted one is a part of; else its own name."""
        return self.name.partition(".")[0]

    @property
    def flag(self) -> str:
        if self.name.startswith("-"):
            return self.name
        return f"--no-{self.name}" if self.negated else f"--{self.name}"

    def tokens(self) -> tuple[str, ...]:
        """As vLLM reads it. A value that looks like a flag must be joined to it by `=`."""
        if len(self.values) == 1 and self.values[0].startswith("-"):
            return (f"{self.flag}={self.values[0]}",)
        return (self.flag, *self.values)

    def shown(self) -> str:
        """The value as shown to users: `on` and `off` for switches."""
        if self.values:
            return " ".join(self.values)
        return "off" if self.negated else "on"


def parse_arguments(tokens: Sequence[str], origin: str = COMMAND_LINE) -> tuple[Argument, ...]:
    """The flags in `tokens`, in their order.

    Raises UsageError for a word before the first flag: the model is clusterctl's own argument.
    """
    found: list[Argument] = []
    for token in tokens:
        if _OPTION.match(token):
            found.append(_open(token, origin))
        elif not found:
            raise UsageError(
                f"{token!r} after -- is not a vLLM flag",
                hint="clusterctl serve MODEL -- --flag value",
            )
        else:
            last = found.pop()
            found.append(Argument(last.name, (*last.values, token), last.negated, last.origin))
    return tuple(found)


def _open(token: str, origin: str) -> Argument:
    head, joined, value = token.partition("=")
    values = (value,) if joined else ()
    if not head.startswith("--"):
        return Argument(SHORT_FLAGS.get(head, head), values, origin=origin)
    name = normal_name(head[2:])
    if name.startswith("no-"):
        return Argument(name.removeprefix("no-"), values, negated=True, origin=origin)
    return Argument(name, values, origin=origin)


def normal_name(name: str) -> str:
    """Dashes for underscores, up to the first dot: behind it are keys of JSON."""
    key, dot, rest = name.partition(".")
    return key.replace("_", "-") + dot + rest


def is_collected(name: str) -> bool:
    """Whether a flag given several times counts each time: `--middleware` appends, and so does
    a dotted part that ends in `+` (vllm/utils/argparse_utils.py). Of all others the last counts."""
    return name == "middleware" or name.endswith("+")


def lay_over(*layers: Iterable[Argument]) -> tuple[Argument, ...]:
    """Merge layers, the weakest first: a later layer replaces all that earlier ones say about a
    flag, at the position where the flag first stood."""
    chosen: dict[str, tuple[Argument, ...]] = {}
    for layer in layers:
        of_layer: dict[str, tuple[Argument, ...]] = {}
        for argument in layer:
            of_layer[argument.key] = (*of_layer.get(argument.key, ()), argument)
        chosen.update(of_layer)
    return tuple(argument for group in chosen.values() for argument in group)


def drop_idle_negations(arguments: Iterable[Argument]) -> tuple[Argument, ...]:
    """Drop each `false` of a config file where off is the default anyway: some releases have no
    `--no-` form of such a switch (store_true in the frontend flags before 0.12). What the user
    typed as `--no-...` stays."""
    return tuple(
        argument
        for argument in arguments
        if not argument.negated or argument.key in ON_BY_DEFAULT or argument.origin == COMMAND_LINE
    )


def render(arguments: Iterable[Argument]) -> list[str]:
    """The command-line tokens of all arguments."""
    return [token for argument in arguments for token in argument.tokens()]


def last_value(arguments: Iterable[Argument], name: str) -> str | None:
    """The value that counts for `name`: the last one given, as argparse has it."""
    values = [a.values[-1] for a in arguments if a.name == name and a.values]
    return values[-1] if values else None


def without(arguments: Iterable[Argument], names: Iterable[str]) -> tuple[Argument, ...]:
    dropped = frozenset(names)
    return tuple(argument for argument in arguments if argument.key not in dropped)
