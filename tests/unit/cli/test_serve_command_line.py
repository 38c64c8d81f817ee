"""Which words of `clusterctl serve` are the model, and which are vLLM's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run


@pytest.mark.parametrize("flags", [(), ("--", "--seed", "1")])
def test_the_model_may_come_from_the_config_file(
    clusterctl: Run, inventory: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("model: Qwen/Qwen3-8B\nport: 9000\n")

    ran = clusterctl("serve", "-i", str(inventory), "--config", str(config), *flags)

    assert ran.returncode == 4, ran.stderr  # as far as the host that is gone
    assert "error: gone: " in ran.stderr


@pytest.mark.parametrize("words", [(), ("--", "--seed", "1"), ("--", "m")])
def test_without_a_model_the_fix_is_told(clusterctl: Run, words: tuple[str, ...]) -> None:
    ran = clusterctl("serve", *words)

    assert ran.returncode == 2
    assert "'m' after -- is not a vLLM flag" in ran.stderr or "no model given" in ran.stderr


@pytest.mark.parametrize("words", [("m", "--tp", "2"), ("--tp", "2", "m")])
def test_options_and_model_come_in_any_order(clusterctl: Run, words: tuple[str, ...]) -> None:
    ran = clusterctl("serve", *words, "--", "--nnodes", "2")

    assert ran.returncode == 2
    assert "--nnodes" in ran.stderr
    assert "no model" not in ran.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("m", "--nnodes", "2"),
        ("m", "--nnodes=2", "--tp", "2"),
        ("--nnodes", "2", "--tp", "2", "m"),
        ("m", "--seed", "-1", "--nnodes", "2", "--dry-run", "--", "--api-server-count", "1"),
    ],
)
def test_flags_of_vllm_need_no_dashes_before_them(clusterctl: Run, words: tuple[str, ...]) -> None:
    ran = clusterctl("serve", *words)

    assert ran.returncode == 2
    assert "--nnodes (command line) cannot be passed to vLLM" in ran.stderr
    assert "no model" not in ran.stderr


@pytest.mark.parametrize("command", ["serve", "fit"])
@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--max-model-lenn", "--max-model-len"),
        ("--jsn", "--json"),
        ("--gpu-mem-util", "--gpu-memory-utilization"),
    ],
)
def test_an_option_that_nobody_has_is_refused_with_the_nearest(
    clusterctl: Run, command: str, typed: str, meant: str
) -> None:
    ran = clusterctl(command, "qwen3-8b", typed, "8192")

    assert ran.returncode == 2
    assert f"No such option: {typed}; did you mean {meant}?" in ran.stderr
    assert "goes after --" in ran.stderr


def test_fit_plans_for_flags_of_vllm_without_dashes(clusterctl: Run) -> None:
    ran = clusterctl("fit", "qwen3-8b", "--gpus", "A100", "--max-num-seqs", "8", "--json")

    assert json.loads(ran.stdout)["max_num_seqs"] == 8, ran.stderr
