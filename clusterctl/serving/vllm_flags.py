"""Arguments of `vllm serve` as data: parsed from a command line, merged, and rendered.

vLLM takes `--flag value`, `--flag=value`, underscores for dashes, `--no-flag`, dotted parts of a
JSON flag (`--hf-overrides.rope_theta 1e6`) and short flags (`-tp 2`). Without the list of its flags
(which differs between releases) `--x y` may be one flag with a value, or a switch and a positional
argument; vLLM has no positional arguments after the model, so it is the former.
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

# Switches whose default is on (vLLM 0.32)
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
CATALOGUE = "catalogue"  # Origin of flags that a model of the catalogue needs
DEFAULT = "clusterctl"  # Origin of flags that nobody gave

EXPERT_PARALLEL = "enable-expert-parallel"  # Split experts by number over all TP x DP ranks

TRUST = "trust-remote-code"  # Run the Python code that comes with a model

_OPTION = re.compile(r"^--?[A-Za-z]")


@dataclass(frozen=True)
class Argument:
    """One flag with its values; a switch has none."""

    name: str  # No leading dashes or `no-`, dashes for underscores; dotted parts kept
    values: tuple[str, ...] = ()
    negated: bool = False
    # Source, for messages: `command line`, or `file:line:column`
    origin: str = DEFAULT

    @property
    def key(self) -> str:
        """The name up to the first dot: for a dotted part, the flag that it belongs to."""
        return self.name.partition(".")[0]

    @property
    def flag(self) -> str:
        if self.name.startswith("-"):
            return self.name
        return f"--no-{self.name}" if self.negated else f"--{self.name}"

    def tokens(self) -> tuple[str, ...]:
        """Return the tokens. A value that looks like a flag must be joined to its flag by `=`."""
        if len(self.values) == 1 and self.values[0].startswith("-"):
            return (f"{self.flag}={self.values[0]}",)
        return (self.flag, *self.values)

    def shown(self) -> str:
        """Return the value as shown to users: `on` and `off` for switches."""
        if self.values:
            return " ".join(self.values)
        return "off" if self.negated else "on"


def parse_arguments(tokens: Sequence[str], origin: str = COMMAND_LINE) -> tuple[Argument, ...]:
    """Parse the flags in `tokens`, in their order.

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
    """Replace underscores by dashes up to the first dot; after the dot are keys of JSON."""
    key, dot, rest = name.partition(".")
    return key.replace("_", "-") + dot + rest


def is_collected(name: str) -> bool:
    """Return whether a flag accumulates: `--middleware` does, and a dotted part that ends in `+`
    (vllm/utils/argparse_utils.py). Of all other flags the last one counts."""
    return name == "middleware" or name.endswith("+")


def lay_over(*layers: Iterable[Argument]) -> tuple[Argument, ...]:
    """Merge layers, the weakest first: a later layer replaces all arguments of a flag in earlier
    ones, at the position of the flag's first occurrence."""
    chosen: dict[str, tuple[Argument, ...]] = {}
    for layer in layers:
        of_layer: dict[str, tuple[Argument, ...]] = {}
        for argument in layer:
            of_layer[argument.key] = (*of_layer.get(argument.key, ()), argument)
        chosen.update(of_layer)
    return tuple(argument for group in chosen.values() for argument in group)


def drop_idle_negations(arguments: Iterable[Argument]) -> tuple[Argument, ...]:
    """Drop each `false` of a config file for a switch that is off by default: some releases have no
    `--no-` form of such a switch (store_true in the frontend flags before 0.12). A `--no-...` on
    the command line is kept."""
    return tuple(
        argument
        for argument in arguments
        if not argument.negated or argument.key in ON_BY_DEFAULT or argument.origin == COMMAND_LINE
    )


def render(arguments: Iterable[Argument]) -> list[str]:
    """Return the command-line tokens of all arguments."""
    return [token for argument in arguments for token in argument.tokens()]


def last_value(arguments: Iterable[Argument], name: str) -> str | None:
    """Return the effective value of `name`: the last one given, as in argparse."""
    values = [a.values[-1] for a in arguments if a.name == name and a.values]
    return values[-1] if values else None


def without(arguments: Iterable[Argument], names: Iterable[str]) -> tuple[Argument, ...]:
    dropped = frozenset(names)
    return tuple(argument for argument in arguments if argument.key not in dropped)
