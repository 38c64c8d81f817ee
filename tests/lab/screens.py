"""What commands print on a terminal of 80 columns, and what no screen may have."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

from tests.lab.cluster import Operator
from tests.lab.walk import TERMINAL

COLUMNS = 80
PAGE = Path(__file__).parents[2] / "docs/commands.md"

# Not of ours, or a bug's.
NEVER = re.compile(r"Traceback|object at 0x|\bNone\b|\bdict\(|dataclass|this is a bug")
# A line to copy, an address or a path stays whole; what other programs print stays theirs.
WHOLE = re.compile(
    r"^  fix: |^    |https?://|curl |client = |clusterctl \w+ --|vllm serve |[\w.=,/@+-]{60}"
    r"|^(\d\d-\d\d \d\d:\d\d:\d\d  )?gpu\d  "
)


def commands_of_page() -> set[str]:
    """The commands in the table of docs/commands.md, such as `serve` and `image ls`."""
    cells = (
        line.split(" | ")[0] for line in PAGE.read_text().splitlines() if line.startswith("| `")
    )
    groups = ("image", "model", "key", "packages", "lab")
    found = set()
    for cell in cells:
        for words in (text.split() for text in re.findall(r"`([^`]+)`", cell)):
            found.add(" ".join(words[:2] if words[0] in groups else words[:1]))
    return found


def on_a_terminal(
    operator: Operator, words: tuple[str, ...], limit: float = 240
) -> tuple[int, str]:
    """Run clusterctl on a terminal of COLUMNS; its status and what was printed, without colours.
    Where it would go on until Ctrl-C, it gets that once it printed something."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, COLUMNS))
    process = subprocess.Popen(
        [sys.executable, "-m", "clusterctl", *words],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**operator.environment, "TERM": "xterm"},
    )
    os.close(theirs)
    started, output, interrupted = time.monotonic(), b"", False
    while time.monotonic() - started < limit:
        ready, _, _ = select.select([ours], [], [], 1.0)
        if not ready:
            continue
        try:
            data = os.read(ours, 65536)
        except OSError:  # The other end is closed
            break
        output += data
        if b"open until Ctrl-C" in output and not interrupted:
            process.send_signal(signal.SIGINT)
            interrupted = True
    os.close(ours)
    if process.poll() is None and time.monotonic() - started >= limit:
        process.kill()
    status = process.wait()
    return status, TERMINAL.sub("", output.decode(errors="replace")).replace("\r", "\n")


def spoilt(text: str) -> list[str]:
    """The lines of a screen that should not be there."""
    return [
        line
        for line in text.splitlines()
        if NEVER.search(line) or (len(line.rstrip()) > COLUMNS and not WHOLE.search(line))
    ]
