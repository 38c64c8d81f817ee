"""vLLM arguments, GPU names and version strings as people write them."""

from __future__ import annotations

import pytest

from clusterctl.errors import Problems, UsageError
from clusterctl.planning.hardware import (
    find_gpu,
    gpu_of_host,
    known_gpus,
    parse_gpus,
)
from clusterctl.planning.options import (
    AUTO_LENGTH,
    ServeOptions,
    default_batch,
    parse_length,
    parse_options,
)
from clusterctl.planning.rules import NEWEST, require_served, rules_for


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("131072", 131072), ("256K", 262144), ("256k", 256000), ("25.6k", 25600), ("1M", 2**20),
     ("auto", AUTO_LENGTH), ("-1", AUTO_LENGTH)],
)  # fmt: skip
def test_lengths_as_vllm_reads_them(text: str, tokens: int) -> None:
    assert parse_length(text) == tokens


@pytest.mark.parametrize("text", ["", "12T", "K", "1.5K", "0", "-5", "١٢٨", "1e5"])
def test_lengths_that_vllm_refuses(text: str) -> None:
    if text == "١٢٨":  # digits of another script are digits to Python, and to vLLM
        assert parse_length(text) == 128
        return
    with pytest.raises(ValueError, match=r"tokens|more than"):
        parse_length(text)


def test_everything_that_matters_is_read() -> None:
    options = parse_options(
        [
            "--max-model-len",
            "32K",
            "--gpu_memory_utilization=0.8",
            "--max-num-seqs",
            "64",
            "-q",
            "fp8",
            "--enforce-eager",
            "--kv-cache-dtype",
            "fp8",
            "-tp",
            "4",
            "--no-async-scheduling",
            "--port",
            "8000",
            "--trust-remote-code",
        ]
    )
    assert options == ServeOptions(
        max_model_len=32768, utilization=0.8, max_num_seqs=64, quantization="fp8",
        enforce_eager=True, kv_cache_dtype="fp8", tp=4, async_scheduling=False,
    )  # fmt: skip


def test_the_environment_of_vllm_counts() -> None:
    env = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_PP_LAYER_PARTITION": "13,51"}
    options = parse_options([], env)
    assert options.kv_cache_bytes == 2 * 2**30
    assert options.partition == (13, 51)


@pytest.mark.parametrize(
    "arguments",
    ["--gpu-memory-utilization 1.2", "--gpu-memory-utilization 0", "--gpu-memory-utilization nan",
     "--gpu-memory-utilization x", "--max-model-len many", "--max-num-seqs 0", "--dtype int3",
     "--kv-cache-dtype fp2", "--cpu-offload-gb -1", "--max-model-len", "--max-num-seqs 1 2"],
)  # fmt: skip
def test_values_that_vllm_refuses(arguments: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_options(arguments.split())
    assert arguments.split()[0] in str(caught.value)


def test_all_refused_values_come_at_once() -> None:
    with pytest.raises(Problems) as caught:
        parse_options(["--gpu-memory-utilization", "1.2", "--max-model-len", "x"])
    assert len(caught.value.errors) == 2


@pytest.mark.parametrize(
    ("name", "gib"),
    [("NVIDIA GeForce RTX 3090", 23.69), ("rtx3090", 23.69), ("3090", 23.69), ("H200", 139.80),
     ("NVIDIA A100-SXM4-80GB", 79.25), ("NVIDIA A100 80GB PCIe", 79.25), ("Tesla T4", 14.58),
     ("NVIDIA H100 80GB HBM3", 79.19), ("NVIDIA H800", 79.19), ("Tesla V100-SXM2-32GB", 31.74),
     ("NVIDIA A100-SXM4-40GB", 39.50), ("nvidia a800-sxm4-80gb", 79.33)],
)  # fmt: skip
def test_gpus_by_the_names_in_use(name: str, gib: float) -> None:
    found = find_gpu(name)
    assert found is not None
    assert found.memory_gib == gib


def test_a_host_says_more_than_a_name() -> None:
    assert gpu_of_host("NVIDIA GeForce RTX 3080", 20480).memory_gib == pytest.approx(19.58)
    assert gpu_of_host("NVIDIA GeForce RTX 3080", 10240).memory_gib == pytest.approx(9.77)
    unknown = gpu_of_host("NVIDIA X1000", 49152)
    assert unknown.assumed
    assert unknown.memory_gib == pytest.approx(48 * 0.985)


@pytest.mark.parametrize(
    ("text", "names"),
    [("2xH200", ["H200", "H200"]), ("RTX3090,H800", ["RTX 3090", "H800"]),
     ("2*L4, T4", ["L4", "L4", "T4"]), ("3 x RTX 4090", ["RTX 4090"] * 3)],
)  # fmt: skip
def test_lists_of_gpus(text: str, names: list[str]) -> None:
    assert [gpu.name for gpu in parse_gpus(text)] == names


def test_a_gpu_with_its_own_size() -> None:
    assert parse_gpus("MyGPU:47.5")[0].memory_gib == 47.5
    assert parse_gpus("2xH200:100GiB")[1].memory_gib == 100
    assert parse_gpus("H200:100")[0].bandwidth == 4800


@pytest.mark.parametrize("text", ["H1000", "", "0xH200", "2x", "H200,", "H200:0", "H200:-5"])
def test_gpus_that_are_not_understood(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_gpus(text)
    assert "2xH200" in (caught.value.hint or "")


def test_every_gpu_of_the_catalogue_has_a_source_and_is_found_by_its_name() -> None:
    for gpu in known_gpus():
        assert gpu.source
        assert find_gpu(gpu.name) is gpu
        assert 0 < gpu.memory_gib < 300


@pytest.mark.parametrize(
    ("version", "utilization", "sampler", "charged"),
    [("0.7.2", 0.9, "sort", False), ("0.8.5.post1", 0.9, "sort", False),
     ("0.16.0", 0.9, "sort", False), ("0.17.0", 0.9, "pivot", False),
     ("0.19.0", 0.9, "pivot", False), ("0.20.0", 0.92, "pivot", False),
     ("0.21.0", 0.92, "pivot", True), ("v0.33.0", 0.92, "pivot", True)],
)  # fmt: skip
def test_rules_change_with_the_version(
    version: str, utilization: float, sampler: str, charged: bool
) -> None:
    rules = rules_for(version)
    found = (rules.utilization, rules.sampler, rules.charges_graphs(second_runner=False))
    assert found == (utilization, sampler, charged)
    assert rules.notes == ()


@pytest.mark.parametrize("version", ["0.99.0", "1.4", None, "nightly"])
def test_unknown_versions_use_the_newest_rules_and_say_so(version: str | None) -> None:
    rules, newest = rules_for(version), rules_for(".".join(map(str, NEWEST)))
    assert rules.notes
    assert (rules.utilization, rules.sampler, rules.in_flight_batches) == (
        newest.utilization, newest.sampler, newest.in_flight_batches,
    )  # fmt: skip


@pytest.mark.parametrize("version", ["0.6.6.post1", "vllm/vllm-openai:v0.6.3"])
def test_a_version_from_before_the_oldest_is_planned_for_and_not_served(version: str) -> None:
    (note,) = rules_for(version).notes
    assert "the rules of 0.7.0 apply" in note
    with pytest.raises(UsageError, match=r"is older than 0\.7\.0, the oldest release"):
        require_served(version)


def test_batch_defaults_depend_on_the_gpu_of_the_head() -> None:
    a100, h100, t4, b200 = (parse_gpus(name)[0] for name in ("A100", "H100", "T4", "B200"))
    new = rules_for("0.33.0")
    assert default_batch(new, a100, 4096).tokens == 2048
    assert default_batch(new, h100, 4096).requests == 1024
    assert default_batch(new, t4, 4096).requests == 256
    assert default_batch(new, b200, 4096).tokens == 16384
    assert default_batch(rules_for("0.8.5"), a100, 4096).tokens == 8192
    assert default_batch(rules_for("0.7.2"), h100, 32768).tokens == 32768
