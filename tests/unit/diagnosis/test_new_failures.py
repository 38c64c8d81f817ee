"""A wheel of a new vLLM shows which failures have no rule, and which rules' words are gone."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import yaml

from scripts.new_failures import main, messages, passed_over, taken_for_failures

CONFIG = """
def check(size, most):
    if size > most:
        raise ValueError(f"new_size ({size}) cannot be larger than the widest of {most} lanes")
    raise ValueError("No available memory for the cache blocks. "
                     "Try increasing `gpu_memory_utilization`.")
"""
WORKER = """
def run(rank):
    logger.error("Rank %d lost the lane to its neighbour for good", rank)
    logger.info("Rank %d found the lane to its neighbour again", rank)
    raise RuntimeError("short")
"""


def wheel(directory: Path, version: str, **sources: str) -> Path:
    path = directory / f"vllm-{version}-cp38-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in sources.items():
            archive.writestr(f"vllm/{name.replace('__', '/')}.py", text)
    return path


def test_errors_without_a_rule_become_entries_to_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = wheel(tmp_path, "0.40.0", config__cache="raise ValueError('an error that is old by now')")
    new = wheel(tmp_path, "0.41.0", config__cache=CONFIG, v1__worker__lanes=WORKER)

    assert main([str(new), str(old)]) == 0

    gone, _, missed = capsys.readouterr().out.partition("errors of vLLM 0.41.0 have no rule:\n")
    entries = yaml.safe_load(missed)
    assert [each["text"] for each in entries] == [
        "new_size (...) cannot be larger than the widest of ... lanes",
        "Rank ... lost the lane to its neighbour for good",
    ]
    assert entries[0]["of"] == "vLLM 0.41.0"
    assert "# vLLM's settings: vllm/config/cache.py" in missed
    assert "kv-no-blocks: No available memory for the cache blocks" not in gone
    assert "wordings of rules are not in vLLM 0.41.0" in gone


def test_with_an_older_wheel_only_what_is_new_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = wheel(tmp_path, "0.40.0", config__cache=CONFIG)
    new = wheel(tmp_path, "0.41.0", config__cache=CONFIG, v1__worker__lanes=WORKER)

    main([str(new), str(old)])

    told = capsys.readouterr().out
    assert "1 errors of vLLM 0.41.0 have no rule" in told
    assert "new_size" not in told

    main([str(new)])

    assert "      1 vLLM's settings\n" in capsys.readouterr().out


def test_every_way_to_write_a_message_is_read(tmp_path: Path) -> None:
    source = """
raise ValueError("a message of more than twenty letters %s" % name)
raise ValueError("a message of more than twenty letters {}".format(name))
raise ValueError("a message of more than " + "twenty letters " + name)
raise ValueError
raise error
"""
    texts = {each.text for each in messages(wheel(tmp_path, "1.0", config__a=source))}
    beginning = "a message of more than twenty letters"
    assert texts == {beginning, f"{beginning} ..."}


def test_what_diagnose_would_pass_over_or_take_for_a_failure_is_told(tmp_path: Path) -> None:
    source = """
logger.warning("a slow start, and on with it")
logger.warning_once("this host is full: No space left on device")
def f():
    raise EngineDeadError("the end of another process")
    raise ValueError("an error of its own")
"""
    made = wheel(tmp_path, "1.0", config__a=source)
    assert passed_over(made) == []
    assert [each.partition("this host")[2] for each in taken_for_failures(made)] == [
        " is full: No space left on device"
    ]

    odd = wheel(tmp_path, "1.1", config__a="raise EngineGenerateError()")
    assert passed_over(odd) == ["vllm/config/a.py:1: EngineGenerateError"]
