"""Setups from public reports of 2026: what vLLM said, or did, against the forecast.

The config.json of each model is in field_configs/: from its repository, or written from published
sizes (Qwen3.6 is planned with the config of Qwen3.8 or 3.5 of the same shape). MiniMax-M3's list of
quantized modules is shortened to one expert a layer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterctl.errors import DoesNotFit, UsageError
from clusterctl.models.catalogue import by_alias
from clusterctl.planning.compressed_cache import plan_compressed_cache
from clusterctl.planning.fit_request import FitArguments, load_shape, without_cluster
from clusterctl.planning.hardware import find_gpu
from clusterctl.planning.report import FitReport

CONFIGS = Path(__file__).with_name("field_configs")


@dataclass(frozen=True)
class Start:
    """A setup, and what was reported of it; None: not printed."""

    source: str
    model: str  # a directory of CONFIGS, or an alias
    gpus: str
    vllm: str | None
    tp: int | None
    arguments: str = ""
    weights_gib: float | None = None
    kv_cache_gib: float | None = None
    tokens: int | None = None
    pp: int | None = None

    def report(self) -> FitReport:
        here = CONFIGS / self.model
        model = str(here) if here.is_dir() else self.model
        asked = FitArguments(
            model,
            self.tp,
            self.pp,
            tuple(filter(None, self.gpus.split(";"))),
            vllm=self.vllm,
            arguments=tuple(self.arguments.split()),
        )
        return without_cluster(asked)


# Flags of those reports, with the model's own drafter
_DUAL = (
    "--kv-cache-dtype fp8 --max-num-batched-tokens 8192 --max-num-seqs 2 "
    "--gpu-memory-utilization 0.92 "
    '--speculative-config {"method":"mtp","num_speculative_tokens":3}'
)

# "About" in the reports: computed from the published size of the files.
STARTS = (
    # The reported card has 141 GB: 1487 blocks of 784 tokens, 71 GiB, do not fit into 96 GB.
    Start(
        "vllm-project/vllm#40691", "Qwen3.5-27B", "H20-3e", "0.19.0", 1,
        "--max-model-len 32768 --max-num-seqs 16 --max-num-batched-tokens 16384",
        weights_gib=51.7, tokens=290_864,
    ),
    Start(
        "talos-argocd-proxmox#1995", "Qwen3.8-27B-FP8", "2xRTX 3090", "0.26.0", 2,
        "--max-model-len 131072 --gpu-memory-utilization 0.92 --kv-cache-dtype fp8_e4m3 "
        "--max-num-seqs 2 --max-num-batched-tokens 8192",
        kv_cache_gib=4.99, tokens=302_921,
    ),
    Start(
        "noonghunna/club-3090#612", "Qwen3.6-35B-A3B-NVFP4", "RTX 5090", "0.24.0", 1,
        "--max-model-len 131072 --kv-cache-dtype fp8 --max-num-batched-tokens 8192 "
        "--max-num-seqs 1",
        kv_cache_gib=5.98, tokens=567_978,
    ),
    Start(
        "vllm-project/recipes, NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.yaml",
        "Nemotron-3-Nano-30B-A3B-BF16", "H100", "0.20.0", 1, weights_gib=59,
    ),
    Start(
        "vllm-project/recipes, Llama3.3", "Llama-3.1-70B-Instruct-FP8", "H200", None, 1,
        weights_gib=68,
    ),
    Start(
        "vllm-project/recipes#678", "MiniMax-M3-NVFP4", "4xRTX PRO 6000", None, 4,
        "--max-model-len 131072", weights_gib=58,
    ),
    Start(
        "vllm-project/vllm#6746", "Meta-Llama-3.1-405B-Instruct-FP8", "8xH100", "0.5.3", 8,
        weights_gib=57.75,
    ),
    Start(
        "vllm-project/recipes, Kimi-K2-Thinking.yaml", "Kimi-K2-Thinking", "8xH200", "0.11.0", 8,
        tokens=715_072,
    ),
    Start(
        "vllm-project/recipes, Kimi-K2-Thinking.yaml", "Kimi-K2-Thinking", "8xH200", "0.11.0", 8,
        "--decode-context-parallel-size 8", tokens=5_721_088,
    ),
    Start(
        "vllm-project/vllm#13061", "deepseek-r1-14b", "2xRTX 4090", "0.7.2", 2,
        "--gpu-memory-utilization 0.98 --max-model-len 65536", tokens=81_536,
    ),
    Start(
        "vllm-project/vllm#43308", "gemma-4-31B-it-AWQ-4bit", "A100", "0.20.0", 1,
        "--gpu-memory-utilization 0.9", tokens=55_000,
    ),
    Start(
        "vllm-project/vllm#43308", "gemma-4-31B-it-AWQ-4bit", "A100", "0.21.0", 1,
        "--gpu-memory-utilization 0.9", tokens=525_000,
    ),
    # Two RTX 5090 by the same reporter: the cache is in bf16 by default.
    Start(
        "vllm-project/recipes#810", "Qwen3.8-27B-FP8", "2xRTX 5090", "0.27.0", 2,
        "--max-model-len 262144", weights_gib=14.28, tokens=377_456,
    ),
    Start(
        "noonghunna/club-3090#594", "Qwen3.8-27B-FP8", "2xRTX 3090", "0.24.0", 2,
        f"--max-model-len 262144 {_DUAL}", kv_cache_gib=5.33, tokens=300_220,
    ),
    Start(
        "noonghunna/club-3090#1139", "Qwen3.8-27B-FP8", "2xRTX 3090", "0.27.1", 2,
        f"--max-model-len 262144 {_DUAL}", kv_cache_gib=4.76, tokens=270_930,
    ),
    Start(
        "noonghunna/club-3090#1087", "Qwen3.8-27B-FP8", "2xRTX 5090", "0.27.1", 2,
        f"--max-model-len 262144 {_DUAL}", kv_cache_gib=12.24,
    ),
    Start(
        "noonghunna/club-3090#849", "qwen3.6-27b-nvfp4", "2xRTX 5090", "0.25.1", 2,
        f"--max-model-len 262144 {_DUAL} --gpu-memory-utilization 0.85",
        kv_cache_gib=14.68, tokens=841_541,
    ),
    Start(
        "noonghunna/club-3090#858", "Qwen3.6-35B-A3B-NVFP4", "2xRTX 5090", "0.25.1", 2,
        "--max-model-len 262144 --kv-cache-dtype fp8 --max-num-batched-tokens 8192 "
        "--max-num-seqs 1 --gpu-memory-utilization 0.92",
        kv_cache_gib=16.58, tokens=3_292_687,
    ),
    Start(
        "vllm-project/vllm#21348", "qwen3-235b-a22b-fp8", "4xH100", "0.9.2", 4,
        kv_cache_gib=8.11, tokens=178_880,
    ),
    Start(
        "vllm-project/vllm#27508", "gpt-oss-120b", "H100", "0.11.0", 1,
        "--gpu-memory-utilization 0.95 --max-num-batched-tokens 1024", kv_cache_gib=1.71,
    ),
    Start(
        "vllm-project/vllm#23278", "gpt-oss-120b", "H100", "0.10.1", 1, weights_gib=65.97,
    ),
)  # fmt: skip

WEIGHTS_BAR = 0.025
TOKENS_BAR = 0.10


@pytest.mark.parametrize("start", STARTS, ids=lambda start: f"{start.source} {start.model}")
def test_figures_that_vllm_reported(start: Start) -> None:
    found = start.report().plan
    if start.weights_gib:
        weights = max(rank.weights_gib for rank in found.ranks)
        assert weights == pytest.approx(start.weights_gib, rel=WEIGHTS_BAR)
    if start.kv_cache_gib:
        assert found.ranks[0].kv_cache_gib == pytest.approx(start.kv_cache_gib, rel=TOKENS_BAR)
    if start.tokens:
        assert found.kv_cache_tokens == pytest.approx(start.tokens, rel=TOKENS_BAR)


def test_states_of_a_hybrid_are_exact_given_the_size_of_its_cache() -> None:
    """4.99 and 5.98 GiB in the logs of #1995 and #612: 208 blocks of 1568 tokens, 2.31 requests."""
    for start, size, tokens, requests in (
        (STARTS[1], "4.99", 302_921, 2.3111),
        (STARTS[2], "5.98", 567_978, 4.3333),
    ):
        given = f"{start.arguments} --kv-cache-memory-bytes {int(float(size) * 2**30)}"
        found = Start(
            start.source, start.model, start.gpus, start.vllm, start.tp, given
        ).report().plan  # fmt: skip
        assert found.kv_cache_tokens == tokens
        assert found.max_concurrency == pytest.approx(requests, abs=1e-4)


def test_more_requests_than_blocks_for_their_states_do_not_start() -> None:
    """recipes#551: 856 blocks on an H100, and 1024 requests by default."""
    usual = "--gpu-memory-utilization 0.95"
    model = ("Qwen3.8-27B-FP8", "H100", "0.21.0", 1)
    refused = Start("recipes#551", *model, f"{usual} --max-num-seqs 1024").report()
    assert refused.refused
    assert refused.problems[0].name == "cuda-graph-mamba"
    assert refused.problems[0].hint == "--max-num-seqs 512"
    assert refused.plan.state_blocks
    assert sum(refused.plan.state_blocks) / 2 == pytest.approx(856, rel=0.04)

    lowered = Start("recipes#551", *model, usual).report()
    assert lowered.plan.verdict == "fits"
    assert lowered.plan.settings.batch.requests == 512
    assert any("--max-num-seqs 512" in note for note in lowered.notes)


def test_experts_kept_whole_need_no_width_that_divides() -> None:
    """recipes, MiniMax-M2.7.yaml: TP 8 starts with expert parallel, and not without."""
    model = ("minimax-m2.7", "8xH100", None, 8)
    assert Start("recipes", *model, "--enable-expert-parallel").report().plan.verdict == "fits"
    with pytest.raises(UsageError, match="does not divide the fp8 scale blocks") as refused:
        Start("recipes", *model).report()
    assert refused.value.hint
    assert "--ep with --tp 8" in refused.value.hint


def test_a_context_cannot_be_divided_among_more_ranks_than_share_a_head() -> None:
    with pytest.raises(UsageError, match="no more than these can divide the context"):
        Start("-", "qwen3-32b", "8xH200", None, 8, "--decode-context-parallel-size 8").report()
    with pytest.raises(UsageError, match="does not divide --tp 8"):
        Start(
            "-", "Kimi-K2-Thinking", "8xH200", None, 8, "--decode-context-parallel-size 3"
        ).report()


@pytest.mark.parametrize(
    ("model", "arguments", "text"),
    [
        ("qwen3-32b", "--prefill-context-parallel-size 2", "with latent attention"),
        ("kimi-k2.5", "--prefill-context-parallel-size 2", "no prompts of models that read images"),
        (
            "deepseek-v3.2",
            "--prefill-context-parallel-size 2 --decode-context-parallel-size 4",
            "vLLM takes one of 1, 2, 8",
        ),
        ("deepseek-v3.2", "--prefill-context-parallel-size 4", "needs 16 GPUs"),
    ],
)
def test_sizes_of_divided_prompts_that_vllm_refuses(model: str, arguments: str, text: str) -> None:
    """Read in vLLM 0.33: config/parallel.py and v1/worker/gpu/pcp_manager.py."""
    with pytest.raises((UsageError, DoesNotFit), match=text):
        Start("-", model, "8xB200", "0.33.0", 4, arguments).report()


def test_ranks_that_divide_prompts_hold_the_whole_cache() -> None:
    given = f"--kv-cache-memory-bytes {8 * 2**30}"
    alone = Start("-", "deepseek-v3.2", "8xB200", "0.33.0", 4, given).report()
    divided = f"{given} --prefill-context-parallel-size 2"
    both = Start("-", "deepseek-v3.2", "8xB200", "0.33.0", 4, divided).report()
    assert both.plan.kv_cache_tokens == alone.plan.kv_cache_tokens
    assert both.to_json()["verdict"] == "unproven"


def test_an_indexer_keeps_a_key_of_each_token() -> None:
    """LMCache#3339: a cache of 132 bytes a token in each layer, beside the latent of 1152."""
    found = Start("LMCache#3339", "GLM-5-FP8", "8xH200", "0.21.0", 8).report().plan
    left = found.ranks[0].kv_cache_gib * 2**30
    assert found.kv_cache_tokens == pytest.approx(left / (78 * (1152 + 132)), rel=0.001)


def test_what_was_not_compared_with_vllm_is_no_verdict() -> None:
    report = Start("-", "qwen3-32b", "H100", None, 1, "--kv-cache-dtype nvfp4").report()
    document = report.to_json()
    assert document["verdict"] == "unproven"
    assert document["fits"] is None
    low, high = document["kv_cache_tokens_range"]
    assert low < document["kv_cache_tokens"] < high
    assert not report.refused
    assert "vLLM's own answer, where hosts have the model: clusterctl fit qwen3-32b" in report.notes


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [("--gpu-memory-util=0.45", 123_792), ("--gpu-memory-utilization=0.45", 123_792)],
)
def test_the_beginning_of_a_flag_counts_as_the_flag(arguments: str, tokens: int) -> None:
    """intel/llm-scaler#84"""
    found = Start("-", "qwen3-8b", "H100", "0.33.0", 1, arguments).report().plan
    assert found.kv_cache_tokens == tokens


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("B300", 267),
        ("NVIDIA B300 SXM6 AC", 267),
        ("H20-3e", 139.8),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 94.97),
        ("NVIDIA RTX 6000 Ada Generation", 47.4),
        ("Quadro RTX 6000", 23.5),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", 15.7),
        ("NVIDIA GH200 480GB", 94.5),
    ],
)
def test_gpus_are_known_by_the_names_that_nvidia_smi_prints(name: str, gib: float) -> None:
    found = find_gpu(name)
    assert found
    assert found.memory_gib == pytest.approx(gib, rel=0.01)


def test_faults_of_releases_with_stages_are_foreseen() -> None:
    """vllm#32105: 71.16 GiB for the whole model against 28.57 of a stage; vllm#41287."""
    usual = "--gpu-memory-utilization 0.925 --max-num-seqs 128 --max-model-len 202752"
    staged = Start("vllm#32105", "GLM-4.7-FP8", "8xH100", "0.15.0", 1, usual, pp=8).report()
    assert staged.refused
    assert staged.plan.longest_context == pytest.approx(81_392, rel=0.4)
    newer = Start("vllm#32105", "GLM-4.7-FP8", "8xH100", "0.17.0", 1, usual, pp=8).report()
    assert newer.plan.verdict == "fits"

    over_hosts = Start("vllm#41287", "qwen3-32b", "8xH100;" * 3, "0.19.1", 8, pp=3)
    assert over_hosts.report().refused
    assert over_hosts.report().problems[0].name == "stages-over-hosts"
    named_as_one = Start("vllm#41287", "qwen3-32b", "8xH100,8xH100,8xH100", "0.19.1", 8, pp=3)
    assert named_as_one.report().refused


def test_memory_that_is_shared_with_the_host_has_a_wide_margin() -> None:
    """vllm#46462: graph profiles of 6.24 and of -4.74 GiB on a GB10; 5.16 GiB were left."""
    usual = "--gpu-memory-utilization 0.62"
    found = Start("vllm#46462", "Qwen3.5-35B-A3B", "GB10", "0.23.0", 1, usual).report()
    rank = found.plan.ranks[0]
    assert rank.kv_cache_gib - rank.margin_gib < 5.16 < rank.kv_cache_gib + rank.margin_gib
    assert found.plan.verdict == "may not fit"
    assert "the host changes" in found.problems[0].text


@pytest.mark.parametrize("name", ["./Qwen3-8B-Q4_K_M.gguf", "unsloth/Qwen3-8B-GGUF:Q4_K_M"])
def test_formats_that_are_not_planned_are_named(name: str) -> None:
    with pytest.raises(UsageError, match="whose memory cannot be planned"):
        without_cluster(FitArguments(name, gpus="RTX 4090"))


def test_layers_may_be_counted_by_the_list_of_their_kinds() -> None:
    report = Start("-", "Nemotron-3-Ultra-550B", "8xB200", None, 8).report()
    assert report.plan.ranks[0].weights_gib == pytest.approx(130.9, rel=0.005)


def test_compressed_attention_is_packed_as_vllm_packs_it() -> None:
    """DeepSeek-V4-Flash: vLLM 0.33 has blocks of 1,002,240 bytes in five groups, of which a request
    of 1,048,576 tokens holds 10,778 with 16,384 tokens in flight (13.92 requests in 140 GiB)."""
    shape = load_shape(CONFIGS / "DeepSeek-V4-Flash")
    found = plan_compressed_cache(shape.layers, 1)
    assert found.block_bytes(0, len(shape.layers)) == 1_002_240
    assert found.blocks_per_request(1_048_576, 16_384) == 10_778


def test_compressed_attention_in_the_field() -> None:
    """vllm#51454: 20.43 requests of the whole context; #44376: LLM(), which takes 16384 tokens a
    step, has 5.44 GiB left of 6.66 that 30000 tokens need, and 13,528 is the longest."""
    usual = (
        "--gpu-memory-utilization 0.95 --kv-cache-dtype fp8 --block-size 256 "
        "--max-num-seqs 256 --max-num-batched-tokens 8192"
    )
    model = "DeepSeek-V4-Flash"
    eight = Start("vllm#51454", model, "8xB200", "0.25.0", 8, usual).report()
    assert eight.plan.max_concurrency == pytest.approx(20.43, rel=0.01)
    replicas = f"{usual} --data-parallel-size 8 --enable-expert-parallel"
    each = Start("vllm#51454", model, "8xB200", "0.25.0", 1, replicas).report()
    assert 8 * each.plan.max_concurrency == pytest.approx(156.9, rel=0.01)
    usual = (
        "--gpu-memory-utilization 0.95 --kv-cache-dtype fp8 --block-size 256 "
        "--max-model-len 30000 --max-num-batched-tokens 16384 --enable-expert-parallel"
    )
    two = Start("vllm#44376", model, "2xGH200-96GB", "0.22.0", 2, usual).report()
    assert two.plan.ranks[0].weights_gib == pytest.approx(73.76, rel=0.005)
    assert two.plan.ranks[0].kv_cache_gib == pytest.approx(5.44, rel=0.05)
    assert two.plan.longest_context == pytest.approx(13_528, rel=0.1)
    assert not two.plan.fits
    assert two.to_json()["verdict"] == "unproven"
    assert not two.refused


def test_a_drafter_of_the_model_takes_weights_and_cache() -> None:
    usual = "--gpu-memory-utilization 0.9 --max-num-seqs 64"
    plain = Start("-", "Qwen3.8-27B-FP8", "H100", "0.33.0", 1, usual).report()
    spec = '{"method":"mtp","num_speculative_tokens":2}'
    drafted = Start(
        "-", "Qwen3.8-27B-FP8", "H100", "0.33.0", 1, f"{usual} --speculative-config {spec}"
    ).report()  # fmt: skip
    more = drafted.plan.ranks[0].weights_gib - plain.plan.ranks[0].weights_gib
    assert more == pytest.approx(0.45, abs=0.1)
    assert drafted.plan.kv_cache_tokens < plain.plan.kv_cache_tokens
    assert drafted.to_json()["verdict"] == "fits"  # Proven with the drafter, too


def test_what_the_next_release_drops_is_told() -> None:
    report = Start("-", "qwen3-8b", "H100", "0.33.0", 1, "--log-config-file x.json").report()
    assert [one.name for one in report.problems if not one.fatal] == ["deprecated-flag"]
    assert not report.refused


def test_many_requests_with_states_may_not_start() -> None:
    """recipes#831: 939 blocks on an RTX PRO 6000 where the sum says 1141, and 1024 requests."""
    report = Start(
        "recipes#831", "Qwen3.8-27B-FP8", "RTX PRO 6000", "0.27.0", 1, "--max-num-seqs 1024"
    ).report()
    assert report.plan.verdict == "may not fit"
    assert report.plan.state_blocks
    assert report.plan.state_blocks[0] < 1024 < report.plan.state_blocks[1]


def test_the_margin_on_unified_memory_is_as_wide_as_was_seen(tmp_path: Path) -> None:
    """eugr/spark-vllm-docker#396: 22.5 GiB for the cache and 23.25 needed; 28.74 with 0.85."""
    entry = by_alias("minimax-m2.7")
    assert entry
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    (tmp_path / "config.json").write_text(json.dumps({**entry.config, "quantization_config": awq}))
    usual = "--max-model-len 196608 --gpu-memory-utilization"
    for given, verdict in (("0.8", "may not fit"), ("0.85", "fits")):
        flags = f"{usual} {given}"
        start = Start("spark#396", str(tmp_path), "GB10;GB10", "0.29.1", 2, flags)
        assert start.report().plan.verdict == verdict
