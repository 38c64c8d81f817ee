"""Our Python on hosts: what is sent, the oldest Python that runs it, and hosts that have none."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import pytest

from clusterctl.errors import CommandFailed, CommandTimedOut, ConnectionFailed
from clusterctl.inventory.model import Host
from clusterctl.network import lookups
from clusterctl.network.pairs import probe
from clusterctl.transfer import engine_image, relay_supervisor
from clusterctl.transfer.weights import host_transport
from clusterctl.transport import python
from clusterctl.transport.base import CommandResult
from clusterctl.transport.local import LocalTransport
from clusterctl.transport.python import Program, PythonMissing
from tests.fakes.transport import FakeChannel, FakeTransport

PROGRAMS = (
    relay_supervisor.PROGRAM,
    relay_supervisor.HUB_PROGRAM,
    host_transport.PROGRAM,
    probe.PROGRAM,
)
ALL = (*PROGRAMS, lookups.PROGRAM, engine_image.SPLITTER, engine_image.READER)
SENT = [(program, name) for program in ALL for name in program.names]
ECHO = Program("tests.fakes.host_programs", ("words", "echo"))


def oldest_python() -> str:
    """The oldest good enough Python of this machine."""
    for minor in range(python.OLDEST[1], 30):
        for name in sorted(Path(sys.base_prefix).parent.glob(f"3.{minor}.*/bin/python3")):
            return str(name)
    return sys.executable


def here() -> LocalTransport:
    return LocalTransport(Host(name="gpu1", address="localhost"))


def tree_of(name: str) -> ast.Module:
    package, _, module = name.rpartition(".")
    source = resources.files(package).joinpath(f"{module}.py").read_text()
    return ast.parse(source, feature_version=python.OLDEST)


def imported(tree: ast.Module, package: str) -> set[str]:
    """Full names; of `from PACKAGE import x` that x."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            own = node.module == package
            found |= {f"{package}.{alias.name}" for alias in node.names} if own else set()
            found |= set() if own else {node.module or ""}
    return found


@pytest.mark.parametrize(("program", "name"), SENT)
def test_a_module_imports_the_standard_library_and_what_was_sent_before(
    program: Program, name: str
) -> None:
    allowed = program.names[: program.names.index(name)]
    for module in imported(tree_of(name), program.package):
        assert module in allowed or module.split(".")[0] in sys.stdlib_module_names


@pytest.mark.parametrize("name", sorted({name for _, name in SENT}))
def test_nothing_newer_than_the_oldest_python_is_called(name: str) -> None:
    """The syntax is checked by parsing; these are what one reaches for without thinking."""
    calls = [node for node in ast.walk(tree_of(name)) if isinstance(node, ast.Call)]
    assert not [call for call in calls if any(word.arg == "strict" for word in call.keywords)]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_oldest_python_takes_all_modules(program: Program) -> None:
    """Each ends by itself when its input does."""
    argv = [oldest_python(), *python.argv(("python3",))[1:]]
    done = subprocess.run(argv, input=program.sent(), capture_output=True, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("program", ALL)
def test_it_is_small_enough_for_slow_links(program: Program) -> None:
    most = 24 if program == relay_supervisor.HUB_PROGRAM else 20  # KiB; that one goes to one host
    assert len(program.sent()) < most * 1024


@pytest.mark.parametrize("interpreter", [(), (sys.executable,), (oldest_python(),)])
def test_the_argument_goes_there_and_the_answer_comes_back(interpreter: Sequence[str]) -> None:
    said = {"names": ["ü", 'quo"te', "tab\t"], "size": 2**40, "none": None}
    answer = python.ask(here(), ECHO, said, doing="echoing", timeout=20, interpreter=interpreter)
    assert answer == {"echo": said}


def test_what_it_prints_first_is_why_it_failed() -> None:
    with pytest.raises(CommandFailed, match="echoing failed: KeyError: 'fail'") as raised:
        python.ask(here(), ECHO, {"fail": "KeyError"}, doing="echoing", timeout=20)
    assert raised.value.host == "gpu1"


def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(CommandFailed, match="larger than 16 MiB"):
        python.ask(here(), ECHO, {"repeat": 2**25}, doing="echoing", timeout=30)


def test_a_program_that_hangs_is_left() -> None:
    with pytest.raises(CommandTimedOut, match="1 s"):
        python.ask(here(), ECHO, {"sleep": 30}, doing="echoing", timeout=1)


def test_an_answer_that_is_no_json() -> None:
    transport = FakeTransport().on(lambda argv: argv[0] == "sh", stdout="who are you\n")
    with pytest.raises(CommandFailed, match="echoing failed"):
        python.ask(transport, ECHO, doing="echoing", timeout=1)


def test_a_host_without_python_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", *python.argv()[1:]], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    # Where this machine is a RHEL, its own Python is found by its full path.
    if not Path("/usr/libexec/platform-python").exists():
        assert (done.returncode, done.stderr) == (127, f"{python.MISSING}\n")


@pytest.mark.parametrize("lack", ["3.8", "json", "http"])
def test_a_python_that_is_too_old_or_incomplete_is_passed_over(tmp_path: Path, lack: str) -> None:
    """`python3` is 3.8, or Debian's python3-minimal; a newer one is there by another name."""
    (tmp_path / "python3").write_text(
        f"#!{sys.executable} -I\n"
        "import sys\n"
        + ("sys.version_info = (3, 8)\n" if lack == "3.8" else f"sys.modules['{lack}'] = None\n")
        + "code = sys.argv[sys.argv.index('-c') + 1]\n"
        "exec(code)\n"
    )
    (tmp_path / "python3").chmod(0o755)
    argv = ["/bin/sh", *python.argv()[1:]]
    sent = ECHO.sent("x")
    only_old = subprocess.run(argv, input=sent, env={"PATH": str(tmp_path)}, capture_output=True)
    (tmp_path / "python3.11").symlink_to(oldest_python())
    done = subprocess.run(argv, input=sent, env={"PATH": str(tmp_path)}, capture_output=True)
    if not Path("/usr/libexec/platform-python").exists():
        assert only_old.returncode == 127
    assert json.loads(done.stdout) == {"echo": "x"}


def test_a_python_that_is_killed_while_it_is_asked_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text(
        "#!/bin/sh\n"
        f'[ -e {tmp_path}/asked ] && exec {oldest_python()} "$@"\n'
        f": >{tmp_path}/asked\n"
        "kill -9 $$\n"
    )
    (tmp_path / "python3").chmod(0o755)
    argv = ["/bin/sh", *python.argv()[1:]]
    environment = {"PATH": str(tmp_path)}
    done = subprocess.run(argv, input=ECHO.sent("x"), env=environment, capture_output=True)
    assert json.loads(done.stdout) == {"echo": "x"}


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ("kill -9 $$", "python\tpython3"),
        ("exit 1", "unusable\tpython3: older than 3.9"),
        ("echo no module named http >&2; exit 1", "unusable\tpython3: no module named http"),
    ],
)
def test_what_ails_the_python_of_a_host_is_told_with_its_images(
    tmp_path: Path, ends: str, told: str
) -> None:
    (tmp_path / "python3").write_text(f"#!/bin/sh\n{ends}\n")
    (tmp_path / "docker").write_text("#!/bin/sh\n[ $1 != info ] || echo '/nowhere|{}'\n")
    for program in ("python3", "docker"):
        (tmp_path / program).chmod(0o755)
    script = resources.files("clusterctl.containers").joinpath("engine_stock.sh").read_text()
    search = f"{tmp_path}:/usr/bin:/bin"
    done = subprocess.run(
        ["sh", "-c", script, "stock", "/nowhere", ""],
        env={"PATH": search},
        capture_output=True,
        text=True,
    )
    assert told in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("package", "script"),
    [("clusterctl.facts", "probe.sh"), ("clusterctl.containers", "engine_stock.sh")],
)
def test_scripts_that_look_for_python_look_for_the_same_ones(package: str, script: str) -> None:
    text = " ".join(
        resources.files(package).joinpath(script).read_text().replace("\\\n", " ").split()
    )
    assert f"in {' '.join(python.CANDIDATES)}; do" in text


def test_a_host_without_python_is_an_error_with_a_fix() -> None:
    transport = FakeTransport().on(
        lambda argv: argv[0] == "sh", status=127, stderr=f"{python.MISSING}\n"
    )
    with pytest.raises(PythonMissing, match="no Python 3") as raised:
        python.ask(transport, ECHO, doing="echoing", timeout=1)
    assert "clusterctl bootstrap" in (raised.value.hint or "")


def test_a_lost_connection_is_no_failure_of_the_program() -> None:
    error = python.failure(FakeChannel(CommandResult((), -1, "", "")), "the download", "gpu1")
    assert isinstance(error, ConnectionFailed)
    assert str(error) == "gpu1: the connection was lost: the download did not finish"
    assert error.hint
