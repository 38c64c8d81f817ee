"""Questions and Ctrl-C on a terminal, which is a pseudo-terminal here."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import termios
from codecs import getincrementaldecoder
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

CONFIRM = """
import sys
from clusterctl.cli.session import confirm
from clusterctl.reporting.console import Progress
print("answer", confirm("Go on?", yes=False, progress=Progress(sys.stderr, quiet=True)))
"""
PASSWORD = """
from clusterctl.cli.session import credentials
print("answer", credentials().password("ann", "gpu1"))
"""
INTERRUPTED = """
import fcntl, sys, termios
import typer
from clusterctl.cli.guard import guarded
from clusterctl.cli.session import credentials
from clusterctl.engine.interrupt import interruptible
from clusterctl.transport.fanout import fan_out, failures
from clusterctl.errors import raise_all

@guarded
def command():
    secrets = credentials()
    def log_in(host):
        return secrets.password("ann", host)
    hosts = {"gpu1": "gpu1", "gpu2": "gpu2"}
    if sys.argv[1] == "looking":
        fan_out(hosts, log_in)
    with interruptible(lambda event: None):
        raise_all(failures(fan_out(hosts, log_in)))

fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # what is typed now gives signals
try:
    command()
except typer.Exit as ended:
    sys.exit(ended.exit_code)
"""
DECIDE = """
import sys
from clusterctl.cli.discovery import decide
from clusterctl.network.fabric_choice import Option, Undecided
from clusterctl.reporting.console import Progress
options = (Option("10.0.0.0/24: gpu1 ens5", "10.0.0.0/24", {"gpu1": "ens5"}),
           Option("10.1.0.0/24: gpu1 ens6", "10.1.0.0/24", {"gpu1": "ens6"}))
question = Undecided("2 subnets are equally good", options)
answer = decide(question, Progress(sys.stderr, quiet=True))
print("answer", answer and answer.subnet)
"""
PLAN = """
import sys
from clusterctl.cli.session import agreement
from clusterctl.engine.plan import Plan, PlannedChange
from clusterctl.engine.step import Change
from clusterctl.reporting.console import Progress
made = Change("make /etc/clusterctl, /etc/clusterctl/demo, /var/log/clusterctl")
progress = Progress(sys.stderr, quiet=True)
plan = Plan((PlannedChange("Node files", "gpu1", "directories", made),))
agreement(progress, yes=True, as_json=False)(plan)
"""
FINISHED = """
import sys
from clusterctl.engine.events import StepFinished, StepStarted
from clusterctl.engine.step import Change
from clusterctl.reporting.console import Progress
with Progress(sys.stderr) as progress:
    made = Change("make /etc/clusterctl/demo/services, /var/log/clusterctl/demos")
    progress(StepStarted("gpu1", "directories", made))
    progress(StepFinished("gpu1", "directories", "changed", 125.0))
"""
RESULT = """
import sys
from clusterctl.reporting.console import Progress
with Progress(sys.stderr):
    print("the result")
"""
LEAVE = """
import os, sys, termios
from clusterctl.engine import interrupt
interrupt.keep_terminal()
quiet = termios.tcgetattr(0)
quiet[3] &= ~termios.ECHO
termios.tcsetattr(0, termios.TCSANOW, quiet)
interrupt._leave() if sys.argv[1:] == ["at once"] else None
"""


@dataclass
class Terminal:
    """`ours` is what a person sees and types on, `theirs` what the program has."""

    ours: int
    theirs: int

    def start(self, program: str, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", program, *words],
            stdin=self.theirs,
            stdout=subprocess.PIPE,
            stderr=self.theirs,
            text=True,
            start_new_session=True,  # no controlling terminal: asked for on stdin and stderr
            cwd=Path(__file__).parents[3],
        )

    def read_until(self, text: str) -> str:
        seen, decoder = "", getincrementaldecoder("utf-8")()  # a character may come in two parts
        while text not in seen:
            assert select.select([self.ours], [], [], 60)[0], f"{text!r} did not come: {seen!r}"
            seen += decoder.decode(os.read(self.ours, 4096))
        return seen

    @property
    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self.theirs)[3] & termios.ECHO)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    ours, theirs = os.openpty()
    yield Terminal(ours, theirs)
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(("typed", "answer"), [(b"y\n", True), (b"\n", False), (b"\x04", False)])
def test_questions_are_on_stderr_and_the_end_of_input_is_no(
    terminal: Terminal, typed: bytes, answer: bool
) -> None:
    with terminal.start(CONFIRM) as process:
        terminal.read_until("Go on? [y/N] ")
        os.write(terminal.ours, typed)
        assert process.communicate(timeout=60)[0] == f"answer {answer}\n"


@pytest.mark.filterwarnings("default")
def test_the_end_of_input_is_no_password(terminal: Terminal) -> None:
    with terminal.start(PASSWORD) as process:
        terminal.read_until("SSH password of ann")
        os.write(terminal.ours, b"\x04")
        assert process.communicate(timeout=60)[0] == "answer None\n"


def test_a_password_is_what_is_typed_and_is_not_shown(terminal: Terminal) -> None:
    with terminal.start(PASSWORD) as process:
        terminal.read_until("SSH password of ann")
        assert not terminal.echoes
        os.write(terminal.ours, "pass wörd\n".encode())
        assert process.communicate(timeout=60)[0] == "answer pass wörd\n"
    assert terminal.echoes


@pytest.mark.parametrize("phase", ["looking", "changing"])
def test_one_ctrl_c_ends_a_question_that_is_open_in_another_thread(
    terminal: Terminal, phase: str
) -> None:
    with terminal.start(INTERRUPTED, phase) as process:
        terminal.read_until("SSH password of ann")
        os.write(terminal.ours, b"\x03")
        assert process.wait(60) == 130
    assert terminal.echoes
    seen = terminal.read_until("interrupted")
    assert "SSH password" not in seen  # nor is the other host's asked for


@pytest.mark.parametrize(("words", "status"), [(["at once"], 130), ([], 0)])
def test_the_terminal_is_left_as_it_was(terminal: Terminal, words: list[str], status: int) -> None:
    with terminal.start(LEAVE, *words) as process:
        assert process.wait(60) == status
    assert terminal.echoes
    if words:
        terminal.read_until("\x1b[?25h")


@pytest.mark.parametrize(("typed", "answer"), [(b"7\nx\n2\n", "10.1.0.0/24"), (b"\x04", "None")])
def test_a_tie_is_asked_until_one_of_the_numbers_comes(
    terminal: Terminal, typed: bytes, answer: str
) -> None:
    with terminal.start(DECIDE) as process:
        seen = terminal.read_until("Which one? [1-2] ")
        os.write(terminal.ours, typed)
        assert process.communicate(timeout=60)[0] == f"answer {answer}\n"
    assert "2 subnets are equally good" in seen
    assert "  2  10.1.0.0/24: gpu1 ens6" in seen


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (50, "make /etc/clusterctl,\r\n             /etc/clusterctl/demo,\r\n"),
        (0, "make /etc/clusterctl, /etc/clusterctl/demo, "),
    ],
)
def test_a_plan_keeps_its_columns_on_a_narrow_terminal(
    terminal: Terminal, width: int, shown: str
) -> None:
    termios.tcsetwinsize(terminal.theirs, (24, width))
    with terminal.start(PLAN):
        assert shown in terminal.read_until("/var/log/clusterctl")


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (45, "services,\r\n          /var/log/clusterctl/demos\r\n          2 min 5 s\r\n"),
        (0, "make /etc/clusterctl/demo/services, /var/log/clusterctl/demos  2 min 5 s\r\n"),
    ],
)
def test_a_finished_step_goes_on_below_itself(terminal: Terminal, width: int, shown: str) -> None:
    termios.tcsetwinsize(terminal.theirs, (24, width))
    with terminal.start(FINISHED):
        assert shown in terminal.read_until("2 min 5 s\r\n")


def test_a_result_during_a_run_goes_where_stdout_leads(terminal: Terminal) -> None:
    with terminal.start(RESULT) as process:
        assert process.communicate(timeout=60)[0] == "the result\n"
