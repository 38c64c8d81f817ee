"""What `--json` prints is what docs/json.md and the schemas say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from clusterctl.node.documents import GatewayMember, GatewayState, Rank, ServiceState
from clusterctl.reporting.status_view import status_document
from clusterctl.survey.status import assess
from scripts import json_outputs
from tests.outputs import require_valid
from tests.unit.cli.conftest import Run
from tests.unit.cli.test_help import ALL
from tests.unit.planning.test_prepared_service import Cluster


def test_the_schemas_and_their_page_are_up_to_date() -> None:
    made = "run: python -m scripts.json_outputs"
    assert json_outputs.SCHEMAS.read_text() == json_outputs.render(), made
    assert json_outputs.PAGE.read_text() == json_outputs.page(), made
    Draft202012Validator.check_schema(json.loads(json_outputs.render()))


def test_every_command_with_json_is_described() -> None:
    with_json = {
        " ".join(path)
        for path, command in ALL
        if any("--json" in getattr(each, "opts", ()) for each in command.params)
    }
    assert with_json == set(json_outputs.OUTPUTS), "describe it in scripts/json_outputs.py"


@pytest.mark.parametrize(
    "words",
    [
        ("fit", "qwen3-8b", "--gpus", "2xH200"),
        ("fit", "deepseek-r1-70b", "--gpus", "2xRTX3090"),
        ("fit", "qwen3-8b", "--gpus", "nothing"),
        ("model", "ls"),
        ("version",),
        ("image", "cache"),
        ("lab", "status"),
        ("diagnose", "vllm.log"),
        ("check", "no.yaml"),
    ],
)
def test_real_outputs_are_valid(clusterctl: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "vllm.log").write_text("torch.cuda.OutOfMemoryError: CUDA out of memory.\n")
    ran = clusterctl(*words, "--json")
    require_valid(words, json.loads(ran.stdout))


@pytest.mark.parametrize(
    "words", [("check",), ("status",), ("exec", "true"), ("plan",), ("report",), ("soak",)]
)
def test_real_outputs_about_hosts_are_valid(
    clusterctl: Run, inventory: Path, words: tuple[str, ...]
) -> None:
    command, *rest = words
    ran = clusterctl(command, "--json", "-i", str(inventory), *rest)
    require_valid(words, json.loads(ran.stdout))


def plain(document: Any) -> Any:
    return json.loads(json.dumps(document))


def test_the_status_and_the_plan_of_services_are_valid() -> None:
    cluster = Cluster("nvidia")
    cluster.state = replace(
        cluster.state,
        time=1.0,
        gateway=GatewayState("up", members=[GatewayMember("qwen", 1, "gpu1", True)]),
        services=[ServiceState("qwen", "ready", 1.0, ranks=[Rank(0, 0, 0, "gpu1", "10.0.0.1", 5)])],
    )
    served = cluster.prepare(tp=1, replicas="2")
    status = status_document(assess(cluster.survey(served)))
    assert len(status["services"]) == 2
    require_valid(("status", "--watch"), plain(status))

    assert served.fit is not None
    plan = {"changes": [], "restarts": False, "notes": served.notes, "fit": served.fit.to_json()}
    require_valid(("-i", "lab.yaml", "serve", "qwen"), plain(plan))
    with pytest.raises(ValidationError):
        require_valid(("serve", "qwen"), plain({**plan, "restarts": "no"}))


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("stop", "tiny"), {"stopped": 1}),
        (("drain", "gpu1"), {"host": "gpu1"}),
        (("status",), {"cluster": "demo"}),
    ],
)
def test_other_outputs_are_not(words: tuple[str, ...], wrong: Any) -> None:
    with pytest.raises(ValidationError):
        require_valid(words, wrong)
