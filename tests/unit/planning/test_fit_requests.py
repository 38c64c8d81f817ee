"""From what a user typed to the report: refusals, warnings, advice, JSON, files."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import ClusterctlError, DoesNotFit, UsageError
from clusterctl.models.config_files import checkpoint_bytes, parse_config, read_config
from clusterctl.planning.hardware import CPU
from clusterctl.planning.placement import Site
from clusterctl.planning.report import FitReport
from clusterctl.planning.weights import weight_bytes
from clusterctl.reporting.fit_view import fit_lines
from tests.fakes.catalogue import SHAPED, config_of
from tests.fakes.fit_requests import fit_request

TOP_KEYS = {
    "model", "architecture", "vllm", "fits", "verdict", "kv_cache_tokens", "kv_cache_tokens_range",
    "max_concurrency", "max_model_len", "longest_context", "limited_by", "tp", "pp", "dp",
    "layer_partition",
    "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "reason", "ranks",
    "notes", "speed", "foreseen", "doubts", "advice", "proposals", "faster",
}  # fmt: skip
RANK_KEYS = {
    "host", "gpu", "stage", "place", "layers", "memory_gib", "usable_gib", "weights_gib",
    "adapters_gib", "activation_gib", "runtime_gib", "cuda_graphs_gib", "kv_cache_gib",
    "margin_gib", "blocks",
}  # fmt: skip


def names(report: FitReport, *, fatal: bool) -> list[str]:
    return [item.name for item in report.problems if item.fatal is fatal]


def test_json_keeps_its_keys() -> None:
    found = fit_request("gpt-oss-20b", gpus="2xH200", hosts=2, vllm="0.25.1").to_json()
    assert set(found) == TOP_KEYS
    assert set(found["ranks"][0]) == RANK_KEYS
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("entry", SHAPED, ids=lambda entry: entry.alias)
def test_every_model_of_the_catalogue_can_be_planned(entry: Any) -> None:
    context = str(min(entry.shape.context, 131072))  # Llama 4 Scout has one of 10 million
    words = ("--max-model-len", context)
    report = fit_request(entry.alias, gpus="8xB200", args=words, vllm="0.33.0")
    assert report.plan.verdict == "fits"
    assert report.plan.model == entry.hub_id
    assert report.proposals[0].plan == report.plan


def test_replicas_share_the_experts(tmp_path: Path) -> None:
    """vLLM divides them among the ranks of all replicas, with and without expert parallelism."""
    rows = json.loads(Path(__file__).with_name("h200_rows.json").read_text("utf-8"))
    config = tmp_path / "config.json"
    config.write_text(json.dumps(rows["models"]["qwen3-30b-a3b"]))
    small = "4xMyGPU:24"

    def planned(*args: str) -> FitReport:
        words = ("--max-model-len", "8192", *args)
        return fit_request(tmp_path, gpus=small, tp=1, args=words, vllm="0.25.1")

    assert planned().refused
    for more in ((), ("--enable-expert-parallel",)):
        shared = planned("--data-parallel-size", "4", *more)
        assert shared.plan.verdict == "fits"
        assert round(shared.plan.ranks[0].weights_gib, 1) == 16.4
        assert bool(shared.doubts) is not bool(more)
    assert planned("--data-parallel-size", "2").refused is False  # 29 GiB, and a doubt


@pytest.mark.parametrize(("gpus", "hosts", "warned"), [("H200", 2, True), ("2xH200", 1, False)])
def test_experts_divided_over_hosts_have_no_estimate_of_speed(
    gpus: str, hosts: int, warned: bool, tmp_path: Path
) -> None:
    rows = json.loads(Path(__file__).with_name("h200_rows.json").read_text("utf-8"))
    config = tmp_path / "config.json"
    config.write_text(json.dumps(rows["models"]["qwen3-30b-a3b"]))
    words = ("--data-parallel-size", "2")
    report = fit_request(tmp_path, gpus=gpus, hosts=hosts, tp=1, args=words, vllm="0.25.1")
    assert any("2.4 to 4.0 times slower" in note for note in report.notes) is warned
    assert (report.speed.to_json() == {}) is warned
    told = fit_lines(json.loads(json.dumps(report.to_json())))
    assert any("speed, an estimate" in line for line in told) is not warned


def test_tensor_parallel_over_a_slow_link_says_what_is_faster_and_obeys() -> None:
    report = fit_request("qwen2.5-1.5b", gpus="H200", hosts=2, tp=2, vllm="0.25.1")
    assert report.plan.placement.tp == 2
    assert "tp-spread" in names(report, fatal=False)
    assert report.faster is not None
    assert report.faster.plan.placement.replicas == 2
    assert not report.refused


def test_the_context_that_the_model_does_not_have() -> None:
    """The ValueError that ends seed 003: 200000 is greater than max_position_embeddings."""
    report = fit_request("deepseek-r1-32b", gpus="A800", tp=1, args=["--max-model-len", "200000"])
    assert names(report, fatal=True)[0] == "context-too-long"
    assert "max_position_embeddings=131072" in report.problems[0].text


def test_no_memory_for_blocks() -> None:
    args = ["--gpu-memory-utilization", "0.12"]
    report = fit_request("qwen3-8b", gpus="2xRTX3080", tp=2, args=args, vllm="0.8.5")
    assert names(report, fatal=True) == ["no-kv-memory"]
    report = fit_request("qwen3-8b", gpus="T4", tp=1)
    assert names(report, fatal=True) == ["cuda-oom"]


@pytest.mark.parametrize(
    ("gpus", "tp", "args", "vllm", "name", "fatal"),
    [
        ("T4", 1, "--dtype bfloat16", "0.33.0", "bf16-unsupported", True),
        ("T4", 1, "", "0.33.0", "bf16-unsupported", False),
        ("A100", 1, "--quantization fp8", "0.33.0", "fp8-not-native", False),
        ("V100", 1, "--quantization fp8", "0.19.0", "quant-min-capability", True),
        ("H100", 1, "--quantization bitsandbytes", "0.32.0", "bad-quant-name", True),
        ("H100", 1, "--quantization awq", "0.33.0", "quant-config-missing", True),
        ("H100", 1, "-q gptq_marlin", "0.33.0", "quant-config-missing", True),
        ("H100", 1, "--swap-space 4", "0.33.0", "unknown-arg", True),
        ("H100", 1, "--max-seq-len-to-capture 1", "0.33.0", "unknown-arg", True),
        ("H100", 1, "--disable-log-requests", "0.33.0", "unknown-arg", True),
        ("H100", 1, "--enforce-eager", "0.33.0", "eager", False),
        ("H100", 1, "--cpu-offload-gb 5", "0.33.0", "offload", False),
        ("A100", 1, "--gpu-memory-utilization 0.99", "0.19.0", "cuda-oom", False),
    ],
)
def test_errors_are_foreseen_by_name(
    gpus: str, tp: int, args: str, vllm: str, name: str, fatal: bool
) -> None:
    report = fit_request("qwen3-8b", gpus=gpus, tp=tp, args=args.split(), vllm=vllm)
    assert name in names(report, fatal=fatal)


@pytest.mark.parametrize(("method", "refused"), [("fp8", True), ("mxfp4", False)])
def test_a_quantisation_other_than_the_models_own_is_refused(method: str, refused: bool) -> None:
    report = fit_request("gpt-oss-20b", gpus="H100", tp=1, args=["--quantization", method])
    assert ("quant-mismatch" in names(report, fatal=True)) is refused


@pytest.mark.parametrize(
    ("args", "vllm"), [("--swap-space 4", "0.8.5"), ("--quantization bitsandbytes", "0.8.5")]
)
def test_old_versions_have_what_new_ones_lost(args: str, vllm: str) -> None:
    report = fit_request("qwen3-8b", gpus="H100", tp=1, args=args.split(), vllm=vllm)
    assert names(report, fatal=True) == []


def test_the_nearest_settings_that_fit_are_tried_and_true() -> None:
    base = ["--max-num-seqs", "64", "--max-num-batched-tokens", "2048"]
    report = fit_request("qwen3-8b", gpus="2xRTX4090", tp=1, args=base, vllm="0.33.0")
    assert (
        names(report, fatal=True) == ["kv-too-small-for-len"]
        or report.plan.verdict == "may not fit"
    )
    assert {advice.flags[0] for advice in report.advice} >= {"--max-model-len", "--tp"}
    for advice in report.advice:
        if "--tp" in advice.flags:
            tp, pp = int(advice.flags[1]), int(advice.flags[3])
            again = fit_request(
                "qwen3-8b", gpus="2xRTX4090", tp=tp, pp=pp, args=base, vllm="0.33.0"
            )
        else:
            args = [*base, *advice.flags]
            again = fit_request("qwen3-8b", gpus="2xRTX4090", tp=1, args=args, vllm="0.33.0")
        assert again.plan.verdict == "fits"
        assert again.plan.kv_cache_tokens == advice.kv_cache_tokens


@pytest.mark.parametrize(
    ("model", "gpus", "vllm", "method"),
    [
        ("deepseek-r1-70b", "2xRTX4090", "0.8.5", "bitsandbytes"),
        ("deepseek-r1-70b", "2xRTX4090", "0.33.0", None),  # has no bitsandbytes
        ("deepseek-r1-32b", "2xRTX4090", "0.33.0", "fp8"),
        ("deepseek-r1-32b", "2xV100-32GB", "0.33.0", None),  # computes no fp8
        ("gpt-oss-20b", "RTX3080", "0.19.0", None),  # is quantized already
    ],
)
def test_weights_of_fewer_bits_are_advised_before_other_gpus(
    model: str, gpus: str, vllm: str, method: str | None
) -> None:
    args = ["--max-model-len", "8192"]
    report = fit_request(model, gpus=gpus, args=args, vllm=vllm)
    (advice,) = report.advice
    sizes = dict(zip(advice.flags[::2], advice.flags[1::2], strict=True))
    assert sizes.get("--quantization") == method
    assert ("--gpus" in sizes) is (method is None)
    if method:
        tp, pp = (int(sizes.pop(name, 0)) or None for name in ("--tp", "--pp"))
        flags = [word for pair in sizes.items() for word in pair]
        again = fit_request(model, gpus=gpus, tp=tp, pp=pp, args=[*args, *flags], vllm=vllm)
        assert again.plan.verdict == "fits"


def test_another_gpu_is_advised_when_nothing_else_helps() -> None:
    report = fit_request("deepseek-r1-32b", gpus="T4", args=["--max-model-len", "4096"])
    assert report.refused
    assert report.advice[-1].flags[0] == "--gpus"


def test_a_vision_tower_that_is_not_loaded_is_not_counted() -> None:
    both = fit_request("gemma-4-26b", gpus="H100", tp=1).plan.ranks[0].weights_gib
    args = ["--language-model-only"]
    text = fit_request("gemma-4-26b", gpus="H100", tp=1, args=args).plan.ranks[0].weights_gib
    assert both - text == pytest.approx(1.1, abs=0.1)


def test_automatic_length_is_the_longest_that_fits() -> None:
    report = fit_request("gemma-4-31b", gpus="A100", tp=1, args=["--max-model-len", "auto"])
    length = report.plan.settings.max_model_len
    assert 0 < length < 262144
    assert report.plan.longest_context == length
    for asked, fits in ((length, True), (length + 1024, False)):
        args = ["--max-model-len", str(asked)]
        assert fit_request("gemma-4-31b", gpus="A100", tp=1, args=args).plan.fits is fits


def test_fp8_kv_cache_holds_twice_as_much() -> None:
    plain = fit_request("qwen3-8b", gpus="H100", tp=1)
    halved = fit_request("qwen3-8b", gpus="H100", tp=1, args=["--kv-cache-dtype", "fp8"])
    assert halved.plan.kv_cache_tokens == pytest.approx(2 * plain.plan.kv_cache_tokens, rel=1e-3)


def test_unknown_architectures_have_a_wider_margin(tmp_path: Path) -> None:
    known = config_of("Qwen/Qwen3-8B")
    write_config(tmp_path, {**known, "architectures": ["NewForCausalLM"]})
    strange = fit_request(tmp_path, gpus="H100", tp=1)
    plain = fit_request("qwen3-8b", gpus="H100", tp=1)
    assert strange.plan.ranks[0].margin_gib > plain.plan.ranks[0].margin_gib + 1
    assert any("NewForCausalLM" in note for note in strange.plan.notes)


def test_a_newer_vllm_is_planned_by_the_newest_rules_and_said() -> None:
    report = fit_request("qwen3-8b", gpus="H100", tp=1, vllm="0.90.0")
    assert any("newer than the newest version known" in note for note in report.plan.notes)


def test_cpus_have_the_cache_they_are_told_or_four_gib() -> None:
    sites = [Site("a", (CPU,)), Site("b", (CPU,))]
    untold = fit_request("qwen2.5-1.5b", sites=sites, tp=2, vllm="0.32.0+cpu")
    assert untold.plan.verdict == "fits"
    assert any("4 GiB" in note for note in untold.plan.notes)
    env = {"VLLM_CPU_KVCACHE_SPACE": "1"}
    told = fit_request("qwen2.5-1.5b", sites=sites, tp=2, vllm="0.32.0+cpu", env=env)
    assert told.plan.kv_cache_tokens == 74_880
    assert [note for note in told.plan.notes if "CPU" in note] == []
    assert told.plan.settings.batch.requests == 256


def test_more_ranks_than_gpus() -> None:
    with pytest.raises(DoesNotFit, match="there are 2"):
        fit_request("qwen3-8b", gpus="H100", hosts=2, tp=4)


@pytest.mark.parametrize("model", ["no-such-model", "org/unknown", "/no/such/directory"])
def test_models_without_figures_or_files(model: str) -> None:
    with pytest.raises(UsageError) as caught:
        fit_request(model, gpus="H100")
    assert "clusterctl model ls" in (caught.value.hint or "")


def test_the_nearest_names_are_offered() -> None:
    with pytest.raises(UsageError, match=r"did you mean .*qwen3-8b"):
        fit_request("qwen3-9b", gpus="H100")


@pytest.mark.parametrize("hosts", [0, -1, 5000])
def test_numbers_of_hosts_that_make_no_sense(hosts: int) -> None:
    with pytest.raises(UsageError):
        fit_request("qwen3-8b", gpus="H100", hosts=hosts)


def test_no_gpus_at_all() -> None:
    with pytest.raises(DoesNotFit, match="0 free"):
        fit_request("qwen3-8b")


def write_config(directory: Path, config: dict[str, Any]) -> None:
    (directory / "config.json").write_text(json.dumps(config))


def write_shard(file: Path, size: int) -> None:
    header = json.dumps(
        {"__metadata__": {}, "weight": {"dtype": "BF16", "data_offsets": [0, size]}}
    ).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header)


@pytest.mark.parametrize("text", ["", "{", "[]", "version https://git-lfs", "null", "<html>"])
def test_config_files_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        fit_request(tmp_path, gpus="H100")
    assert str(tmp_path) in str(caught.value)


def test_binary_and_missing_config_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot read"):
        read_config(tmp_path)
    assert parse_config("{}") == {}


def test_missing_shards_are_named(tmp_path: Path) -> None:
    write_config(tmp_path, config_of("Qwen/Qwen3-8B"))
    shards = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    weights = {f"layer.{number}": shard for number, shard in enumerate(shards)}
    index = {"metadata": {"total_size": 16}, "weight_map": weights}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert checkpoint_bytes(tmp_path) == 16  # an index alone is a description too
    write_shard(tmp_path / shards[0], 8)
    with pytest.raises(UsageError, match="2 of 3 shards") as caught:
        fit_request(tmp_path, gpus="H100")
    assert shards[2] in str(caught.value)


def test_sizes_from_safetensors_headers(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.safetensors", 1000)
    write_shard(tmp_path / "b.safetensors", 24)
    assert checkpoint_bytes(tmp_path) == 1024
    (tmp_path / "c.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(UsageError, match="not a safetensors file"):
        checkpoint_bytes(tmp_path)


def test_files_that_contradict_the_config_are_said(tmp_path: Path) -> None:
    write_config(tmp_path, config_of("Qwen/Qwen3-8B"))
    write_shard(tmp_path / "model.safetensors", 20 * 2**30)
    report = fit_request(tmp_path, gpus="H100", tp=1)
    assert any("20.00 GiB of tensors" in note for note in report.plan.notes)


def test_a_config_file_by_its_own_path(tmp_path: Path) -> None:
    write_config(tmp_path, config_of("Qwen/Qwen3-8B"))
    by_file = fit_request(tmp_path / "config.json", gpus="H100", tp=1)
    assert by_file.plan.ranks == fit_request("qwen3-8b", gpus="H100", tp=1).plan.ranks


@pytest.mark.parametrize(("gpus", "hosts"), [("RTX3090,H800", 4), ("8xH100", 16), ("2xH200", 1)])
def test_it_takes_a_fraction_of_a_second(gpus: str, hosts: int) -> None:
    """The bar is 0.3 s for the whole command. CPU time: other tests may run beside this one."""
    times = []
    for _ in range(3):
        weight_bytes.cache_clear()
        start = time.process_time()
        fit_request("gemma-4-31b", gpus=gpus, hosts=hosts)
        times.append(time.process_time() - start)
    assert min(times) < 0.2


def test_planning_imports_nothing_heavy() -> None:
    code = (
        "import sys, clusterctl.planning.planner, clusterctl.planning.fit_request;"
        "print([m for m in ('pydantic', 'typer', 'rich', 'httpx2', 'fabric', 'yaml', 'docker')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_errors_are_of_our_own_kind() -> None:
    assert issubclass(DoesNotFit, ClusterctlError)
    assert DoesNotFit.exit_code == 11


def test_a_config_without_model_type_is_named(tmp_path: Path) -> None:
    config = {**config_of("Qwen/Qwen3-8B"), "model_type": "qwen3"}
    file = tmp_path / "config.json"
    for lacks in (False, True):
        if lacks:
            del config["model_type"]
        file.write_text(json.dumps(config))
        notes = fit_request(str(file), gpus="1xH200").notes
        assert any("config.json has no model_type" in note for note in notes) == lacks


def test_a_name_that_no_file_can_have_is_no_model() -> None:
    with pytest.raises(UsageError, match="is not in the catalogue, and there is no such path"):
        fit_request("x" * 5000, gpus="1xH200")
