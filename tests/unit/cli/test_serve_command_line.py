"""Which words of `clusterctl serve` are the model, and which are vLLM's."""

from __future__ import annotations

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
