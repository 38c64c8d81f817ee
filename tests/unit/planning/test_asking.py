"""Asking the engine in the head's node container: what runs there, what is kept, and failures."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.containers.driver import Container
from clusterctl.planning.asking import ModelFiles, answer_of, program
from clusterctl.planning.engine_answer import EngineAnswer
from clusterctl.planning.fit_request import load_shape
from clusterctl.planning.placement import sites_of
from clusterctl.planning.planner import plan
from clusterctl.planning.report import Hardware, PlanRequest
from clusterctl.ray_cluster.nodes import container_name
from clusterctl.transport.base import CommandResult
from tests.fakes.container_engine import FakeDriver, FakeEngine, foreign

SAID = Path(__file__).with_name("asked_vllm_0_33.json").read_text()
MODEL = ModelFiles("/data/models/q", {}, "{}")
NODE = foreign(container_name("demo"), cluster="demo")


class Asked(FakeDriver):
    """Has a node container in which `says` is printed; None: its Python runs on this machine."""

    def __init__(self, says: str | None, node: Container = NODE) -> None:
        super().__init__("gpu1", FakeEngine(containers={node.id: node}), lambda: None)
        self.says = says
        self.runs: list[bytes] = []

    def exec(
        self, container: str, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60
    ) -> CommandResult:
        assert (container, list(argv)) == (NODE.name, ["python3", "-c", program()])
        self.runs.append(stdin)
        if self.says is not None:
            return CommandResult(tuple(argv), 0, self.says, "")
        ran = subprocess.run(
            [sys.executable, *argv[1:]], input=stdin, capture_output=True, check=False
        )
        return CommandResult(tuple(argv), ran.returncode, ran.stdout.decode(), ran.stderr.decode())


def answer(driver: FakeDriver, model: ModelFiles = MODEL) -> EngineAnswer:
    hardware = Hardware(sites_of("4xH100"), vllm="0.33.0")
    request = PlanRequest(load_shape("Qwen/Qwen3.5-27B"), hardware, 2, 2)
    return answer_of(driver, "demo", request, plan(request), model)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "clusterctl" / "asked"


def test_the_question_is_asked_once_and_the_answer_kept_for_this_user(cache: Path) -> None:
    driver = Asked(SAID)

    first, second = answer(driver), answer(driver)

    assert first == second
    assert first.vllm == "0.33.0"
    (asked,) = map(json.loads, driver.runs)
    assert asked["gpu"]["name"] == "H100"
    assert asked["questions"][0]["directory"] == "/data/models/q"
    assert cache.stat().st_mode & 0o777 == 0o700


def test_another_image_or_config_is_asked_for_anew() -> None:
    driver = Asked(SAID)
    answer(driver)
    answer(driver, replace(MODEL, config='{"vocab_size": 1}'))

    updated = Asked(SAID, replace(NODE, image="sha256:2"))
    answer(updated)

    assert len(driver.runs) == 2
    assert len(updated.runs) == 1


def test_a_python_without_vllm_says_so_and_nothing_is_kept(cache: Path) -> None:
    with pytest.raises(ValueError, match="No module named"):
        answer(Asked(None))

    assert not cache.exists()


def test_a_node_container_that_is_down_is_not_asked() -> None:
    stopped = Asked(SAID, replace(NODE, status="exited"))

    with pytest.raises(ValueError, match="the node container does not run"):
        answer(stopped)
    assert not stopped.runs
