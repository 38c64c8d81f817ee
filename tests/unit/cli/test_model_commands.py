"""`model`: what is said before any weights move, and what is printed of what was done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.cli.model import pushed_document, pushed_sentence
from clusterctl.transfer.weights.delivery import PushedModel
from clusterctl.transfer.weights.manifest import Manifest, WeightFile
from tests.unit.cli.conftest import Run

MODEL = Manifest("Tiny-1B", (WeightFile("model.safetensors", 3 << 30, 0o644, "a" * 64),))


def test_ls_without_an_inventory_is_the_catalogue(clusterctl: Run) -> None:
    ran = clusterctl("model", "ls")
    assert ran.returncode == 0
    assert ran.stdout.startswith("qwen2.5-1.5b")
    assert "on all" not in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= 80
    assert set(json.loads(clusterctl("model", "ls", "--json").stdout)) == {"catalogue"}
    assert "Qwen/Qwen3-8B\n" in clusterctl("model", "ls", "--hub").stdout


def test_ls_lists_what_answers_and_names_what_does_not(
    clusterctl: Run, inventory: Path, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    (models / "Qwen3-8B").mkdir(parents=True)
    (models / "Qwen3-8B" / "config.json").write_text("{}")
    inventory.write_text(inventory.read_text() + f"models: {models}\n")
    ran = clusterctl("-i", str(inventory), "model", "ls")
    assert "Qwen3-8B  2 B  qwen3-8b  unverified on here" in ran.stdout
    assert "error: gone: " in ran.stderr
    document = json.loads(clusterctl("-i", str(inventory), "model", "ls", "--json").stdout)
    assert document["models"][0]["hosts"] == {"here": "unverified"}
    assert [error["host"] for error in document["errors"]] == ["gone"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("push", "/nowhere/Tiny"), "/nowhere/Tiny does not exist"),
        (("push", "Tiny", "--from", "host:gpu9"), "host:gpu9 is not a host of the inventory"),
        (("push", ".", "--limit-rate", "fast"), "--limit-rate: 'fast' is not a rate"),
        (("push", ".", "--name", "../x"), "is not a valid name of a model directory"),
        (("pull", "qwen3-9b"), "qwen3-9b is not a model on a hub; did you mean"),
        (("pull", "/data/models/x"), "/data/models/x is not a model on a hub"),
        (("pull", "qwen3-8b", "--source", "nexus"), "--source nexus is unknown"),
        (("pull", "qwen3-8b", "--on", "gpu9"), "--on gpu9 is not a host of the inventory"),
    ],
)
def test_what_cannot_be_is_said_before_any_host_is_asked(
    clusterctl: Run, inventory: Path, words: tuple[str, ...], said: str
) -> None:
    ran = clusterctl("-i", str(inventory), "model", *words)
    assert ran.returncode == 2
    assert said in ran.stderr
    assert "fix: " in ran.stderr
    assert "gone" not in ran.stderr


def test_a_directory_that_is_no_model_has_all_its_faults_at_once(
    clusterctl: Run, inventory: Path, tmp_path: Path
) -> None:
    (tmp_path / "Half").mkdir()
    (tmp_path / "Half" / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{")
    ran = clusterctl("-i", str(inventory), "model", "push", str(tmp_path / "Half"))
    assert ran.returncode == 5
    assert "Half has no config.json" in ran.stderr
    assert "model.safetensors that lacks its last 1 bytes" in ran.stderr


def test_what_was_done_in_one_sentence() -> None:
    done = PushedModel(MODEL, "/data/models/Tiny-1B", ("a", "b"), 2, 3 << 30, 61.0)
    assert pushed_sentence(done) == (
        "Tiny-1B, 3.0 GiB, is on 2 hosts at /data/models/Tiny-1B; "
        "3.0 GiB sent from here in 1 min 1 s"
    )
    again = PushedModel(MODEL, "/data/models/Tiny-1B", ("a",), 0, 0, 0.4)
    assert pushed_sentence(again) == (
        "nothing to transfer: Tiny-1B is already on 1 host at /data/models/Tiny-1B"
    )
    assert pushed_document(again)["sent"] == 0


def test_the_table_has_80_columns_and_the_json_all_variants(clusterctl: Run) -> None:
    table = clusterctl("model", "search").stdout.splitlines()
    found = json.loads(clusterctl("model", "search", "gpt-oss-120b", "--json").stdout)

    assert max(map(len, table)) <= 80
    assert [each["hub_id"] for each in found["models"]] == ["openai/gpt-oss-120b"]
    assert found["models"][0]["served"] is True
    refused = clusterctl("model", "search", "--gpus", "2xNOTHING")
    assert refused.returncode == 2


def test_a_search_is_for_the_gpus_that_the_inventory_declares(
    clusterctl: Run, tmp_path: Path
) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(
        "cluster: two\nimage: vllm/vllm-openai:v0.33.0\nhosts:\n"
        "  a: {address: 192.0.2.1, role: head,\n"
        "      gpus: [{model: NVIDIA GeForce RTX 4090, memory: 24 GiB}]}\n"
        "  b: {address: 192.0.2.2, gpus: [{model: NVIDIA H100 80GB HBM3}]}\n"
    )

    ran = clusterctl("-i", str(file), "model", "search", "--json")
    whole = clusterctl("-i", str(file), "model", "search", "--json", "--all")

    assert "1 x RTX 4090, 1 x H100 of two; --all" in ran.stderr
    fitting = {each["name"] for each in json.loads(ran.stdout)["models"]}
    assert "qwen3.6-35b-a3b" in fitting
    assert not fitting & {"kimi-k3", "deepseek-v3"}
    assert {each["name"] for each in json.loads(whole.stdout)["models"]} > fitting
