"""The logs in five published deployment notes, as a start of `serve` would read them: the figures,
the stages in their order, what is worth a note, and the causes of the failures in them.

000 gpt-oss and Gemma 4 on an A100 (vLLM 0.19.0), 001 R1-Distill-Qwen-7B on a V100 (0.7.1), 002
Qwen2.5-1.5B on two GPUs (0.7.2), 003 R1-Distill-Qwen-32B on an A800 (0.18.0), 004 Qwen3-8B on two
RTX 3080 (0.8.5.post1). How long loading took is the length of a stage, and tokens/s come from the
metrics, so that the lines about both are only shown.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterctl.diagnosis.logs import search
from clusterctl.diagnosis.verdict import verdict
from clusterctl.node.attempt import later, plain, stage_of
from clusterctl.planning.reported import Reported, outcome_of
from clusterctl.serving.notices import noticed
from clusterctl.transport.base import CommandResult
from tests.fakes.fit_requests import fit_request
from tests.fakes.transport import Call, FakeTransport, starts

GPT_OSS = """\
(APIServer pid=6539) INFO 04-18 20:22:57 [utils.py:233] non-default args: {'model_tag': 'openai/gpt-oss-20b', 'port': 10000, 'max_model_len': 131072, 'gpu_memory_utilization': 0.65}
(APIServer pid=6539) INFO 04-18 20:23:04 [model.py:549] Resolved architecture: GptOssForCausalLM
(EngineCore pid=6686) WARNING 04-18 20:23:14 [network_utils.py:36] The environment variable HOST_IP is deprecated and ignored, as it is often used by Docker
(EngineCore pid=6686) INFO 04-18 20:23:14 [parallel_state.py:1400] world_size=1 rank=0 local_rank=0 distributed_init_method=tcp://10.240.1.138:45759 backend=nccl
(EngineCore pid=6686) INFO 04-18 20:24:15 [weight_utils.py:581] Time spent downloading weights for openai/gpt-oss-20b: 58.546043 seconds
Loading safetensors checkpoint shards: 100% Completed | 3/3 [00:01<00:00, 1.56it/s]
(EngineCore pid=6686) INFO 04-18 20:24:17 [default_loader.py:384] Loading weights took 2.08 seconds
(EngineCore pid=6686) INFO 04-18 20:24:18 [gpu_model_runner.py:4820] Model loading took 13.72 GiB memory and 62.336108 seconds
(EngineCore pid=6686) INFO 04-18 20:24:31 [monitor.py:48] torch.compile took 12.46 s in total
(EngineCore pid=6686) INFO 04-18 20:24:37 [kv_cache_utils.py:829] Overriding num_gpu_blocks=0 with num_gpu_blocks_override=1024
(EngineCore pid=6686) INFO 04-18 20:24:40 [gpu_model_runner.py:5955] Estimated CUDA graph memory: 0.42 GiB total
(EngineCore pid=6686) INFO 04-18 20:24:40 [gpu_worker.py:436] Available KV cache memory: 36.56 GiB
(EngineCore pid=6686) INFO 04-18 20:24:40 [gpu_worker.py:470] In v0.19, CUDA graph memory profiling will be enabled by default, increase --gpu-memory-utilization from 0.6500 to 0.6553 to maintain the same effective KV cache size.
(EngineCore pid=6686) INFO 04-18 20:24:40 [kv_cache_utils.py:1319] GPU KV cache size: 798,624 tokens
(EngineCore pid=6686) INFO 04-18 20:24:40 [kv_cache_utils.py:1324] Maximum concurrency for 131,072 tokens per request: 11.99x
Capturing CUDA graphs (decode, FULL): 100%|##########| 35/35 [00:04<00:00, 8.20it/s]
(EngineCore pid=6686) INFO 04-18 20:24:50 [gpu_model_runner.py:6046] Graph capturing finished in 10 secs, took 0.69 GiB
(EngineCore pid=6686) INFO 04-18 20:24:50 [gpu_worker.py:597] CUDA graph pool memory: 0.69 GiB (actual), 0.42 GiB (estimated), difference: 0.26 GiB (38.4%).
(EngineCore pid=6686) INFO 04-18 20:24:50 [core.py:283] init engine (profile, create kv cache, warmup model) took 32.50 seconds
(APIServer pid=6539) WARNING 04-18 20:24:54 [serving.py:233] For gpt-oss, we ignore --enable-auto-tool-choice and always enable tool use.
(APIServer pid=6539) INFO 04-18 20:24:58 [api_server.py:594] Starting vLLM server on http://0.0.0.0:10000
(APIServer pid=6539) INFO: Application startup complete.
(APIServer pid=6539) INFO 04-18 20:25:48 [loggers.py:259] Engine 000: Avg prompt throughput: 8.0 tokens/s, Avg generation throughput: 111.7 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.1%
"""  # noqa: E501

GEMMA_EAGER = """\
(APIServer pid=10793) INFO 04-17 14:03:07 [utils.py:233] non-default args: {'model': 'google/gemma-4-26B-A4B', 'max_model_len': 131072, 'enforce_eager': True}
(APIServer pid=10793) WARNING 04-17 14:03:08 [vllm.py:848] Enforce eager set, disabling torch.compile and CUDAGraphs. This is equivalent to setting -cc.mode=none -cc.cudagraph_mode=none
(EngineCore pid=10853) WARNING 04-17 14:03:19 [network_utils.py:36] The environment variable HOST_IP is deprecated and ignored, as it is often used by Docker
(EngineCore pid=10853) INFO 04-17 14:03:22 [parallel_state.py:1716] rank 0 in world size 1 is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 0, EP rank 0, EPLB rank N/A
(EngineCore pid=10853) INFO 04-17 14:03:33 [gpu_model_runner.py:4820] Model loading took 48.5 GiB memory and 10.090812 seconds
(EngineCore pid=10853) WARNING 04-17 14:03:50 [fused_moe.py:1090] Using default MoE config. Performance might be sub-optimal!
(EngineCore pid=10853) INFO 04-17 14:03:51 [gpu_worker.py:436] Available KV cache memory: 21.5 GiB
(EngineCore pid=10853) INFO 04-17 14:03:51 [kv_cache_utils.py:1319] GPU KV cache size: 93,936 tokens
(EngineCore pid=10853) INFO 04-17 14:03:51 [kv_cache_utils.py:1324] Maximum concurrency for 131,072 tokens per request: 6.96x
(EngineCore pid=10853) INFO 04-17 14:03:51 [core.py:283] init engine (profile, create kv cache, warmup model) took 17.49 seconds
(APIServer pid=10793) WARNING 04-17 14:03:51 [model.py:1435] Default vLLM sampling parameters have been overridden by the model's `generation_config.json`: `{'temperature': 1.0, 'top_k': 64, 'top_p': 0.95}`.
(APIServer pid=10793) INFO: Application startup complete.
(APIServer pid=10793) INFO 04-17 14:04:38 [loggers.py:259] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 18.5 tokens/s, Running: 1 reqs
(EngineCore pid=10853) INFO 04-17 14:08:10 [core.py:1210] Shutdown initiated (timeout=0)
"""  # noqa: E501

GEMMA_FP8 = """\
(APIServer pid=6048) INFO 04-18 20:14:28 [utils.py:233] non-default args: {'model': 'google/gemma-4-26B-A4B', 'max_model_len': 262144, 'quantization': 'fp8'}
(EngineCore pid=6116) INFO 04-18 20:14:43 [parallel_state.py:1400] world_size=1 rank=0 local_rank=0 distributed_init_method=tcp://10.240.1.138:52415 backend=nccl
(EngineCore pid=6116) WARNING 04-18 20:14:46 [marlin_utils_fp8.py:216] Your GPU does not have native support for FP8 computation but FP8 quantization is being used.
(EngineCore pid=6116) INFO 04-18 20:14:59 [gpu_model_runner.py:4820] Model loading took 25.7 GiB memory and 15.197657 seconds
(EngineCore pid=6116) INFO 04-18 20:15:24 [monitor.py:48] torch.compile took 5.71 s in total
(EngineCore pid=6116) INFO 04-18 20:15:26 [gpu_model_runner.py:5955] Estimated CUDA graph memory: 1.11 GiB total
(EngineCore pid=6116) INFO 04-18 20:15:27 [gpu_worker.py:436] Available KV cache memory: 24.45 GiB
(EngineCore pid=6116) INFO 04-18 20:15:27 [kv_cache_utils.py:1319] GPU KV cache size: 106,800 tokens
(EngineCore pid=6116) INFO 04-18 20:15:27 [kv_cache_utils.py:1324] Maximum concurrency for 262,144 tokens per request: 4.37x
(EngineCore pid=6116) INFO 04-18 20:15:36 [gpu_model_runner.py:6046] Graph capturing finished in 9 secs, took 0.95 GiB
(EngineCore pid=6116) INFO 04-18 20:15:36 [core.py:283] init engine (profile, create kv cache, warmup model) took 36.33 seconds
(APIServer pid=6048) WARNING 04-18 20:15:36 [model.py:1435] Default vLLM sampling parameters have been overridden by the model's `generation_config.json`
(APIServer pid=6048) INFO 04-18 20:15:52 [api_server.py:594] Starting vLLM server on http://0.0.0.0:10000
"""  # noqa: E501

GEMMA_31B = """\
(APIServer pid=12007) INFO 04-17 14:22:59 [utils.py:233] non-default args: {'model': 'google/gemma-4-31B-it', 'max_model_len': 131072, 'gpu_memory_utilization': 0.95}
(EngineCore pid=12103) INFO 04-17 14:23:15 [parallel_state.py:1400] world_size=1 rank=0 local_rank=0 distributed_init_method=tcp://10.240.1.237:44807 backend=nccl
(EngineCore pid=12103) INFO 04-17 14:27:42 [gpu_model_runner.py:4820] Model loading took 58.9 GiB memory and 265.606047 seconds
(EngineCore pid=12103) INFO 04-17 14:28:41 [monitor.py:48] torch.compile took 43.47 s in total
(EngineCore pid=12103) INFO 04-17 14:28:47 [gpu_model_runner.py:5955] Estimated CUDA graph memory: 0.86 GiB total
(EngineCore pid=12103) INFO 04-17 14:28:48 [gpu_worker.py:436] Available KV cache memory: 15.18 GiB
(EngineCore pid=12103) INFO 04-17 14:28:48 [kv_cache_utils.py:1319] GPU KV cache size: 16,576 tokens
(EngineCore pid=12103) INFO 04-17 14:28:48 [kv_cache_utils.py:1324] Maximum concurrency for 131,072 tokens per request: 1.23x
(EngineCore pid=12103) INFO 04-17 14:29:01 [gpu_model_runner.py:6046] Graph capturing finished in 13 secs, took 0.84 GiB
(EngineCore pid=12103) INFO 04-17 14:29:01 [core.py:283] init engine (profile, create kv cache, warmup model) took 79.33 seconds
(APIServer pid=12007) INFO: Application startup complete.
"""  # noqa: E501

# Of the script with the LLM class and of the server: the first has no line of a server
R1_7B_ENGINE = """\
INFO 03-23 20:10:22 model_runner.py:1111] Starting to load model /root/autodl-tmp/deepseek-ai/DeepSeek-R1-Distill-Qwen-7B...
INFO 03-23 20:10:29 model_runner.py:1116] Loading model weights took 14.2717 GB
INFO 03-23 20:10:31 worker.py:266] Memory profiling takes 1.19 seconds
INFO 03-23 20:10:31 worker.py:266] the current vLLM instance can use total_gpu_memory (31.74GiB) x gpu_memory_utilization (0.90) = 28.57GiB
INFO 03-23 20:10:31 worker.py:266] model weights take 14.27GiB; non_torch_memory takes 0.09GiB; PyTorch activation peak memory takes 1.40GiB; the rest of the memory reserved for KV Cache is 12.80GiB.
INFO 03-23 20:10:31 executor_base.py:108] # CUDA blocks: 14984, # CPU blocks: 4681
INFO 03-23 20:10:31 executor_base.py:113] Maximum concurrency for 2048 tokens per request: 117.06x
INFO 03-23 20:10:34 model_runner.py:1435] Capturing cudagraphs for decoding. This may lead to unexpected consequences if the model is not static. If out-of-memory error occurs during cudagraph capture, consider decreasing `gpu_memory_utilization` or switching to eager mode.
INFO 03-23 20:10:52 model_runner.py:1563] Graph capturing finished in 18 secs, took 0.80 GiB
INFO 03-23 20:10:52 llm_engine.py:429] init engine (profile, create kv cache, warmup model) took 22.80 seconds
"""  # noqa: E501

R1_7B_SCRIPT = f"""\
WARNING 03-23 19:17:31 config.py:2368] Casting torch.bfloat16 to torch.float16.
{R1_7B_ENGINE}\
Processed prompts: 100%|##########| 1/1 [00:48<00:00, 48.60s/it, est. speed input: 0.25 toks/s, output: 41.91 toks/s]
[rank0]:[W323 19:18:59.141406155 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.
"""  # noqa: E501

R1_7B_SERVER = f"""\
INFO 03-23 20:10:09 api_server.py:838] vLLM API server version 0.7.1
INFO 03-23 20:10:09 api_server.py:839] args: Namespace(host='0.0.0.0', port=8080, max_model_len=2048, gpu_memory_utilization=0.9)
{R1_7B_ENGINE}\
INFO:     Application startup complete.
INFO:     Uvicorn running on http://0.0.0.0:8080 (Press CTRL+C to quit)
INFO 03-23 20:11:48 metrics.py:453] Avg prompt throughput: 2.6 tokens/s, Avg generation throughput: 37.3 tokens/s, Running: 1 reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: 0.1%, CPU KV cache usage: 0.0%.
"""  # noqa: E501

TWO_HOSTS = """\
INFO 02-23 21:55:00 api_server.py:840] vLLM API server version 0.7.2
INFO 02-23 21:55:00 api_server.py:841] args: Namespace(host=None, port=8000, tensor_parallel_size=2, gpu_memory_utilization=0.5)
INFO 02-23 21:55:07 config.py:1401] Defaulting to use mp for distributed inference
(VllmWorkerProcess pid=2994) INFO 02-23 21:55:19 custom_all_reduce_utils.py:244] reading GPU P2P access cache from /root/.cache/vllm/gpu_p2p_access_cache_for_0,1.json
INFO 02-23 21:55:19 model_runner.py:1110] Starting to load model Qwen2.5-1.5B-Instruct...
INFO 02-23 21:55:21 model_runner.py:1115] Loading model weights took 1.4495 GB
(VllmWorkerProcess pid=2994) INFO 02-23 21:55:21 model_runner.py:1115] Loading model weights took 1.4495 GB
INFO 02-23 21:55:24 worker.py:267] model weights take 1.45GiB; non_torch_memory takes 0.40GiB; PyTorch activation peak memory takes 1.39GiB; the rest of the memory reserved for KV Cache is 8.60GiB.
(VllmWorkerProcess pid=2994) INFO 02-23 21:55:25 worker.py:267] model weights take 1.45GiB; non_torch_memory takes 0.37GiB; PyTorch activation peak memory takes 0.09GiB; the rest of the memory reserved for KV Cache is 9.93GiB.
INFO 02-23 21:55:25 executor_base.py:110] # CUDA blocks: 40269, # CPU blocks: 18724
INFO 02-23 21:55:25 executor_base.py:115] Maximum concurrency for 128 tokens per request: 5033.62x
Capturing CUDA graph shapes: 97%|#########7| 34/35 [00:15<00:00,2.24it/s]
INFO 02-23 21:55:45 model_runner.py:1562] Graph capturing finished in 16 secs, took 0.85 GiB
INFO 02-23 21:55:45 llm_engine.py:431] init engine (profile, create kv cache, warmup model) took 24.62 seconds
INFO: Application startup complete.
"""  # noqa: E501

R1_32B = """\
non-default args: {'port': 6006, 'model': '/root/autodl-tmp/DeepSeek-R1-32B', 'max_model_len': 8192, 'served_model_name': ['deepseek-r1'], 'gpu_memory_utilization': 0.95}
rank 0 in world size 1 is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 0
Starting to load model /root/autodl-tmp/DeepSeek-R1-32B...
Loading weights took 13.38 seconds
Model loading took 61.06 GiB memory and 14.101032 seconds
torch.compile took 7.13 s in total
Initial profiling/warmup run took 2.69 s
Overriding num_gpu_blocks=0 with num_gpu_blocks_override=512
Estimated CUDA graph memory: 0.93 GiB total
Available KV cache memory: 11.89 GiB
GPU KV cache size: 48,704 tokens
Maximum concurrency for 8,192 tokens per request: 5.95x
Graph capturing finished in 13 secs, took 0.93 GiB
init engine (profile, create kv cache, warmup model) took 25.79 seconds
Default vLLM sampling parameters have been overridden by the model's `generation_config.json`: {'temperature': 0.6, 'top_p': 0.95}
Starting vLLM server on http://0.0.0.0:6006
Application startup complete.
"""  # noqa: E501

QWEN3 = """\
INFO 05-16 23:06:07 [api_server.py:1043] vLLM API server version 0.8.5.post1
INFO 05-16 23:06:07 [api_server.py:1044] args: Namespace(subparser='serve', host='0.0.0.0', port=6333, max_model_len=4096, block_size=32, cpu_offload_gb=5.0)
INFO 05-16 23:06:14 [config.py:1770] Defaulting to use mp for distributed inference
WARNING 05-16 23:06:28 [utils.py:2522] Methods determine_num_available_blocks,device_config not implemented in <vllm.v1.worker.gpu_worker.Worker object>
(VllmWorker rank=0 pid=2874) WARNING 05-16 23:06:29 [custom_all_reduce.py:146] Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test failed.
(VllmWorker rank=0 pid=2874) INFO 05-16 23:06:29 [parallel_state.py:1004] rank 0 in world size 2 is assigned as DP rank 0, PP rank 0, TP rank 0
(VllmWorker rank=0 pid=2874) WARNING 05-16 23:06:29 [topk_topp_sampler.py:69] FlashInfer is not available. Falling back to the PyTorch-native implementation of top-p & top-k sampling.
(VllmWorker rank=0 pid=2874) INFO 05-16 23:06:35 [gpu_model_runner.py:1347] Model loading took 2.6077 GiB and 5.417584 seconds
(VllmWorker rank=1 pid=2875) INFO 05-16 23:06:35 [gpu_model_runner.py:1347] Model loading took 2.6077 GiB and 5.831182 seconds
INFO 05-16 23:06:53 [kv_cache_utils.py:634] GPU KV cache size: 79,040 tokens
INFO 05-16 23:06:53 [kv_cache_utils.py:637] Maximum concurrency for 4,096 tokens per request: 19.30x
INFO 05-16 23:06:54 [core.py:159] init engine (profile, create kv cache, warmup model) took 19.09 seconds
WARNING 05-16 23:06:54 [config.py:1239] Default sampling parameters have been overridden by the model's Hugging Face generation config recommended from the model creator.
INFO 05-16 23:06:54 [api_server.py:1090] Starting vLLM API server on http://0.0.0.0:6333
"""  # noqa: E501

QWEN3_QUANTIZED = """\
(VllmWorker rank=0 pid=5361) INFO 05-16 23:43:35 [gpu_model_runner.py:1347] Model loading took 1.2216 GiB and 5.527624 seconds
(VllmWorker rank=1 pid=5362) INFO 05-16 23:43:35 [gpu_model_runner.py:1347] Model loading took 1.2216 GiB and 5.531894 seconds
(VllmWorker rank=0 pid=5361) INFO 05-16 23:44:05 [monitor.py:33] torch.compile takes 15.67 s in total
INFO 05-16 23:44:06 [kv_cache_utils.py:634] GPU KV cache size: 7,216 tokens
INFO 05-16 23:44:06 [kv_cache_utils.py:637] Maximum concurrency for 1,024 tokens per request: 7.05x
(VllmWorker rank=0 pid=5361) INFO 05-16 23:44:49 [gpu_model_runner.py:1686] Graph capturing finished in 44 secs, took 1.99 GiB
INFO 05-16 23:44:50 [core.py:159] init engine (profile, create kv cache, warmup model) took 74.74 seconds
"""  # noqa: E501

ALL = ("ranks", "weights", "kv-cache", "graphs", "warm-up", "listening")
EAGER = ("ranks", "weights", "kv-cache", "warm-up", "listening")
# No progress bar of the graphs was copied: their last line begins what follows.
NO_BAR = EAGER
ENGINE = ("weights", "kv-cache", "graphs", "warm-up")
"""Releases before 0.8 do not print what their ranks are."""


@dataclass(frozen=True)
class Start:
    """A log, and what an article reads from it. `noted`: a word of each note, in their order."""

    log: str
    reported: Reported
    stages: tuple[str, ...]
    noted: tuple[str, ...] = ()


STARTS = {
    "000 gpt-oss": Start(
        GPT_OSS, Reported(13.72, 36.56, 0.42, 798_624, 11.99), ALL, ("HOST_IP",)
    ),
    "000 Gemma 26B eager": Start(
        GEMMA_EAGER,
        Reported(48.5, 21.5, None, 93_936, 6.96),
        EAGER,
        ("MoE", "generation_config.json", "HOST_IP"),
    ),
    "000 Gemma 26B fp8": Start(
        GEMMA_FP8, Reported(25.7, 24.45, 1.11, 106_800, 4.37), NO_BAR, ("generation_config.json",)
    ),
    "000 Gemma 31B": Start(GEMMA_31B, Reported(58.9, 15.18, 0.86, 16_576, 1.23), NO_BAR),
    "001 script": Start(R1_7B_SCRIPT, Reported(14.2717, 12.8, 0.8, 14_984 * 16, 117.06), ENGINE),
    "001 server": Start(
        R1_7B_SERVER,
        Reported(14.2717, 12.8, 0.8, 14_984 * 16, 117.06),
        (*ENGINE, "listening"),
    ),
    "002": Start(
        TWO_HOSTS,
        Reported(1.4495, 8.6, 0.85, 40_269 * 16, 5033.62),
        (*ENGINE, "listening"),
        ("without Ray",),
    ),
    "003": Start(
        R1_32B, Reported(61.06, 11.89, 0.93, 48_704, 5.95), NO_BAR, ("generation_config.json",)
    ),
    "004": Start(
        QWEN3,
        Reported(2.6077, None, None, 79_040, 19.3),
        EAGER,
        ("without Ray", "P2P", "FlashInfer", "generation_config.json"),
    ),
    "004 quantized": Start(
        QWEN3_QUANTIZED,
        Reported(1.2216, None, 1.99, 7_216, 7.05),
        ("weights", "kv-cache", "warm-up"),
    ),
}  # fmt: skip

each_start = pytest.mark.parametrize("start", STARTS.values(), ids=STARTS.keys())


def head_with(log: str, directory: Path) -> FakeTransport:
    """A head whose service has that log, which the real filter reads."""
    file = directory / "service.log"
    file.write_text(log)

    def run(call: Call) -> CommandResult:
        argv = [*call.argv[:-2], str(file), call.argv[-1]]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        return CommandResult(call.argv, 0, done.stdout, done.stderr)

    return FakeTransport().on(starts("sh"), answer=run)


@each_start
def test_the_figures(start: Start, tmp_path: Path) -> None:
    plan = fit_request("qwen3-8b", gpus="A100", tp=1).plan
    outcome = outcome_of(head_with(start.log, tmp_path), "demo", "service", plan)
    assert outcome is not None
    assert outcome.reported == start.reported


@each_start
def test_the_stages_in_their_order(start: Start) -> None:
    reached: list[str] = []
    for stage in filter(None, map(stage_of, start.log.splitlines())):
        reached.append(later(reached[-1], stage) if reached else stage)
    assert tuple(dict.fromkeys(reached)) == start.stages


@each_start
def test_what_is_worth_a_note(start: Start, tmp_path: Path) -> None:
    found = noticed(head_with(start.log, tmp_path), "demo", "service")
    assert len(found) == len(start.noted)
    for note, word in zip(found, start.noted, strict=True):
        assert word in note


@each_start
def test_a_start_that_went_well_has_no_cause_of_failure(start: Start) -> None:
    assert causes(start.log) == []


def causes(log: str) -> list[str]:
    found = search((f"{line}\n".encode() for line in log.splitlines()), "log")
    return [one.id for one in verdict(found)]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (GPT_OSS.splitlines()[7], "Model loading took 13.72 GiB memory and 62.336108 seconds"),
        (R1_7B_ENGINE.splitlines()[1], "Loading model weights took 14.2717 GB"),
        (QWEN3.splitlines()[7], "Model loading took 2.6077 GiB and 5.417584 seconds"),
    ],
)
def test_how_long_loading_took_is_shown_with_its_stage(line: str, shown: str) -> None:
    assert stage_of(line) == "weights"
    assert plain(line).endswith(shown)


TOO_LONG = (
    "Value error, User-specified max_model_len (200000) is greater than the derived max_model_len "
    "(max_position_embeddings=131072.0 or model_max_length=None in model's config.json"
)
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 0 has a total "
    "capacity of 31.48 GiB of which 447.56 MiB is free. Including non-PyTorch memory, this process "
    "has 30.97 GiB memory in use.\n"
    "[rank0]:[W517 15:35:52.765542648 ProcessGroupNCCL.cpp:1496] Warning: WARNING: "
    "destroy_process_group() was not called before program exit, which can leak resources."
)
NO_ATTRIBUTE = (
    "ERROR [engine.py:448] AttributeError: 'Tensor' object has no attribute 'bnb_quant_state'"
)
NO_BLOCKS = """\
(VllmWorker rank=1 pid=3244) INFO 05-16 23:09:33 [gpu_model_runner.py:1347] Model loading took 1.2216 GiB and 5.555432 seconds
ERROR 05-16 23:09:36 [core.py:396] EngineCore failed to start.
ERROR 05-16 23:09:36 [core.py:396] ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.
ERROR 05-16 23:09:37 [multiproc_executor.py:123] Worker proc VllmWorker-0 died unexpectedly, shutting down executor.
"""  # noqa: E501


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (TOO_LONG, "max-model-len-over-config"),
        (OUT_OF_MEMORY, "oom-gpu"),
        (NO_ATTRIBUTE, "offloaded-bitsandbytes"),
        (NO_BLOCKS, "kv-no-blocks"),
    ],
    ids=["003 context", "004 memory", "004 quantized cache", "004 blocks"],
)
def test_the_failures_have_their_cause(log: str, cause: str) -> None:
    assert causes(log)[0] == cause
