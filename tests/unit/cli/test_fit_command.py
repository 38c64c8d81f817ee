"""`clusterctl fit` as users type it, with GPUs that nobody has to have."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from clusterctl.cli.app import app
from clusterctl.errors import UNPROVEN
from clusterctl.models.version import show_version
from clusterctl.planning.rules import NEWEST
from tests.fakes.catalogue import config_of
from tests.lab.walk import blocks, missing


def fit(*words: str) -> Result:
    return CliRunner().invoke(app, ["fit", *words])


def document(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(fit(*words, "--json").stdout)
    return found


def test_the_question_of_seed_002_in_its_own_words() -> None:
    """`--max-model-len 128 --gpu-memory-utilization 0.5` on two RTX 3090: 644,304 tokens."""
    words = ("qwen2.5-1.5b", "--tp", "2", "--max-model-len", "128",
             "--gpu-memory-utilization", "0.5", "--gpus", "2xRTX3090",
             "--vllm", "0.7.2")  # fmt: skip
    found = document(*words)
    assert found["fits"]
    assert found["kv_cache_tokens"] == pytest.approx(644_304, rel=0.015)
    assert found["limited_by"]["rank"] == 0
    assert {"host", "gpu", "weights_gib", "activation_gib", "runtime_gib", "cuda_graphs_gib",
            "kv_cache_gib"} <= set(found["ranks"][0])  # fmt: skip
    shown = fit(*words)
    assert shown.exit_code == 0
    assert "limited by rank 0 (host1, RTX 3090)" in shown.stdout
    assert f"{found['kv_cache_tokens']:,} tokens" in shown.stdout


def test_layouts_are_proposed_best_first_with_their_reasons() -> None:
    shown = fit("deepseek-r1-32b", "--gpus", "2xA100", "--hosts", "2").stdout
    rows = shown.partition("layouts that fit, best first")[2].splitlines()
    assert any("--tp 2" in row for row in rows)
    found = document("deepseek-r1-32b", "--gpus", "2xA100", "--hosts", "2")
    speeds = [one["speed"]["tokens_per_s_64"] for one in found["proposals"]]
    assert speeds == sorted(speeds, reverse=True)


@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_what_does_not_fit_ends_with_11_and_the_nearest_settings(json_flag: list[str]) -> None:
    ran = fit("qwen3-8b", "--gpus", "2xRTX4090", "--tp", "1", "--gpu-memory-utilization", "0.85",
              *json_flag)  # fmt: skip
    assert ran.exit_code == 11
    assert "--max-model-len" in ran.stdout
    assert "--tp" in ran.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("qwen3-8b", "--gpus", "RTX3090"),
        ("qwen3-14b", "--gpus", "RTX3090"),
        ("qwen3-4b", "--gpus", "RTX3060"),
        ("qwen3-4b", "--gpus", "RTX3060", "--max-model-len", "8192"),
        ("qwen3-32b", "--gpus", "RTX4090", "--gpus", "RTX3090", "--network", "2.5Gbit"),
        ("qwen2.5-7b", "--gpus", "RTX3090", "--max-model-len", "131072"),
    ],
)
def test_one_shorter_context_is_named_and_it_fits(words: tuple[str, ...]) -> None:
    found = document(*words)
    assert found["verdict"] != "fits"
    shown = fit(*words).stdout
    (length,) = set(re.findall(r"--max-model-len (\d+)", shown))
    assert int(length) % 1024 == 0
    (one,) = [item for item in found["advice"] if "--max-model-len" in item["flags"]]
    flags = [flag for flag in one["flags"] if not flag.startswith("VLLM_")]
    ran = fit(*words, *flags)
    assert ran.exit_code == 0, ran.stdout
    assert "\nfits (" in ran.stdout


def test_the_release_that_is_planned_for_is_named() -> None:
    assumed = fit("qwen3-8b", "--gpus", "H100").stdout
    assert assumed.startswith(f"Qwen/Qwen3-8B: TP 1, PP 1, vLLM {show_version(NEWEST)}\n")
    assert f"no vLLM version given: planned for {show_version(NEWEST)}, the newest" in assumed
    given = fit("qwen3-8b", "--gpus", "H100", "--vllm", "0.25.1").stdout
    assert given.startswith("Qwen/Qwen3-8B: TP 1, PP 1, vLLM 0.25.1\n")
    assert "planned for" not in given


def test_a_page_of_the_docs_shows_what_it_prints() -> None:
    page = Path(__file__).parents[3] / "docs/from-a-laptop.md"
    shown = [block for block in blocks(page) if block.text.startswith("clusterctl fit ")]
    assert len(shown) == 2
    for block in shown:
        ran = fit(*shlex.split(block.text)[2:])
        assert ran.exit_code == block.status
        assert missing(block.prints, ran.stdout) == []


def test_what_is_not_certain_is_not_refused_as_serve_does_not(tmp_path: Path) -> None:
    strange = config_of("qwen/qwen3-8b") | {"architectures": ["NewForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(strange))
    ran = fit(str(tmp_path), "--gpus", "T4")
    assert ran.exit_code == UNPROVEN
    assert "unproven (margin of error" in ran.stdout
    assert "warning: host1 (T4)" in ran.stdout
    assert "not certain, so serve does not refuse it: the architecture NewForCausalLM" in ran.stdout


def test_gpus_that_would_do_are_named_as_a_shell_takes_them() -> None:
    shown = fit("gpt-oss-20b", "--gpus", "RTX3080", "--max-model-len", "8192").stdout
    named = shown.partition("would fit: ")[2].partition(" (")[0]
    assert shlex.split(named)[0] == "--gpus"
    assert fit("gpt-oss-20b", *shlex.split(named), "--max-model-len", "8192").exit_code == 0
    assert "tokens/s" not in shown  # how fast it would be, if it could be


def test_a_slow_network_says_what_is_faster() -> None:
    words = ("qwen2.5-1.5b", "--tp", "2", "--gpus", "H200", "--hosts", "2", "--network", "4GB/s")
    ran = fit(*words)
    assert ran.exit_code == 0
    assert "faster, by estimate: --tp 1 -- --data-parallel-size 2" in ran.stdout
    slower = document(*words[:-1], "10Gbit")["speed"]["tokens_per_s_64"]
    assert slower < document(*words)["speed"]["tokens_per_s_64"]


def test_flags_of_vllm_follow_two_dashes() -> None:
    words = ("qwen3-8b", "--gpus", "H100", "--tp", "1")
    plain = document(*words)["kv_cache_tokens"]
    ran = CliRunner().invoke(app, ["fit", *words, "--json", "--", "--kv-cache-dtype", "fp8"])
    assert json.loads(ran.stdout)["kv_cache_tokens"] == pytest.approx(2 * plain, rel=0.001)


def test_a_directory_and_a_file_are_models_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of("qwen/qwen3-8b")))
    by_name = document("qwen3-8b", "--gpus", "H100")["kv_cache_tokens"]
    assert document(str(tmp_path), "--gpus", "H100")["kv_cache_tokens"] == by_name
    assert document(f"{tmp_path}/config.json", "--gpus", "H100")["kv_cache_tokens"] == by_name


def test_both_ways_to_write_a_length() -> None:
    words = ("gemma-4-31b", "--gpus", "B200", "--tp", "1", "--max-model-len")
    assert document(*words, "256K")["max_model_len"] == 262_144
    assert document(*words, "131072")["max_model_len"] == 131_072


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("qwen3-8b", "--gpus", "H100", "--gpu-memory-utilization", "1.2"), 2, "between 0 and 1"),
        (("qwen3-8b", "--gpus", "8xH100", "--tp", "3"), 2, "32 attention heads"),
        (("qwen3-8b", "--gpus", "H100", "--tp", "4"), 11, "needs 4 GPUs"),
        (("qwen3-8b", "--gpus", "H999"), 2, "unknown GPU"),
        (("no-such", "--gpus", "H100"), 2, "no such path"),
        (("qwen3-8b", "--gpus", "H100", "--network", "fast"), 2, "not a speed"),
        (("qwen3-8b", "--gpus", "H100", "--hosts", "0"), 2, "--hosts 0"),
        (("qwen3-8b", "--hosts", "2"), 2, "--gpus 2xH200"),
        (("qwen3-8b", "--gpus", "H100", "--max-model-len", "256Q"), 2, "--max-model-len"),
    ],
)
def test_bad_input_is_said_with_its_exit_code(words: tuple[str, ...], code: int, said: str) -> None:
    ran = fit(*words)
    assert ran.exit_code == code
    assert said in ran.output
    assert "Traceback" not in ran.output


def test_without_gpus_and_without_an_inventory_both_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("CLUSTERCTL_INVENTORY", raising=False)
    ran = fit("qwen3-8b")
    assert ran.exit_code == 2
    assert "--gpus 2xH200" in ran.output


def test_ranks_that_are_alike_share_a_line_and_unlike_ones_show_their_layers() -> None:
    shown = fit("deepseek-r1-70b", "--gpus", "8xH100", "--tp", "8").stdout
    assert "  0-7 " in shown
    unlike = fit("deepseek-r1-32b", "--gpus", "RTX3090,H800", "--pp", "2",
                 "--max-model-len", "8192", "--", "--max-num-seqs", "64").stdout  # fmt: skip
    assert "layers" in unlike
    assert "RTX 3090" in unlike


def test_hosts_that_are_not_there_cannot_be_asked() -> None:
    shown = fit("qwen2.5-1.5b", "--gpus", "2xH200", "--ask")
    assert shown.exit_code == 2
    assert "--ask asks the cluster's hosts" in shown.stderr


def advised(*words: str) -> list[str]:
    """The flags after each `would fit:`."""
    lines = fit(*words).stdout.splitlines()
    return [
        line.removeprefix("would fit: ").partition(" (")[0] for line in lines if "would" in line
    ]


def test_what_costs_nothing_is_advised_before_other_gpus() -> None:
    """Qwen3-8B on two RTX 3080 of 20 GB, as in a deployment note: 0.9 of the GPUs is enough."""
    words = ("qwen3-8b", "--gpus", "2xRTX 3080 20GB", "--tp", "2", "--vllm", "0.8.5")
    assert advised(*words, "--gpu-memory-utilization", "0.12") == ["--gpu-memory-utilization 0.9"]
    assert document(*words, "--gpu-memory-utilization", "0.9")["kv_cache_tokens"] == 119_280


def test_a_smaller_step_is_advised_first_where_it_is_enough() -> None:
    words = ("gemma-4-31b", "--gpus", "A100", "--tp", "1", "--max-model-len", "131072",
             "--gpu-memory-utilization", "0.95", "--vllm", "0.19.0", "--")  # fmt: skip
    assert advised(*words, "--max-num-batched-tokens", "8192")[0] == (
        "-- --max-num-batched-tokens 2048"
    )
    assert fit(*words, "--max-num-batched-tokens", "2048").exit_code == 0


def test_a_layout_and_settings_are_advised_together_before_other_gpus() -> None:
    """On TP 2 no setting is enough, and on TP 4 not with 0.3 of each GPU."""
    words = ("deepseek-r1-32b", "--gpus", "4xRTX 3090")
    first = advised(*words, "--tp", "2", "--gpu-memory-utilization", "0.3")[0]
    assert first.startswith("--tp 4 --pp 1 --gpu-memory-utilization 0.9 --max-model-len ")
    assert fit(*words, *shlex.split(first)).exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("qwen3-8b", "--gpus", "H100", "--vllm", "banana"), "--vllm 'banana' is not a version of"),
        (("qwen3-8b", "--gpus", "H100", "--gpu-memory-utilization", "90"), "1, such as 0.9"),
        (("qwen3-8b", "--gpus", "H100", "--gpu-memory-utilization", "85"), "1, such as 0.85"),
        (("", "--gpus", "H100"), "fix: clusterctl fit "),
        (("qwen3-8b", "--gpus", "GTX1060"), "vLLM does not run on GTX1060: it needs compute"),
        (("qwen3-8b", "--gpus", "RTX3009"), "did you mean RTX 3090"),
        (("qwen4-8b", "--gpus", "H100"), "did you mean qwen3-8b"),
    ],
)
def test_slips_of_the_keyboard_are_refused_with_a_fix(words: tuple[str, ...], said: str) -> None:
    ran = fit(*words)
    assert ran.exit_code == 2
    assert said in " ".join(ran.stderr.split())


@pytest.mark.parametrize(
    "words", [("falcon-180b", "--gpus", "H100"), ("qwen3-8b", "--gpus", "MI300X")]
)
def test_nothing_is_suggested_that_is_not_near(words: tuple[str, ...]) -> None:
    ran = fit(*words)
    assert ran.exit_code == 2
    assert "did you mean" not in ran.stderr


@pytest.mark.parametrize("gpu", ["GB10", "RTX 3060", "RTX 4080", "RTX PRO 6000", "L20"])
def test_common_gpus_are_known(gpu: str) -> None:
    assert fit("qwen3-8b", "--gpus", f"2x{gpu}", "--max-model-len", "4096").exit_code == 0


def test_a_gpu_that_shares_the_hosts_memory_gets_a_lower_share() -> None:
    shown = fit("qwen3-8b", "--gpus", "GB10").stdout
    assert "warning: GB10 shares its memory with host1" in shown
    assert "--gpu-memory-utilization 0.82" in shown
    lower = fit("qwen3-8b", "--gpus", "GB10", "--gpu-memory-utilization", "0.82").stdout
    assert "shares its memory" not in lower


def test_a_layout_that_cannot_start_is_neither_listed_nor_said_to_fit() -> None:
    """mxfp4 needs compute capability 8.0."""
    ran = fit("gpt-oss-20b", "--gpus", "4xV100")
    assert ran.exit_code == 11
    assert "cannot start (" in ran.stdout
    assert "layouts that fit" not in ran.stdout
    assert "tokens/s" not in ran.stdout
    found = document("gpt-oss-20b", "--gpus", "4xV100")
    assert (found["fits"], found["verdict"], found["proposals"]) == (False, "cannot start", [])


def test_hosts_on_which_it_starts_are_used() -> None:
    found = document("gpt-oss-20b", "--gpus", "4xV100", "--gpus", "A100")
    assert [rank["gpu"] for rank in found["ranks"]] == ["A100-80GB"]
    assert "this layout leaves other GPUs idle: 4 x V100-32GB on host1" in found["notes"]


def test_idle_gpus_of_another_kind_are_named() -> None:
    idle = "this layout leaves other GPUs idle: 1 x A100-80GB on host1"
    mixed = ("qwen3-8b", "--gpus", "2xRTX4090,A100:80")
    assert idle in document(*mixed)["notes"]
    assert idle in document(*mixed, "--tp", "1")["notes"]
    assert idle not in document(*mixed, "--pp", "3")["notes"]


def test_the_order_of_unlike_gpus_in_a_host_decides_which_are_used() -> None:
    order = "the ranks on a host take its GPUs in the order of --gpus"
    small_first = document("qwen3-8b", "--gpus", "2xRTX4090,A100:80", "--tp", "1")
    large_first = document("qwen3-8b", "--gpus", "A100:80,2xRTX4090", "--tp", "1")
    assert (small_first["verdict"], large_first["verdict"]) == ("does not fit", "fits")
    assert any(order in note for note in small_first["notes"])
    assert not any(order in note for note in large_first["notes"])


def test_unlike_hosts_are_planned_with_the_network_between_them() -> None:
    """R1-Distill-Qwen-32B on an RTX 3090 and an H800, as in a deployment note."""
    hosts = ("--gpus", "RTX3090", "--gpus", "H800", "--network", "2.5Gbit")
    found = document("deepseek-r1-32b", *hosts, "--pp", "2", "--max-model-len", "8192")
    assert [rank["host"] for rank in found["ranks"]] == ["host1", "host2"]
    assert found["layer_partition"] == [13, 51]
    wrong = fit("deepseek-r1-32b", *hosts, "--hosts", "2")
    assert wrong.exit_code == 2
    assert "leave --hosts out" in wrong.stderr


def test_a_network_inside_one_host_is_said_to_be_unused() -> None:
    words = ("qwen3-8b", "--gpus", "RTX3090,RTX4090", "--network", "2.5Gbit")
    assert any(note.startswith("--network is not used") for note in document(*words)["notes"])


def test_replicas_inside_hosts_are_proposed_before_stages_across_many() -> None:
    found = document("deepseek-r1-70b", "--gpus", "8xA100", "--hosts", "40", "--network", "200Gbit")
    first = found["proposals"][0]
    assert (first["tp"], first["pp"], first["dp"]) == (8, 1, 40)
    assert not any("span hosts" in one["text"] for one in found["foreseen"])
