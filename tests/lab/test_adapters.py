"""Adapters and an embedding model on whole hosts: from the command to an answer of the gateway. The
tests build on each other, in the order of this file."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import httpx2
import pytest

from clusterctl.kinds.kind import PASSAGE, QUERY, UNRELATED, cosine
from tests.lab.cluster import Operator, until
from tests.lab.conftest import OnHost
from tests.lab.lora import adapter
from tests.vllm.weights import minilm_model

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(1800, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

SERVE = ("serve", "/data/models/tiny", "--tp", "1", "--yes", "--json")
FLAGS = ("--", "--max-model-len", "512", "--enable-lora")


@pytest.fixture(scope="module")
def cluster(operator: Operator, used_hosts: str) -> None:
    operator.ok("bootstrap", used_hosts, timeout=1000)


@pytest.fixture(scope="module")
def door(operator: Operator, cluster: None) -> Any:
    """Asks the gateway for a completion, or for embeddings."""
    served = operator.ok(*SERVE, "--replicas", "2", *FLAGS, timeout=900).json
    key = operator.ok("key", "create", "test").stdout.strip()

    def ask(model: str, path: str = "completions", **body: Any) -> httpx2.Response:
        asked = body or {"prompt": "Hello", "max_tokens": 8, "temperature": 0}
        headers = {"Authorization": f"Bearer {key}"}
        url = f"{served['endpoint']}/{path}"
        return httpx2.post(
            url, json={"model": model, **asked}, headers=headers, timeout=60, trust_env=False
        )

    return ask


def test_adapters_are_loaded_on_each_replica_and_answered_through_the_gateway(
    operator: Operator, door: Any, tmp_path: Path
) -> None:
    pairs = [f"{name}={adapter(tmp_path / name, seed)}" for name, seed in (("sql", 1), ("code", 5))]

    added = operator.ok("adapter", "add", "tiny", *pairs, "--json").json

    assert added["changes"] == ["load sql", "load code"]
    listed = operator.ok("adapter", "ls", "--json").json
    assert [(each["name"], each["missing"], each["replicas"]) for each in listed] == [
        ("code", {}, 2),
        ("sql", {}, 2),
    ]
    until(lambda: door("sql").status_code == 200, within=30, what="the adapter at the gateway")
    texts = {name: door(name).json()["choices"][0]["text"] for name in ("tiny", "sql", "code")}
    assert len(set(texts.values())) == 3
    assert door("none").status_code == 404
    again = operator.ok("adapter", "add", "tiny", *pairs, "--json").json
    assert again["changes"] == []


def test_a_replica_that_starts_again_has_them_again(
    operator: Operator, door: Any, on_host: OnHost
) -> None:
    on_host("gpu2", "pkill -9 -f 'vllm serve'")

    def back() -> bool:
        listed = operator.run("adapter", "ls", "--json").json
        return all(not each["missing"] for each in listed)

    statuses = {door("sql").status_code for _ in range(10)}
    assert statuses == {200}
    until(back, within=300, what="both replicas have the adapters")


def test_one_that_no_replica_can_load_is_withdrawn(
    operator: Operator, door: Any, tmp_path: Path
) -> None:
    place = adapter(tmp_path / "bad", 1)
    config = json.loads((place / "adapter_config.json").read_text())
    (place / "adapter_config.json").write_text(json.dumps({**config, "target_modules": ["w_none"]}))
    data = (place / "adapter_model.safetensors").read_bytes()
    (place / "adapter_model.safetensors").write_bytes(data.replace(b"q_proj", b"w_none"))

    ran = operator.run("adapter", "add", "tiny", f"bad={place}")

    assert ran.status == 6, ran.text
    assert "bad: " in ran.stderr
    listed = operator.ok("adapter", "ls", "--json").json
    assert [each["name"] for each in listed] == ["code", "sql"]
    assert door("bad").status_code == 404


def test_one_that_is_removed_is_nobodys(operator: Operator, door: Any) -> None:
    operator.ok("adapter", "rm", "tiny", "sql")

    until(lambda: door("sql").status_code == 404, within=30, what="the adapter is gone")
    assert door("code").status_code == 200
    assert door("tiny").status_code == 200


def test_real_weights_embed_meanings(operator: Operator, door: Any, tmp_path: Path) -> None:
    """all-MiniLM-L6-v2: the vectors themselves are compared in tests/vllm."""
    operator.ok("scale", "tiny", "1")
    model = shutil.copytree(minilm_model(tmp_path), tmp_path / "minilm")
    operator.ok("model", "push", str(model), "--yes", timeout=300)

    served = operator.ok("serve", "/data/models/minilm", "--yes", "--json", timeout=600).json

    assert served["answer"]["kind"] == "embed"
    assert served["answer"]["text"].startswith("384 numbers, similar texts are nearer (0.")

    def answers() -> bool:
        return bool(door("minilm", "embeddings", input="x").status_code == 200)

    until(answers, within=30, what="the gateway knows the model")
    data = door("minilm", "embeddings", input=[QUERY, PASSAGE, UNRELATED]).json()["data"]
    query, passage, unrelated = (one["embedding"] for one in data)
    assert cosine(query, passage) > cosine(query, unrelated) + 0.3
    wrong = door("minilm", "chat/completions", messages=[])
    assert wrong.status_code == 404
    assert "it answers embeddings: POST /v1/embeddings" in wrong.json()["error"]["message"]
