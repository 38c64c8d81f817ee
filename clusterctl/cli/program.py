"""Base classes of all commands and command groups, for uniform help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

Function = TypeVar("Function", bound=Callable[..., Any])


class Command(TyperCommand):
    """A command whose help shows arguments as HOST or [FILE] instead of their Python types."""

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


class Commands(typer.Typer):
    """A group of commands; without a subcommand it shows its help."""

    def __init__(self, help: str, **settings: Any) -> None:  # noqa: A002 - typer's own word
        # Rich help would take longer than the rest of `--help` together.
        super().__init__(help=help, no_args_is_help=True, rich_markup_mode=None, **settings)

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **settings: Any
    ) -> Callable[[Function], Function]:
        """Register a command as typer does, with `Command` as its class."""
        return super().command(name, cls=cls or Command, **settings)
