"""vLLM's executor for Ray before RayExecutorV2, whose actors have no names."""

from __future__ import annotations

import json
import os

import pytest

from tests.lab.cluster import Operator, until
from tests.lab.conftest import OnHost
from tests.lab.steady_load import status

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.timeout(1200, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

V1 = {"VLLM_USE_RAY_V2_EXECUTOR_BACKEND": "0"}


def test_its_ranks_are_found_and_one_that_ends_is_noticed(
    operator: Operator, used_hosts: str, on_host: OnHost
) -> None:
    operator.ok("bootstrap", used_hosts, timeout=1000)
    path = operator.home / "fleet.yaml"
    tiny = {"model": "/data/models/tiny", "tp": 2, "env": V1}
    path.write_text(json.dumps({"services": {"tiny": tiny}}))
    operator.ok("apply", str(path), "--yes", timeout=1000)

    (service,) = status(operator)["services"]
    assert [(rank["rank"], rank["host"]) for rank in service["ranks"]] == [(0, "gpu1"), (1, "gpu2")]

    assert on_host("gpu2", "pkill -KILL -f RayWorkerWrapper").returncode == 0
    until(
        lambda: status(operator)["services"][0]["restarts"] > service["restarts"],
        within=60,
        what="status tells it",
    )
    until(lambda: status(operator)["services"][0]["state"] == "ready", within=400, what="ready")
