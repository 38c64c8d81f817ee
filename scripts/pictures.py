"""Make the README's pictures in a lab whose hosts are bare:

    sudo .venv/bin/clusterctl lab up --hosts 2
    sudo .venv/bin/python -m scripts.pictures

runs the commands and draws what they show on a terminal (docs/pictures/*.svg), then the page of
`report` (docs/pictures/report.png). Names of commands redraw these pictures alone: the README's
`watch` and `report` are of a cluster with two replicas. Needs tmux and Chromium.
"""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.text import Text

PICTURES = Path(__file__).parents[1] / "docs/pictures"
PROGRAM = Path(sys.executable).parent / "clusterctl"
WIDTH, HEIGHT = 110, 50
LOAD = ("bench", "tiny", "--rate", "2", "--requests", "120")
LOADED_FOR = 45  # seconds after which the live screen is drawn
COMMANDS = {
    "bootstrap": "bootstrap inventory/lab.yaml",
    "serve": "serve /data/models/tiny --tp 2",
    "status": "status",
    "watch": "status --watch",
}


def main() -> None:
    wanted = sys.argv[1:] or [*COMMANDS, "report"]
    for name, words in COMMANDS.items():
        if name not in wanted:
            continue
        if name == "watch":
            with load():
                draw(name, words, seconds=LOADED_FOR)
        else:
            draw(name, words)
    if "report" in wanted:
        draw_page()


def draw(name: str, words: str, seconds: float | None = None) -> None:
    """Draw what `clusterctl WORDS` shows when it has ended, or after `seconds`."""
    tmux = ("tmux", "-L", f"clusterctl-{name}")
    with terminal(f"{shlex.quote(str(PROGRAM))} {words}", tmux):
        try:
            subprocess.run([*tmux, "wait-for", "ended"], timeout=seconds or 1200, check=True)
        except subprocess.TimeoutExpired:
            if seconds is None:
                raise
        capture = [*tmux, "capture-pane", "-e", "-p"]
        shown = subprocess.run(capture, capture_output=True, text=True, check=True).stdout
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text(f"$ clusterctl {words}", style="bold"))
    console.print(Text.from_ansi(shown.rstrip()))
    drawing = console.export_svg(title="clusterctl")
    # rich names a font on a server; a picture loads nothing.
    drawing = re.sub(r"@font-face \{.*?\}\s*", "", drawing, flags=re.DOTALL)
    (PICTURES / f"{name}.svg").write_text(drawing)


@contextmanager
def terminal(command: str, tmux: tuple[str, ...]) -> Iterator[None]:
    """Run a shell command in a terminal of its own, which stays until the end of the block."""
    size = ("-x", str(WIDTH), "-y", str(HEIGHT))
    ended = f"COLORTERM=truecolor {command}; {shlex.join(tmux)} wait-for -S ended; sleep 600"
    subprocess.run([*tmux, "-f", "/dev/null", "new-session", "-d", *size, ended], check=True)
    try:
        yield
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)


@contextmanager
def load() -> Iterator[None]:
    """Ask the service until the end of the block."""
    asking = subprocess.Popen([PROGRAM, *LOAD], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        asking.terminate()
        asking.wait()


def draw_page() -> None:
    """Draw the page of `report` as Chromium shows it."""
    with TemporaryDirectory() as directory:
        file = Path(directory) / "report.html"
        subprocess.run([PROGRAM, "report", "-o", file], check=True)
        subprocess.run(
            [
                *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *("--virtual-time-budget=20000", "--window-size=1000,1310"),
                f"--user-data-dir={directory}/data",
                f"--screenshot={PICTURES / 'report.png'}",
                file.as_uri(),
            ],
            check=True,
            timeout=300,
        )


if __name__ == "__main__":
    main()
