"""`diagnose` as users type it, over files; and the ends of logs as a host sends them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clusterctl.cli.app import app
from clusterctl.commands.diagnose import of_files
from clusterctl.diagnosis.verdict import diagnose
from clusterctl.errors import Problems
from clusterctl.node.readings import host_reading
from clusterctl.transport import log_ends

FULL = "OSError: [Errno 28] No space left on device: '/root/.cache/vllm'\n"
DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"


def test_files_and_directories_give_one_verdict(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "worker.log").write_text(FULL)
    (logs / "again.log").symlink_to(logs / "worker.log")
    service = tmp_path / "vllm.log"
    service.write_text(DEAD)

    shown = CliRunner().invoke(app, ["diagnose", str(service), str(logs)])

    assert shown.exit_code == 8
    first, place, fix, *rest = shown.stdout.splitlines()
    assert first == "a disk is full  [disk-full]"
    assert place == f"    {logs}/worker.log:1: {FULL.strip()}"
    assert fix.startswith("  fix: clusterctl exec -- df -h")
    assert rest[0] == "what follows from it:"
    assert "[engine-dead-stall]" in rest[1]


def test_json_has_the_verdict_first_and_stdin_is_read() -> None:
    shown = CliRunner().invoke(app, ["diagnose", "-", "--json"], input=DEAD + FULL)

    first, second = json.loads(shown.stdout)["causes"]
    assert (first["id"], first["certainty"], first["follows_from"]) == (
        "disk-full",
        "certain",
        None,
    )
    assert first["evidence"] == [{"file": "stdin", "line": 2, "text": FULL.strip(), "host": ""}]
    assert second["follows_from"] == "disk-full"


def test_a_healthy_log_ends_with_0(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("INFO:     Application startup complete.\n")

    shown = CliRunner().invoke(app, ["diagnose", str(log)])

    assert (shown.exit_code, shown.stdout) == (0, "no failure found\n")


def test_a_log_that_ends_in_the_middle_of_a_start_has_no_failure_and_says_what_was_running(
    tmp_path: Path,
) -> None:
    log = tmp_path / "vllm.log"
    began = "(EngineCore pid=7) INFO [core.py:105] Initializing a V1 LLM engine (v0.33.0) with x\n"
    log.write_text(f"{began}(EngineCore pid=7) INFO [runner.py:1] Starting to load model m...\n")

    shown = CliRunner().invoke(app, ["diagnose", str(log)])

    assert shown.exit_code == 0
    assert shown.stdout.startswith(
        f"no failure found\n{log} ends while loading the model, before the service is ready\n"
    )
    log.write_text(f"{began}INFO:     Application startup complete.\n")
    assert CliRunner().invoke(app, ["diagnose", str(log)]).stdout == "no failure found\n"


def test_text_of_a_host_that_is_no_unicode_is_searched() -> None:
    (cause,) = diagnose([f"\ud800 {FULL}"])
    assert cause.id == "disk-full"


def test_every_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(Problems) as caught:
        of_files([tmp_path / "a.log", tmp_path / "b.log"])
    assert [Path(error.summary.split()[0]).name for error in caught.value.errors] == [
        "a.log",
        "b.log",
    ]


@pytest.mark.parametrize("name", ["missing/vllm.log", "./missing.log"])
def test_a_file_that_is_not_there_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "here.log").write_text("")

    shown = CliRunner().invoke(app, ["diagnose", str(tmp_path / "here.log"), name])

    assert shown.exit_code != 0
    assert "cannot be read: No such file or directory" in str(shown.exception) + shown.output


def order(directory: Path, **changes: object) -> dict[str, object]:
    usual = {"most": 2**20, "whole": False, "also": [], "secrets": []}
    return {"directory": str(directory), "kernel": "nothing of the kernel", **usual, **changes}


def test_a_host_sends_the_ends_of_its_logs_and_follows_no_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_ends, "LONGEST", 20)
    secret = tmp_path / "secret"
    secret.write_text("not a log\n")
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "chat.log").write_text("x" * 100 + "\nlast line\n")
    (logs / "link.log").symlink_to(secret)
    os.mkfifo(logs / "pipe.log")

    log_ends.main(order(logs))

    sent = json.loads(capsys.readouterr().out)
    free, size = json.loads(sent.pop("disks.json"))["/"]
    assert 0 < free < size
    assert abs(json.loads(sent.pop("time.json")) - time.time()) < 60
    assert sent == {
        "chat.log": "xxxxxxxxx\nlast line\n",
        "link.log": "",
        "pipe.log": "",
        "kernel": "",
        "engine": "",
    }


def test_a_file_system_that_is_read_only_is_not_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the root of Fedora CoreOS: an image with nothing free."""
    image = os.statvfs_result((4096, 4096, 1600, 0, 0, 400, 0, 0, os.ST_RDONLY, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: image)
    assert log_ends.disks(["/"]) == {}
    assert host_reading(["/"], []).disks == {}


def test_a_host_sends_one_log_alone_without_the_clusters_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "chat.log").write_text("key is 0123456789\n")
    (tmp_path / "other.log").write_text("x\n")
    (tmp_path / "key").write_text("0123456789\n")
    log_ends.main(
        {"directory": str(tmp_path), "only": "chat.log", "secrets": [str(tmp_path / "key")]}
    )
    assert json.loads(capsys.readouterr().out) == {"chat.log": "key is [removed]\n"}


def test_a_bundle_has_no_line_that_is_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "chat.log").write_text("HF_TOKEN=abcdef\nnext\n")
    log_ends.main(order(tmp_path, most=9) | {"whole": True})
    assert json.loads(capsys.readouterr().out)["chat.log"] == "next\n"


def test_the_newest_logs_come_first_up_to_a_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for age, name in enumerate(("new", "old", "oldest")):
        log = tmp_path / f"{name}.log"
        log.write_text("12345678\n")
        os.utime(log, (1000 - age, 1000 - age))

    log_ends.main(order(tmp_path, most=10))

    sent = json.loads(capsys.readouterr().out)
    assert [name for name in sent if name.endswith(".log")] == ["new.log", "old.log"]
    assert (sent["new.log"], sent["old.log"]) == ("12345678\n", "\n")
