"""Write the manual page, from the help: python -m scripts.man_page > docs/clusterctl.1"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import typer
import typer.main

from clusterctl.cli.app import app

ENVIRONMENT = {
    "CLUSTERCTL_INVENTORY": "The inventory, for commands without -i.",
    "CLUSTERCTL_SSH_PASSWORD": "Password for SSH, where no key is accepted.",
    "CLUSTERCTL_SSH_PASSPHRASE": "Passphrase of an SSH key.",
    "CLUSTERCTL_SUDO_PASSWORD": "Password for sudo on the hosts.",
    "SSH_AUTH_SOCK": "The SSH agent, whose keys are tried.",
    "XDG_CACHE_HOME": "Where layers of images are kept, below clusterctl/; default: ~/.cache.",
    "XDG_STATE_HOME": "Where logs of runs are, below clusterctl/; default: ~/.local/state.",
}
FILES = {
    "~/.ssh/config, ~/.ssh/known_hosts": "As for OpenSSH.",
    "~/.local/state/clusterctl/": "Logs of runs, and which inventory is the current one.",
}


def page() -> str:
    """Return the page in man's own macros."""
    root: Any = typer.main.get_command(app)
    lines = [".TH CLUSTERCTL 1", ".SH NAME", f"clusterctl \\- {_text(root.help)}", ".SH SYNOPSIS"]
    lines += [".B clusterctl", "[OPTIONS] COMMAND [ARGS]...", ".SH OPTIONS", *_options(root)]
    lines.append(".SH COMMANDS")
    for words, command in _commands(root):
        context = typer.Context(command, info_name=words)
        usage = " ".join(command.collect_usage_pieces(context))
        lines += [f".SS {_text(f'clusterctl {words} {usage}')}", _text(command.help)]
        lines += _options(command)
    for title, rows in (("ENVIRONMENT", ENVIRONMENT), ("FILES", FILES)):
        lines += [f".SH {title}"]
        lines += [line for name, text in rows.items() for line in _row(name, text)]
    return "\n".join(lines) + "\n"


def _commands(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Yield the words and the command of all commands, without the groups that hold them."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, *path, name)
        else:
            yield " ".join((*path, name)), command


def _options(command: Any) -> Iterator[str]:
    """Yield a row for each argument and option that its help shows."""
    context = typer.Context(command)
    for each in command.params:
        if each.param_type_name == "argument":
            yield from _row(each.metavar or each.name.upper(), each.help or "")
        elif record := each.get_help_record(context):
            yield from _row(*record)


def _row(name: str, text: str) -> list[str]:
    return [".TP", f".B {_text(name)}", _text(text)]


def _text(text: str) -> str:
    """Return text for roff on one line: nothing in it is a request, and hyphens can be copied."""
    line = re.sub(r"\s+", " ", text).strip().replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line


if __name__ == "__main__":
    sys.stdout.write(page())
