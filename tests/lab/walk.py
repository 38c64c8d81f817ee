"""A page of docs as someone walks it: its blocks of code, run in order where they say.

A block that is run begins with "```sh PLACE", as Markdown allows and no reader sees; "status=N" is
the exit status that the page speaks of, and "background" goes on while the next ones run. A block
that begins with "```text" is what the block before it prints: each of its lines has to be there,
with anything in place of "...".
"""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

BLOCK = re.compile(r"^```(sh|text)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TERMINAL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]")
KEPT = ".terminal"  # in the home directory: what a terminal keeps from one block to the next
LIMIT = 900.0  # seconds for one block


@dataclass(frozen=True)
class Block:
    """`place` and `words` stand behind "```sh"; `prints` are the lines that it has to print."""

    place: str
    words: tuple[str, ...]
    text: str
    prints: tuple[str, ...]

    @property
    def status(self) -> int:
        return next((int(word[7:]) for word in self.words if word.startswith("status=")), 0)


def blocks(page: Path) -> list[Block]:
    """The blocks of a page that are run."""
    found: list[Block] = []
    for language, words, text in BLOCK.findall(page.read_text()):
        if language == "text":
            last = found.pop()
            printed = (*last.prints, *filter(None, map(str.strip, text.splitlines())))
            found.append(Block(last.place, last.words, last.text, printed))
        elif words:
            place, *others = words.split()
            found.append(Block(place, tuple(others), text, ()))
    return found


def missing(printed: Sequence[str], output: str) -> list[str]:
    """The lines of a page that are not in the output, whatever the blanks."""
    squeezed = "\n".join(" ".join(line.split()) for line in output.splitlines())
    return [
        line
        for line in printed
        if not re.search(
            ".*".join(re.escape(" ".join(part.split())) for part in line.split("...")), squeezed
        )
    ]


@dataclass(frozen=True)
class Terminal:
    """A shell of someone, whose environment and directory last from one block to the next. `login`
    is the command that takes another one as its last argument. With `answers` it is a real
    terminal: what is typed when a text appears, once for each time."""

    login: tuple[str, ...]
    answers: Mapping[str, str] = field(default_factory=dict)

    def run(self, block: Block) -> str:
        """Run the block to its end; its output."""
        with self.start(block) as process:
            assert process.stdout is not None
            overdue = threading.Timer(LIMIT, process.kill)
            overdue.start()
            output, answered = b"", 0
            while data := process.stdout.read1(65536):  # type: ignore[attr-defined]
                output += data
                for asked, answer in self.answers.items():
                    found = output.find(asked.encode(), answered)
                    if found >= 0 and process.stdin:
                        answered = len(output)
                        process.stdin.write(f"{answer}\n".encode())
                        process.stdin.flush()
            overdue.cancel()
            status = process.wait()
        text = TERMINAL.sub("", output.decode(errors="replace")).replace("\r", "")
        assert status == block.status, f"{block.text}\nexit {status}:\n{text}"
        lacking = missing(block.prints, text)
        assert lacking == [], f"{block.text}\nlacks {lacking}:\n{text}"
        return text

    def start(self, block: Block) -> subprocess.Popen[bytes]:
        """Start the block; its output is a pipe."""
        script = (
            f"test ! -f ~/{KEPT} || . ~/{KEPT}\nset -e -o pipefail\n{block.text}\n"
            f"{{ export -p; printf 'cd %q\\n' \"$PWD\"; }} >~/{KEPT}\n"
        )
        return subprocess.Popen(
            (*self.login, script),
            stdin=subprocess.PIPE if self.answers else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
