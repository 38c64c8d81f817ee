"""Logs that rotate, the packed program, what the package may import."""

from __future__ import annotations

import ast
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterctl.node import documents, files, package
from clusterctl.node.children import Child, RotatedLog, has_threads, is_alive
from clusterctl.node.documents import (
    DELETED,
    GpuListing,
    KeysDocument,
    NamedKey,
    NodeDocument,
    ServiceDocument,
    to_json,
)
from clusterctl.node.files import Declared, Journal, NodePaths, why_not_written
from clusterctl.node.probes import GpuCount
from clusterctl.node.timing import Backoff, Timing
from tests.fakes.node_bench import await_value

LISTING = GpuListing(["nvidia-smi", "-L"], "GPU ")

SOURCES = sorted(
    file
    for room in ("kinds", "node")
    for file in (Path(package.__file__).parents[1] / room).glob("*.py")
)


def test_a_log_is_moved_aside_when_it_grew(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with RotatedLog(path, limit=10) as log:
        for word in (b"0123456789\n", b"second\n", b"third\n", b"fourth\n"):
            log.write(word)

    assert path.read_bytes() == b"fourth\n"
    assert (tmp_path / "a.log.1").read_bytes() == b"second\nthird\n"


def test_a_log_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    with RotatedLog(tmp_path / "missing" / "a.log") as log:
        log.write(b"x")


def test_the_journal_rotates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "JOURNAL_LIMIT", 50)
    path = tmp_path / "journal.jsonl"
    told = io.StringIO()
    writer = Journal(path, "a", told)
    writer.write("ray", "up", "pid 7")
    writer.write("ray", "down")

    assert json.loads(path.read_text())["event"] == "down"
    assert json.loads((tmp_path / "journal.jsonl.1").read_text())["text"] == "pid 7"
    assert told.getvalue().splitlines()[0].endswith("ray up pid 7")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_line_cut_by_a_full_disk_takes_no_later_one_with_it(tmp_path: Path) -> None:
    """A limit of a file's size stands for the disk: a part of a line is written, then nothing."""
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, "a", io.StringIO())
    journal.write("chat", "ready")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, hard))
    try:
        journal.write("chat", "stalled")
        journal.write("chat", "failed")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal.write("chat", "ready")
    first, cut, last = path.read_text().splitlines()
    assert len(cut) == 20
    assert [json.loads(line)["event"] for line in (first, last)] == ["ready", "ready"]


def test_a_directory_of_logs_on_a_full_or_read_only_file_system_is_told(tmp_path: Path) -> None:
    def mount(*words: str) -> None:
        subprocess.run(["mount", *words, str(tmp_path)], check=True)

    assert why_not_written(tmp_path) == ""
    mount("-t", "tmpfs", "-o", "size=2m", "tmpfs")
    try:
        assert why_not_written(tmp_path) == ""
        (tmp_path / "ballast").write_bytes(bytes(1536 * 1024))
        assert why_not_written(tmp_path) == f"{tmp_path} is on a full file system"
        mount("-o", "remount,ro")
        assert why_not_written(tmp_path) == f"{tmp_path} is on a read-only file system"
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert why_not_written(tmp_path / "gone") == f"{tmp_path}/gone: No such file or directory"


GOOD = ServiceDocument(
    name="tiny", model="tiny", served_name="tiny", argv=["vllm", "serve", "/m"], env={},
    host="10.0.0.1", port=8000, tensor_parallel=1, pipeline_parallel=1, gpus=1, fingerprint="f",
)  # fmt: skip


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"\x80\x81 no text",
        b"[]",
        to_json(GOOD).encode()[:60],
        to_json(GOOD).replace('"port": 8000', '"port": null').encode(),
        to_json(GOOD).replace('"env": {}', '"env": {"A": 1}').encode(),
    ],
)
def test_a_document_that_cannot_be_read_is_named_until_it_is_mended(
    tmp_path: Path, broken: bytes
) -> None:
    paths = NodePaths("demo", tmp_path)
    file, other = paths.services / "tiny.json", paths.services / "other.json"
    file.parent.mkdir(parents=True)
    paths.logs.mkdir(parents=True)
    declared = Declared(paths, Journal(paths.journal, "a", io.StringIO()))

    file.write_text(to_json(GOOD))
    assert (declared.services(), declared.unreadable()) == ({"tiny": GOOD}, [])
    file.write_bytes(broken)
    other.write_bytes(broken)
    assert declared.services() == {"tiny": GOOD}, "what serves goes on"
    told = {each.file: each.last_good for each in declared.unreadable()}
    assert told == {"services/tiny.json": to_json(GOOD), "services/other.json": ""}
    assert all(each.why for each in declared.unreadable())
    file.write_text(to_json(GOOD))
    other.unlink()
    assert (declared.services(), declared.unreadable()) == ({"tiny": GOOD}, [])


NODE = NodeDocument("demo", "a", "head", "10.0.0.1", "10.0.0.1", ["ray", "start"], {}, [])


def test_a_directory_of_documents_that_is_deleted_stops_nothing(tmp_path: Path) -> None:
    """`rm -rf /etc/clusterctl`: the service's document goes first, node.json a moment later. Who
    stops a service removes its document alone."""
    paths = NodePaths("demo", tmp_path)
    file = paths.services / "tiny.json"
    file.parent.mkdir(parents=True)
    paths.logs.mkdir(parents=True)
    declared = Declared(paths, Journal(paths.journal, "a", io.StringIO()))
    node = to_json(NODE)
    paths.node_document.write_text(node)
    file.write_text(to_json(GOOD))
    assert (declared.node(), declared.services()) == (NODE, {"tiny": GOOD})

    file.unlink()
    assert declared.services() == {"tiny": GOOD}
    paths.node_document.unlink()
    for _ in range(3):
        assert (declared.node(), declared.services()) == (None, {"tiny": GOOD})
    told = {each.file: (each.why, each.last_good) for each in declared.unreadable()}
    assert told == {
        "node.json": (DELETED, node), "services/tiny.json": (DELETED, to_json(GOOD)),
    }  # fmt: skip

    # As bootstrap restores them; node.json first would make the service one that was stopped.
    file.write_text(to_json(GOOD))
    for _ in range(3):
        assert (declared.node(), declared.services()) == (None, {"tiny": GOOD})
    paths.node_document.write_text(node)
    assert (declared.node(), declared.services()) == (NODE, {"tiny": GOOD})
    assert declared.unreadable() == []

    file.unlink()
    declared.services()
    assert declared.services() == {}
    paths.node_document.unlink()
    assert (declared.node(), declared.services()) == (None, {})


def test_deleting_the_keys_alone_revokes_them_for_good(tmp_path: Path) -> None:
    paths = NodePaths("demo", tmp_path)
    paths.config.mkdir(parents=True)
    paths.logs.mkdir(parents=True)
    declared = Declared(paths, Journal(paths.journal, "a", io.StringIO()))
    keys = KeysDocument([NamedKey("alice", "0" * 64, 1.0)])
    paths.node_document.write_text(to_json(NODE))
    paths.keys.write_text(to_json(keys))
    assert (declared.node(), declared.keys(), declared.unreadable()) == (NODE, keys, [])

    paths.keys.unlink()
    paths.node_document.unlink()
    for _ in range(3):
        assert (declared.node(), declared.keys()) == (None, keys), "all of it went by mistake"
    told = {each.file: each.last_good for each in declared.unreadable()}
    assert told == {"node.json": to_json(NODE), "keys.json": to_json(keys)}
    paths.keys.write_text(to_json(keys))
    paths.node_document.write_text(to_json(NODE))
    assert (declared.node(), declared.keys(), declared.unreadable()) == (NODE, keys, [])

    paths.keys.write_text("{")
    paths.config.joinpath("keys.json.old.json").write_text(to_json(keys))
    assert (declared.keys(), len(declared.unreadable())) == (keys, 1)
    paths.keys.unlink()
    declared.keys()
    assert (declared.keys(), declared.unreadable()) == (KeysDocument(), [])
    paths.keys.write_text("{")
    assert declared.keys() == KeysDocument(), "a damaged file brings no revoked key back"


def test_a_document_that_cannot_be_read_now_stays_in_effect_and_was_not_deleted(
    tmp_path: Path,
) -> None:
    """As with too many open files, or a disk that fails: directories in their place here."""
    paths = NodePaths("demo", tmp_path)
    file = paths.services / "tiny.json"
    file.parent.mkdir(parents=True)
    paths.logs.mkdir(parents=True)
    declared = Declared(paths, Journal(paths.journal, "a", io.StringIO()))
    paths.node_document.write_text(to_json(NODE))
    file.write_text(to_json(GOOD))
    assert (declared.node(), declared.services()) == (NODE, {"tiny": GOOD})

    for path in (paths.node_document, file):
        path.unlink()
        path.mkdir()
    for _ in range(3):
        assert (declared.node(), declared.services()) == (NODE, {"tiny": GOOD})
    told = {each.file: (each.why, each.last_good) for each in declared.unreadable()}
    why = "Is a directory"
    assert told == {
        "node.json": (why, to_json(NODE)), "services/tiny.json": (why, to_json(GOOD)),
    }  # fmt: skip

    for path in (paths.node_document, file):
        path.rmdir()
    paths.node_document.write_text(to_json(NODE))
    paths.services.rmdir()
    paths.services.write_text("not a directory")
    for _ in range(3):
        assert declared.services() == {"tiny": GOOD}
    assert [each.why for each in declared.unreadable() if each.file != "node.json"] == [
        "its directory: Not a directory"
    ]
    paths.services.unlink()
    paths.services.mkdir()
    file.write_text(to_json(GOOD))
    assert (declared.node(), declared.services()) == (NODE, {"tiny": GOOD})
    assert declared.unreadable() == []


# Ends its first thread alone, as Linux ends those of a killed process one after the other
FIRST_THREAD_ENDS = """
import ctypes, platform, sys, threading
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
"""


def test_a_zombie_has_threads_until_the_last_one_has_ended() -> None:
    argv = [sys.executable, "-c", FIRST_THREAD_ENDS]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
        assert is_alive(process.pid)
        await_value(lambda: not is_alive(process.pid), "a zombie")
        assert has_threads(process.pid)
        process.kill()
        await_value(lambda: not has_threads(process.pid), "the end of all threads")
    assert not has_threads(process.pid)


def test_killing_a_child_reaches_its_grandchildren_in_other_groups(tmp_path: Path) -> None:
    script = "import subprocess, signal; subprocess.Popen(['sleep', '600'], process_group=0);"
    script += "print('on', flush=True); signal.pause()"
    lines: list[str] = []
    child = Child([sys.executable, "-c", script], os.environ, tmp_path / "log", lines.append)
    await_value(lambda: lines, "the first line")

    child.kill_all()

    await_value(child.gone, "all of them to be gone")
    assert child.tail() == ["on"]


def test_backoff_doubles_up_to_its_limit() -> None:
    backoff = Backoff(2, 10)
    assert [backoff.failed() for _ in range(5)] == [2, 4, 8, 10, 10]
    assert backoff.failures == 5
    backoff.succeeded()
    assert backoff.failed() == 2
    assert [backoff.failed() for _ in range(2000)][-1] == 10


@pytest.mark.parametrize(
    ("script", "visible", "timeout"),
    [
        ("echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'; echo 'GPU 1: NVIDIA H200 (UUID: GPU-2)'", 2, 60),
        ("echo 'Failed to initialize NVML: Unknown Error'; exit 255", 0, 60),
        ("sleep 60", 0, 0.5),
    ],
)
def test_gpus_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, visible: int, timeout: float
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script.replace('sleep', 'exec sleep')}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    count = GpuCount(LISTING, Timing(gpus_timeout=timeout))

    def look() -> bool:
        count.tick(time.monotonic())
        return count.visible != -1

    def at_rest() -> bool:
        count.tick(time.monotonic())
        return count.at_rest

    await_value(look, "a count")
    count.tick(time.monotonic())
    assert count.visible == visible
    await_value(at_rest, "the program's end")


def test_what_nvidia_smi_says_instead_of_gpus_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Unknown Error'; exit 255\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    count = GpuCount(LISTING, Timing())

    def said() -> str:
        count.tick(time.monotonic())
        return count.said

    assert await_value(said, "its words") == "Failed to initialize NVML: Unknown Error"
    assert count.visible == 0


def test_gpus_are_not_looked_for_where_nothing_lists_them() -> None:
    count = GpuCount(GpuListing(), Timing())
    count.tick(time.monotonic())
    assert count.visible == -1


def test_the_package_is_the_same_every_time_and_runs(tmp_path: Path) -> None:
    assert package.build.__wrapped__() == package.build.__wrapped__()
    program = tmp_path / "node.pyz"
    program.write_bytes(package.build())

    result = subprocess.run(
        [sys.executable, "-I", str(program), "probe-versions"],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip

    assert json.loads(result.stdout)["python"] == ".".join(map(str, sys.version_info[:3]))
    assert package.install_path().startswith("/opt/clusterctl/0.")


def test_the_package_stays_what_it_was_while_clusterctl_is_upgraded(tmp_path: Path) -> None:
    """A container that was told one version could not start from files of another."""
    source = Path(package.__file__).parents[1]
    shutil.copytree(source, tmp_path / "clusterctl", ignore=shutil.ignore_patterns("__pycache__"))
    script = (
        "from pathlib import Path\n"
        "from clusterctl.node import package\n"
        "told = package.install_dir()\n"
        "Path(package.__file__).with_name('files.py').write_text('upgraded = True')\n"
        "assert b'upgraded = True' not in package.build()\n"
        "assert package.install_dir() == told\n"
    )
    subprocess.run(
        [sys.executable, "-P", "-c", script], env={"PYTHONPATH": str(tmp_path)}, check=True
    )


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_every_module_is_python_3_9_and_standard_library(source: Path) -> None:
    tree = ast.parse(source.read_text(), feature_version=(3, 9))
    for node in ast.walk(tree):
        names = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        for name in names:
            ours = name.startswith(("clusterctl.node", "clusterctl.kinds")) or name == "clusterctl"
            assert ours or (
                name.partition(".")[0] in sys.stdlib_module_names
            ), f"{source.name} imports {name}"  # fmt: skip


def test_documents_survive_the_round_trip_and_unknown_keys() -> None:
    state = documents.NodeState("a", "head", 1.0, "0.1", "up", 1.0, 0)
    text = documents.to_json(state).replace("{", '{"from_the_future": 1,', 1)
    assert documents.from_json(documents.NodeState, text) == state
    for broken in ("", "[]", "{}", '{"host": 1}'):
        with pytest.raises(ValueError, match=r"NodeState|Expecting"):
            documents.from_json(documents.NodeState, broken)


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_stands_in_the_place_of_a_log_is_not_written_to_and_stops_nothing(
    tmp_path: Path, kind: str
) -> None:
    path, other = tmp_path / "journal.jsonl", tmp_path / "other"
    other.touch()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(other)
    said = io.StringIO()
    Journal(path, "gpu1", said).write("ray", "up")  # with a plain open, this waits for a reader
    assert "journal not written" in said.getvalue()
    assert other.read_text() == ""


def test_logs_are_roots_alone(tmp_path: Path) -> None:
    Journal(tmp_path / "journal.jsonl", "gpu1", io.StringIO()).write("ray", "up")
    assert (tmp_path / "journal.jsonl").stat().st_mode & 0o777 == 0o600
