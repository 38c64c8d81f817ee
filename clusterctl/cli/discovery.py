"""The questions that `init` asks the user, and the output of its inventory."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile

from clusterctl.cli.session import confirm, credentials, logged
from clusterctl.commands.init import run
from clusterctl.engine.events import Note
from clusterctl.errors import UsageError
from clusterctl.inventory.load import load
from clusterctl.network.fabric_choice import Option, Undecided
from clusterctl.reporting.console import Progress
from clusterctl.reporting.text import columns, count, each_below_itself, line_width
from clusterctl.survey.inventory_text import Found, InitOptions, inventory_text, named_hosts
from clusterctl.transport.known_hosts import OfferedKey

STDOUT = Path("-")


def insist_on_room(output: Path, *, force: bool) -> None:
    """Raise UsageError for a file that may not or cannot be written, before contacting any host."""
    if output == STDOUT:
        return
    if output.is_dir() or not output.absolute().parent.is_dir():
        what = "is a directory" if output.is_dir() else "is in a directory that does not exist"
        raise UsageError(f"{output} {what}", hint="name a file: -o inventory.yaml; or print: -o -")
    if output.exists() and not force:
        raise UsageError(
            f"{output} already exists and may contain your changes",
            hint="--force overwrites it; -o names a different file, and -o - prints",
        )
    try:
        NamedTemporaryFile(dir=output.absolute().parent, prefix=".init-").close()
    except OSError as error:
        raise UsageError(
            f"{output} cannot be written: {error.strerror}",
            hint="-o names another file, and -o - prints",
        ) from error


def look(words: list[str], options: InitOptions, *, accept_new: bool) -> Found:
    """Probe the hosts, and ask the user about anything left open."""
    ssh = options.ssh.model_copy(update={"accept_new": True}) if accept_new else options.ssh
    hosts = named_hosts(words, ssh)
    with logged(options.cluster, "init"), Progress(sys.stderr) as progress:
        progress(Note(f"looking at {count(len(hosts), 'host')}"))
        return run(
            options,
            hosts,
            credentials(progress),
            accept_keys=lambda keys: _accepted(keys, progress),
            decide=lambda question: decide(question, progress),
        )


def _accepted(keys: Mapping[str, OfferedKey], progress: Progress) -> bool:
    if not sys.stdin.isatty():
        return False
    with progress.paused():
        print("These hosts are not in known_hosts yet. Their keys:", file=sys.stderr)
        rows = [(host, str(key)) for host, key in keys.items()]
        print("\n".join(columns(rows)), file=sys.stderr)
        print(
            "To compare, run on the host: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
            file=sys.stderr,
        )
    files = ", ".join(dict.fromkeys(str(key.file) for key in keys.values()))
    return confirm(f"Add them to {files}?", yes=False, progress=progress)


def decide(question: Undecided, progress: Progress) -> Option | None:
    """Return the option whose number was typed; None without a terminal, or at the end of input."""
    if not sys.stdin.isatty():
        return None
    with progress.paused():
        print(f"{question}:", file=sys.stderr)
        for number, option in enumerate(question.options, 1):
            print(f"  {number}  {option.text}", file=sys.stderr)
        while True:
            print(f"Which one? [1-{len(question.options)}] ", end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            if not line:
                return None
            if line.strip().isdecimal() and 1 <= int(line) <= len(question.options):
                return question.options[int(line) - 1]


def deliver(options: InitOptions, found: Found, output: Path) -> None:
    """Write or print the inventory; print to stderr what the user should check in it."""
    text = inventory_text(options, found)
    for line in each_below_itself("note: ", found.doubts, line_width(sys.stderr)):
        print(line, file=sys.stderr)
    if output == STDOUT:
        print(text, end="")
        return
    _write(output, text)
    gpus = sum(len(facts.gpus.gpus) for facts in found.facts.values())
    seen = f"{count(len(found.facts), 'host')}, {count(gpus, 'GPU')}"
    print(f"{output}: {seen}; next: clusterctl check {output}")


def _write(output: Path, text: str) -> None:
    """Write the file atomically. Text that `load` rejects is a bug, and is not written."""
    with NamedTemporaryFile(
        "w", dir=output.absolute().parent, prefix=".init-", suffix=".yaml", delete=False
    ) as file:
        file.write(text)
    draft = Path(file.name)
    try:
        load(draft)
        draft.chmod(0o644)
        draft.replace(output)
    finally:
        draft.unlink(missing_ok=True)
