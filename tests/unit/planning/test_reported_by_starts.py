"""What vLLM's log says beside the prediction, and what hosts remember of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from clusterctl.errors import Unreachable
from clusterctl.planning.hardware import CPU, parse_gpus
from clusterctl.planning.memory import FitPlan
from clusterctl.planning.overheads import Measured
from clusterctl.planning.placement import Site
from clusterctl.planning.reported import (
    WANTED,
    Reported,
    keep,
    lessons,
    measured_file,
    measured_in,
    outcome_of,
    read_reported,
    with_lessons,
)
from tests.fakes.fit_requests import fit_request
from tests.fakes.transport import FakeTransport, starts

IMAGE = "vllm/vllm-openai:v0.19.0"
GPT_OSS = "openai/gpt-oss-20b"

V1 = """\
(APIServer pid=6539) INFO 04-18 20:22:57 [utils.py:233] non-default args: {'max_model_len': 128}
(EngineCore pid=1) INFO 04-18 20:20:40 [gpu_worker.py:436] Available KV cache memory: 1.0 GiB
(EngineCore pid=1) INFO 04-18 20:20:40 [kv_cache_utils.py:1319] GPU KV cache size: 16 tokens
(APIServer pid=6539) INFO 04-18 20:22:57 [utils.py:233] non-default args: {'max_model_len': 131072}
(EngineCore pid=6686) INFO 04-18 20:24:18 Model loading took 13.72 GiB memory and 62.3 seconds
(EngineCore pid=6686) INFO 04-18 20:24:40 Estimated CUDA graph memory: 0.42 GiB total
(EngineCore pid=6686) INFO 04-18 20:24:40 Available KV cache memory: 36.56 GiB
(EngineCore pid=6686) INFO 04-18 20:24:40 GPU KV cache size: 798,624 tokens
(EngineCore pid=6686) INFO Maximum concurrency for 131,072 tokens per request: 11.99x
(EngineCore pid=6686) INFO 04-18 20:24:50 Graph capturing finished in 10 secs, took 0.69 GiB
"""

RANKS = """\
(Worker_TP0 pid=7) INFO Model loading took 1.45 GiB memory and 5 seconds
(Worker_TP1 pid=8, ip=10.0.0.2) INFO Model loading took 1.45 GiB memory and 5 seconds
(Worker_TP0 pid=7) INFO Available KV cache memory: 8.60 GiB
(Worker_TP1 pid=8, ip=10.0.0.2) INFO Available KV cache memory: 9.93 GiB
(EngineCore pid=5) INFO GPU KV cache size: 644,304 tokens, Maximum concurrency for 128 tokens \
per request: 5,033.62x
"""

V0 = """\
INFO 03-23 20:10:09 api_server.py:838] vLLM API server version 0.7.1
INFO 03-23 20:10:29 model_runner.py:1116] Loading model weights took 14.2717 GB
INFO worker.py:266] the rest of the memory reserved for KV Cache is 12.80GiB.
INFO executor_base.py:111] # CUDA blocks: 14984, # CPU blocks: 4681
INFO executor_base.py:116] Maximum concurrency for 2048 tokens per request: 117.06x
INFO model_runner.py:1563] Graph capturing finished in 18 secs, took 0.80 GiB
"""

V0_LONG_BLOCKS = """\
INFO api_server.py:840] args: Namespace(model='m', block_size=32)
INFO executor_base.py:111] # CUDA blocks: 40269, # CPU blocks: 18724
INFO executor_base.py:116] Maximum concurrency for 128 tokens per request: 10067.25x
"""

CPU_LOG = """\
INFO [utils.py:1] non-default args: {}
(EngineCore pid=9) INFO CPU KV cache size: 74,880 tokens, Maximum concurrency for 32,768 tokens \
per request: 2.29x
"""


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (V1, Reported(13.72, 36.56, 0.42, 798_624, 11.99)),
        (RANKS, Reported(1.45, 8.60, None, 644_304, 5033.62)),
        (V0, Reported(14.2717, 12.80, 0.80, 239_744, 117.06)),
        (V0_LONG_BLOCKS, Reported(None, None, None, 40269 * 32, 10067.25)),
        (CPU_LOG, Reported(None, None, None, 74_880, 2.29)),
        ("", Reported()),
    ],
    ids=["0.19", "ranks", "0.7", "0.7 long blocks", "cpu", "nothing"],
)
def test_figures_of_the_last_start(text: str, reported: Reported) -> None:
    assert read_reported(text) == reported


def test_ranks_with_other_layers_have_no_weights_in_common() -> None:
    text = "Model loading took 12.4 GiB memory\nModel loading took 48.6 GiB memory\n"
    assert read_reported(text).weights_gib is None


def lab_plan() -> FitPlan:
    sites = [Site("gpu1", (CPU,)), Site("gpu2", (CPU,))]
    env = {"VLLM_CPU_KVCACHE_SPACE": "1"}
    return fit_request("qwen2.5-1.5b", sites=sites, tp=2, vllm="0.32.0+cpu", env=env).plan


def gpt_oss(measured: tuple[tuple[int, Measured], ...] = (), *flags: str) -> FitPlan:
    site = Site("gpu1", parse_gpus("A100"), measured=measured)
    args = ["--max-model-len", "131072", "--gpu-memory-utilization", "0.65", *flags]
    return fit_request("gpt-oss-20b", sites=[site], tp=1, vllm="0.19.0", args=args).plan


def test_prediction_and_report_stand_side_by_side() -> None:
    head = FakeTransport()
    head.on(starts("sh", "-c"), stdout=CPU_LOG)
    outcome = outcome_of(head, "lab", "qwen", lab_plan())
    assert outcome is not None
    assert outcome.sentence == "predicted 74,880 tokens, vLLM says 74,880"
    assert [one["name"] for one in outcome.to_json()] == ["kv_cache_tokens", "max_concurrency"]
    assert head.calls[0].argv[5] == "/var/log/clusterctl/lab/qwen.log"
    assert len(head.calls) == 1


def test_an_old_release_has_its_kv_cache_beside_the_prediction_too() -> None:
    """The log is read through the filter that the host reads it with."""
    log = (
        "INFO api_server.py:838] vLLM API server version 0.7.2\n"
        "INFO executor_base.py:110] # CUDA blocks: 40269, # CPU blocks: 18724\n"
        "INFO executor_base.py:115] Maximum concurrency for 128 tokens per request: 5033.62x\n"
    )
    read = "".join(line for line in log.splitlines(keepends=True) if re.search(WANTED, line))
    head = FakeTransport()
    head.on(starts("sh", "-c"), stdout=read)
    plan = fit_request("qwen2.5-1.5b", gpus="RTX3090", tp=1, vllm="0.7.2").plan
    outcome = outcome_of(head, "lab", "qwen", plan)
    assert outcome is not None
    assert "vLLM says 644,304" in outcome.sentence


def test_a_difference_over_one_percent_is_said() -> None:
    head = FakeTransport()
    head.on(starts("sh", "-c"), stdout=CPU_LOG.replace("74,880", "60,000"))
    outcome = outcome_of(head, "lab", "qwen", lab_plan())
    assert outcome is not None
    assert outcome.sentence.endswith("vLLM says 60,000 (+24.8%)")


def test_a_log_that_says_nothing_or_cannot_be_read_is_no_failure() -> None:
    silent = FakeTransport()
    silent.on(starts("sh", "-c"), stdout="")
    assert outcome_of(silent, "lab", "qwen", lab_plan()) is None
    assert outcome_of(FakeTransport(down=Unreachable("gone")), "lab", "qwen", lab_plan()) is None


def test_what_a_start_teaches_is_known_to_the_next_plan_of_the_same_image_and_tp() -> None:
    learned = lessons(gpt_oss(), read_reported(V1), IMAGE, ["gpu1", "gpu1"])
    data = with_lessons(None, learned)
    assert data is not None
    found = measured_in(data, IMAGE, GPT_OSS)
    again = gpt_oss(found["gpu1", "A100-80GB"])
    assert again.kv_cache_tokens == pytest.approx(798_624, rel=0.001)
    assert measured_in(data, "vllm/vllm-openai:v0.20.0", GPT_OSS) == {}
    assert with_lessons(data, learned) is None
    other = [{**learned[0], "tp": 2}]
    both = with_lessons(data, other)
    assert both is not None
    assert [tp for tp, _ in measured_in(both, IMAGE, GPT_OSS)["gpu1", "A100-80GB"]] == [1, 2]


def test_what_one_model_teaches_stays_when_another_starts() -> None:
    plan = gpt_oss()
    first = lessons(plan, read_reported(V1), IMAGE, ["gpu1"])
    later = lessons(replace(plan, model="other"), Reported(13.72, 36.2, 1.5), IMAGE, ["gpu1"])
    both = with_lessons(with_lessons(None, first), later)

    def known(model: str) -> Measured:
        return dict(measured_in(both, IMAGE, model)["gpu1", "A100-80GB"])[1]

    assert known(GPT_OSS).runtime_gib == first[0]["runtime_gib"]
    assert known("other").runtime_gib == later[0]["runtime_gib"]
    assert measured_in(both, IMAGE, "third") == {}, "a start teaches of its own model alone"


def test_what_a_start_teaches_does_not_count_with_other_flags() -> None:
    """Forecasts of other settings were worse with it than without."""
    data = with_lessons(None, lessons(gpt_oss(), read_reported(V1), IMAGE, ["gpu1"]))
    known = measured_in(data, IMAGE, GPT_OSS)["gpu1", "A100-80GB"]
    flags = ("--max-num-seqs", "17")
    assert gpt_oss(known).ranks != gpt_oss().ranks
    assert gpt_oss(known, *flags).ranks == gpt_oss((), *flags).ranks


def test_a_start_teaches_of_the_hosts_where_its_ranks_are() -> None:
    found = lessons(gpt_oss(), read_reported(V1), IMAGE, ["gpu2"])
    assert [entry["host"] for entry in found] == ["gpu2"]


def test_nothing_is_learned_where_one_figure_is_not_every_ranks() -> None:
    assert lessons(lab_plan(), read_reported(CPU_LOG), IMAGE, ["gpu1"]) == []
    staged = fit_request("qwen3-8b", gpus="H100", hosts=2, pp=2).plan
    assert lessons(staged, read_reported(V1), IMAGE, ["gpu1"]) == []
    unlike = fit_request("qwen3-8b", gpus="H100,H200", tp=2).plan
    assert lessons(unlike, read_reported(V1), IMAGE, ["gpu1"]) == []


def test_a_gpu_that_something_else_used_teaches_nothing() -> None:
    busy = Reported(13.72, 20.0, 0.42, None, None)
    assert lessons(gpt_oss(), busy, IMAGE, ["gpu1"]) == []


@pytest.mark.parametrize(
    "data", [None, b"", b"[]", b"{", b'{"starts": 3}', b'{"starts": [{"image": "i"}, 7]}', b"\xff"]
)
def test_a_file_that_is_none_of_ours_is_as_good_as_none(data: bytes | None) -> None:
    assert measured_in(data, "i", "m") == {}


def test_it_is_kept_on_the_head_and_a_failure_to_do_so_passes() -> None:
    head = FakeTransport()
    keep(head, measured_file("demo"), b'{"starts": []}')
    assert json.loads(head.files["/var/lib/clusterctl/measured/demo/measured.json"][0]) == {
        "starts": []
    }
    keep(head, measured_file("other"), None)
    assert len(head.files) == 1
    keep(FakeTransport(down=Unreachable("gone")), measured_file("demo"), b"{}")
