"""Make the README's pictures from a cluster that serves, such as the lab's:

    sudo .venv/bin/python -m scripts.pictures inventory/lab.yaml

draws what commands show on a terminal (docs/pictures/*.svg) and the page of `report`
(docs/pictures/report.png). Needs tmux and Chromium. `bootstrap` and `serve` are run again, which
changes nothing on a cluster that is up; the load is 24 requests of the first service.
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
WIDTH, HEIGHT = 110, 34
TMUX = ("tmux", "-L", "clusterctl-pictures")
PROGRAM = Path(sys.executable).parent / "clusterctl"


@contextmanager
def terminal(command: str) -> Iterator[None]:
    """Run a shell command in a terminal of its own, which stays until the end of the block."""
    size = ("-x", str(WIDTH), "-y", str(HEIGHT))
    ended = f"{command}; tmux -L clusterctl-pictures wait-for -S ended; sleep 600"
    subprocess.run([*TMUX, "-f", "/dev/null", "new-session", "-d", *size, ended], check=True)
    try:
        yield
    finally:
        subprocess.run([*TMUX, "kill-server"], check=True)


def picture(name: str, *words: str, inventory: Path, seconds: float | None = None) -> None:
    """Draw what `clusterctl WORDS` shows: when it has ended, or after `seconds`."""
    command = f"CLUSTERCTL_INVENTORY={shlex.quote(str(inventory))} {PROGRAM} {shlex.join(words)}"
    with terminal(command):
        try:
            subprocess.run([*TMUX, "wait-for", "ended"], timeout=seconds or 900, check=True)
        except subprocess.TimeoutExpired:
            if seconds is None:
                raise
        shown = subprocess.run(
            [*TMUX, "capture-pane", "-e", "-p"], capture_output=True, text=True, check=True
        ).stdout
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text("$ clusterctl " + " ".join(words), style="bold"))
    console.print(Text.from_ansi(shown.rstrip()))
    drawing = console.export_svg(title="clusterctl")
    # rich names a font on a server; a picture loads nothing.
    drawing = re.sub(r"@font-face \{.*?\}\s*", "", drawing, flags=re.DOTALL)
    (PICTURES / f"{name}.svg").write_text(drawing)


def page(inventory: Path) -> None:
    """Draw the page of `report` as Chromium shows it."""
    with TemporaryDirectory() as directory:
        file = Path(directory) / "report.html"
        subprocess.run([PROGRAM, "report", "-i", inventory, "-o", file], check=True)
        subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--user-data-dir={directory}/data", "--virtual-time-budget=20000",
             "--window-size=1000,1500", f"--screenshot={PICTURES / 'report.png'}", file.as_uri()],
            check=True, timeout=300,
        )  # fmt: skip


def main() -> None:
    inventory = Path(sys.argv[1]).absolute()
    wanted = sys.argv[2:] or ["bootstrap", "status", "watch", "report"]
    PICTURES.mkdir(exist_ok=True)
    if "bootstrap" in wanted:
        picture("bootstrap", "bootstrap", sys.argv[1], inventory=inventory)
    if "status" in wanted:
        picture("status", "status", "--wide", inventory=inventory)
    if "watch" in wanted:
        load = subprocess.Popen(
            [PROGRAM, "bench", "-i", inventory, "--rate", "1", "--requests", "24"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            picture("watch", "status", "--watch", inventory=inventory, seconds=75)
        finally:
            load.terminate()
            load.wait()
    if "report" in wanted:
        page(inventory)


if __name__ == "__main__":
    main()
