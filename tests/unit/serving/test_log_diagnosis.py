"""Lines of real logs, and the cause that is read from them."""

from __future__ import annotations

import pytest

from clusterctl.serving.failures import SIGNATURES, diagnose, explain, findings

NO_KV_MEMORY_LOG = """\
(VllmWorker rank=1 pid=3244) INFO 05-16 23:09:33 [gpu_model_runner.py:1347] Model loading took 1.2216 GiB and 5.555432 seconds
ERROR 05-16 23:09:36 [core.py:396] EngineCore failed to start.
ERROR 05-16 23:09:36 [core.py:396] Traceback (most recent call last):
ERROR 05-16 23:09:36 [core.py:396] raise ValueError("No available memory for the cache blocks. "
ERROR 05-16 23:09:36 [core.py:396] ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.
ERROR 05-16 23:09:37 [multiproc_executor.py:123] Worker proc VllmWorker-0 died unexpectedly, shutting down executor.
"""  # noqa: E501

HEALTHY_LOG = """\
INFO 02-23 21:55:07 config.py:1401] Defaulting to use mp for distributed inference
(VllmWorker rank=0 pid=2874) WARNING 05-16 23:06:29 [custom_all_reduce.py:146] Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test failed.
WARNING 02-06 [utils.py:2522] Methods determine_num_available_blocks,device_config not implemented in <vllm.v1.worker.gpu_worker.Worker>
INFO 04-18 20:24:40 [kv_cache_utils.py:1319] GPU KV cache size: 798,624 tokens
[rank0]:[W323 19:18:59.141406155 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.
INFO: Application startup complete.
"""  # noqa: E501


@pytest.mark.parametrize(
    ("line", "name", "words"),
    [
        (
            "Value error, User-specified max_model_len (200000) is greater than the derived "
            "max_model_len (max_position_embeddings=131072.0 or model_max_length=None in model's "
            "config.json",
            "context-too-long",
            "131072",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 0 has a "
            "total capacity of 31.48 GiB of which 447.56 MiB is free. Including non-PyTorch memory",
            "gpu-out-of-memory",
            "31.48 GiB",
        ),
        (
            "ValueError: To serve at least one request with the models's max seq len (32768), "
            "(4.00 GiB KV cache is needed, which is larger than the available KV cache memory "
            "(1.50 GiB). Based on the available memory, the estimated maximum model length is "
            "12288.",
            "context-does-not-fit",
            "32768",
        ),
        (
            "ValueError: The model's max seq len (32768) is larger than the maximum number of "
            "tokens that can be stored in KV cache (16576).",
            "context-does-not-fit",
            "32768",
        ),
        (
            "ValueError: Not enough resources to allocate 2 DP ranks on DP master node 10.77.0.11, "
            "possible to fit 1 DP ranks.",
            "no-room-for-replicas",
            "fewer than 2",
        ),
        (
            "ValueError: Total number of attention heads (12) must be divisible by tensor parallel "
            "size (8).",
            "heads-not-divisible",
            "--tp 8",
        ),
        (
            "vllm: error: unrecognized arguments: --swap-space 4",
            "unknown-argument",
            "--swap-space 4",
        ),
        (
            "RuntimeError: Cannot find any model weights with `/data/models/x`",
            "no-weights",
            "/data/models/x",
        ),
        (
            "ERROR 02-02 10:34:51 [engine.py:448] AttributeError: 'Tensor' object has no attribute "
            "'bnb_quant_state'",
            "offloaded-bitsandbytes",
            "offloaded to the CPU",
        ),
        (
            "OSError: [Errno 98] Address already in use",
            "port-taken",
            "port",
        ),
        (
            "OSError: You are trying to access a gated repo.",
            "gated-model",
            "licence",
        ),
        (
            "OSError: We couldn't connect to 'https://huggingface.co' to load this file",
            "no-network",
            "cannot be reached",
        ),
        (
            "torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found",
            "no-compiler",
            "compiler",
        ),
        (
            "AttributeError: '_OpNamespace' '_C' object has no attribute 'init_cpu_memory_env'",
            "no-libnuma",
            "libnuma",
        ),
        (
            "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/"
            "device.cc:84] "
            "ifa != nullptr. Unable to find address for: eth9",
            "gloo-interface",
            "eth9",
        ),
        (
            "gpu2:41:41 [0] bootstrap.cc:76 NCCL WARN Bootstrap : no socket interface found",
            "nccl-interface",
            "NCCL_SOCKET_IFNAME",
        ),
        (
            "ValueError: World size (2) is larger than the number of available GPUs (1) in this "
            "node.",
            "one-host-only",
            "2 ranks",
        ),
        (
            "ValueError: Free memory on device cuda:0 (3.20/23.69 GiB) on startup is less than "
            "desired GPU memory utilization (0.9, 21.32 GiB).",
            "gpu-memory-taken",
            "3.20 of 23.69",
        ),
        (
            "ValueError: Chunked MM input disabled but max_tokens_per_mm_item (2496) is larger "
            "than max_num_batched_tokens (2048). Please increase max_num_batched_tokens.",
            "batch-below-image",
            "2496",
        ),
        (
            "ValueError: max_num_batched_tokens (2048) is smaller than max_model_len (32768). This",
            "batch-below-context",
            "32768",
        ),
        (
            "ray.exceptions.AuthenticationError: InvalidAuthToken",
            "ray-token",
            "token",
        ),
        (
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
            "engine-died",
            "died",
        ),
    ],
)
def test_a_known_line_names_its_cause(line: str, name: str, words: str) -> None:
    found = diagnose([line])

    assert found is not None
    assert found.id == name
    assert words in found.cause
    assert found.fix


def test_the_cause_is_told_and_not_the_wrappers_around_it() -> None:
    found = diagnose(NO_KV_MEMORY_LOG.splitlines())

    assert found is not None
    assert (found.id, found.number) == ("no-kv-memory", 4)
    for flag in ("--max-num-batched-tokens", "--max-model-len", "--enforce-eager"):
        assert flag in found.fix


def test_all_findings_come_once_in_the_order_of_the_log() -> None:
    ids = [one.id for one in findings(NO_KV_MEMORY_LOG.splitlines())]

    assert ids == ["engine-not-started", "no-kv-memory", "rank-died"]


def test_the_earliest_of_several_causes_counts() -> None:
    lines = ["No space left on device", "Gloo connectFullMesh failed"]

    assert diagnose(lines) is not None
    assert [one.id for one in findings(lines)] == ["disk-full", "gloo-mesh"]
    assert diagnose(lines) == findings(lines)[0]


def test_a_healthy_log_has_no_cause_of_failure() -> None:
    assert findings(HEALTHY_LOG.splitlines()) == []


def test_an_endless_line_is_not_searched_to_its_end() -> None:
    assert diagnose(["x" * 10_000 + "EngineDeadError"]) is None


def test_every_text_can_be_filled_from_its_pattern() -> None:
    for signature in SIGNATURES:
        groups = dict.fromkeys(signature.pattern.groupindex, "1")
        assert "{" not in signature.cause.format(**groups)
        assert "{" not in signature.fix.format(**groups)


def test_an_error_carries_cause_fix_and_the_end_of_the_log() -> None:
    error = explain("chat", NO_KV_MEMORY_LOG.splitlines(), host="gpu1")

    assert str(error).startswith("gpu1: chat did not start: the weights and the working memory")
    assert "--gpu-memory-utilization" in (error.hint or "")
    assert (error.detail or "").endswith("shutting down executor.")


def test_an_unknown_failure_shows_the_log() -> None:
    error = explain("chat", ["what?"])

    assert error.hint == "clusterctl logs chat"
    assert error.detail == "what?"
