"""Base classes of all commands and command groups, for uniform help."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

Function = TypeVar("Function", bound=Callable[..., Any])


class _AsTyped:
    """Parses words that need no conversion. Typer's own parser imports pydantic for every
    parameter, given or not, which took a quarter of `fit`."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return what typer's parser would for None, a default or strings; leave the rest to
        it."""
        kind = param.type_descriptor.annotation
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        if type(value) is kind:
            return value
        if kind == list[str] and several and all(isinstance(each, str) for each in value):
            return list(value)
        param._runtime_param = None  # noqa: SLF001 - typer makes its own
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _read_as_typed(params: Iterable[Any]) -> None:
    """Use that parser where typer has none yet. Versions of typer without parsers ignore it."""
    for param in params:
        if getattr(param, "_runtime_param", None) is None:
            param._runtime_param = _AsTyped()  # noqa: SLF001


class Command(TyperCommand):
    """A command whose help shows arguments as HOST or [FILE] instead of their Python types."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words."""
        _read_as_typed(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words after the command's name in its usage line."""
        names = {_name(each): each.required for each in self._arguments(ctx)}
        words = [name if required else f"[{name}]" for name, required in names.items()]
        return ["[OPTIONS]", *words]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options."""
        arguments = [(_name(each), each.help or "") for each in self._arguments(ctx)]
        others = [each for each in self.get_params(ctx) if each.param_type_name == "option"]
        options = [row for each in others if (row := each.get_help_record(ctx))]
        for title, rows in (("Arguments", arguments), ("Options", options)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _arguments(self, ctx: Any) -> list[Any]:
        return [each for each in self.get_params(ctx) if each.param_type_name == "argument"]


def _name(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return f"{name}..." if argument.nargs != 1 else name


class VllmCommand(Command):
    """A command that accepts vLLM's flags in `arguments`: known ones anywhere, others after --."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse our own words as click does, and append vLLM's to `arguments`."""
        at = args.index("--") if "--" in args else len(args)
        ours, flags = self._apart(ctx, args[:at])
        left = super().parse_args(ctx, ours)
        ctx.params["arguments"] = [*(ctx.params.get("arguments") or ()), *flags, *args[at + 1 :]]
        return left

    def _apart(self, ctx: Any, args: list[str]) -> tuple[list[str], list[str]]:
        """Split the words into clusterctl's and vLLM's; values stay with their flags. A name that
        both have is clusterctl's."""
        params: list[Any] = self.get_params(ctx)
        takes_value = {
            name: not each.is_flag
            for each in params
            if each.param_type_name == "option"
            for name in (*each.opts, *each.secondary_opts)
        }
        ours: list[str] = []
        flags: list[str] = []
        current, words = ours, iter(args)
        for word in words:
            name, joined, _ = word.partition("=")
            if not re.match("--?[A-Za-z]", word):
                current.append(word)
            elif name in takes_value or (word[:2] != "--" and word[:2] in takes_value):
                current = ours
                ours += [word, *islice(words, 1 if takes_value.get(name) and not joined else 0)]
            else:
                from clusterctl.serving.release_flags import FLAGS, is_vllm_flag

                if is_vllm_flag(word):
                    current = flags
                    flags.append(word)
                elif not ctx.resilient_parsing:
                    known = (*takes_value, *(f"--{flag}" for flag in FLAGS))
                    # --gpu-mem-util is nearest to a name that begins as it does, word by word
                    near = [each for each in known if _abbreviates(name, each)] or (
                        get_close_matches(name, known, n=1, cutoff=0.75)
                    )
                    said = f"; did you mean {near[0]}?" if near else ""
                    ctx.fail(
                        f"No such option: {name}{said}\n"
                        "A flag of vLLM that clusterctl does not know goes after --."
                    )
        return ours, flags


def _abbreviates(name: str, flag: str) -> bool:
    """Return whether the words of `name` begin those of `flag`, as --gpu-mem-util does for
    --gpu-memory-utilization."""
    words, whole = name.strip("-").split("-"), flag.strip("-").split("-")
    return len(words) == len(whole) and all(map(str.startswith, whole, words))


class CommandsByPurpose(TyperGroup):
    """A group whose help lists its commands under headings, in the order of registration."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words before the command's name."""
        _read_as_typed(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section per `rich_help_panel`; commands without one are under Commands."""
        shown = {name: self.commands[name] for name in self.list_commands(ctx)}
        panels = {name: getattr(each, "rich_help_panel", None) for name, each in shown.items()}
        width = max(map(len, shown))
        limit = formatter.width - width - 4
        for title in dict.fromkeys(panels.values()):
            with formatter.section(title if isinstance(title, str) else "Commands"):
                formatter.write_dl(
                    [
                        (name.ljust(width), each.get_short_help_str(limit))
                        for name, each in shown.items()
                        if panels[name] == title
                    ]
                )


class Commands(typer.Typer):
    """A group of commands; without a subcommand it shows its help."""

    def __init__(self, help: str, **settings: Any) -> None:  # noqa: A002 - typer's own word
        # Rich help would take longer than the rest of `--help` together.
        super().__init__(
            help=help,
            cls=CommandsByPurpose,
            no_args_is_help=True,
            rich_markup_mode=None,
            **settings,
        )

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **settings: Any
    ) -> Callable[[Function], Function]:
        """Register a command as typer does, with `Command` as its class."""
        return super().command(name, cls=cls or Command, **settings)

    def leave_out_others(self, words: Sequence[str]) -> None:
        """Keep only the command that the first word names, if it does. Typer makes the parameters
        of all commands, which took a fifth of `fit`."""
        commands = [each for each in self.registered_commands if each.name in words[:1]]
        groups = [each for each in self.registered_groups if each.name in words[:1]]
        if commands or groups:
            self.registered_commands, self.registered_groups = commands, groups
