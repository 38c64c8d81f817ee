"""What five published deployment notes type has a command here that takes their own flags, and the
release that they use has these flags. The articles are those of test_logs_of_articles.py.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from clusterctl.cli.app import app
from clusterctl.models.version import parse_version
from clusterctl.serving.config_file import read_config_file
from clusterctl.serving.release_flags import refused_flags
from clusterctl.serving.request import Options, ServiceRequest, read_request
from clusterctl.serving.vllm_flags import parse_arguments

GEMMA = (
    "--port 10000 --enable-auto-tool-choice --reasoning-parser gemma4 --tool-call-parser gemma4 "
    "--chat-template /home/vllm/examples/tool_chat_template_gemma4.jinja"
)
R1_7B = "/root/autodl-tmp/deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"

R1_32B = "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"
R1_1_5B = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"


@dataclass(frozen=True)
class Start:
    """The model and flags as typed, the GPUs and release, and of the log the GiB of weights on a
    GPU, tokens of KV cache and requests of full length at once; None: it does not say."""

    model: str
    flags: str
    gpus: str
    vllm: str
    weights_gib: float | None = None
    tokens: int | None = None
    at_once: float | None = None


SERVED = [
    Start(
        "openai/gpt-oss-20b",
        "--port 10000 --max-model-len 131072 --gpu-memory-utilization 0.65 --trust-remote-code",
        "A100-80GB", "0.19.0", 13.72, 798_624, 11.99,
    ),
    Start(
        "google/gemma-4-26B-A4B",
        f"{GEMMA} --max-model-len 131072 --gpu-memory-utilization 0.9",
        "A100-80GB", "0.19.0",
    ),
    Start(
        "google/gemma-4-26B-A4B",
        f"{GEMMA} --max-model-len 131072 --enforce-eager --enable-chunked-prefill "
        "--gpu-memory-utilization 0.9",
        "A100-80GB", "0.19.0", 48.5, 93_936, 6.96,
    ),
    Start(
        "google/gemma-4-26B-A4B",
        f"{GEMMA} --max-model-len 256K --quantization fp8 --gpu-memory-utilization 0.65",
        "A100-80GB", "0.19.0", 25.7, 106_800, 4.37,
    ),
    Start(
        "google/gemma-4-31b-it",
        f"{GEMMA} --max-model-len 131072 --gpu-memory-utilization 0.95",
        "A100-80GB", "0.19.0", 58.9, 16_576, 1.23,
    ),
    Start(
        R1_7B,
        "--served-model-name DeepSeek-R1-Distill-Qwen-7B --max-model-len=2048 --dtype=half "
        "--host 0.0.0.0 --port 8080",
        "V100-32GB", "0.7.1", 14.2717, 239_744, 117.06,
    ),
    Start(
        "Qwen2.5-1.5B-Instruct",
        "--tensor-parallel-size 2 --max-model-len 128 --gpu_memory_utilization=0.5",
        "2xRTX 3090", "0.7.2", 1.4495, 644_304, 5033.62,
    ),
    Start(
        R1_32B,
        "--port 6006 --max-model-len 8192 --served-model-name deepseek-r1 "
        "--gpu-memory-utilization 0.95",
        "A800-80GB", "0.18.0", 61.06, 48_704, 5.95,
    ),
    Start(
        R1_1_5B,
        "--max-model-len 8192 --gpu-memory-utilization 0.95",
        "A800-80GB", "0.18.0", at_once=318.54,
    ),
    Start(
        R1_1_5B,
        "--max-model-len 131072 --gpu-memory-utilization 0.95",
        "A800-80GB", "0.18.0", at_once=19.91,
    ),
    Start(
        "Qwen/Qwen3-8B",
        "--tensor-parallel-size 2 --cpu-offload-gb 5 --enforce-eager --block-size 32 "
        "--max-model-len 4096 --max-num-batched-tokens 4096 --max-num-seqs 256 "
        "--gpu-memory-utilization 0.5",
        "2xRTX 3080 20GB", "0.8.5.post1", 2.6077, 79_040, 19.30,
    ),
    Start(
        "Qwen/Qwen3-8B",
        "--tensor-parallel-size 2 --quantization bitsandbytes --cpu-offload-gb 10 "
        "--max-model-len 1024 --gpu-memory-utilization 0.25",
        "2xRTX 3080 20GB", "0.8.5.post1", 1.2216,
    ),
]  # fmt: skip
"""The ninth model, R1-Distill-Llama-70B of 004, has no log: see `CONFIG`, its file."""

CONFIG = """\
model: "/root/autodl-tmp/llms/deepseek-ai/DeepSeek-R1-Distill-Llama-70B"
served-model-name: "DeepSeek-R1"
host: "0.0.0.0"
port: 6333
api-key: "a-secret"
dtype: "bfloat16"
quantization: "bitsandbytes"
gpu-memory-utilization: 0.25
cpu-offload-gb: 60
swap-space: 20
max-num-seqs: 8
tensor-parallel-size: 1
max-num-batched-tokens: 512
max-model-len: 512
enable-prefix-caching: true
block-size: 16
max-seq-len-to-capture: 512
enforce-eager: true
disable-custom-all-reduce: true
disable-log-requests: true
trust-remote-code: true
"""

# Each operation of an article that is not a start, and the words after `clusterctl`
OPERATIONS = {
    "000 the log of a start": "logs gpt-oss-20b --follow",
    "000 memory and tokens/s": "status --wide",
    "000 one and eight requests to two models": "bench gpt-oss-20b gemma-4-26b-a4b",
    "000 Ctrl-C": "stop gemma-4-26b-a4b",
    "001 pip install vllm==0.7.1": "init root@192.168.1.1 --image vllm/vllm-openai:v0.7.1",
    "001 snapshot_download": (
        "model pull deepseek-ai/DeepSeek-R1-Distill-Qwen-7B --source modelscope"
    ),
    "001 python3 vllm_inference.py": (
        "run vllm_inference.py -- --model=/data/models/DeepSeek-R1-Distill-Qwen-7B --prompt=a"
    ),
    "001 prompts with LLM.generate": "batch deepseek-r1-7b prompts.jsonl -o answers.jsonl",
    "001 curl localhost:8080": "tunnel deepseek-r1-7b --port 8080",
    "002 two hosts": "init root@192.168.1.1 root@192.168.1.2 --image vllm/vllm-openai:v0.7.2",
    "002 what is missing": "check inventory.yaml",
    "002 docker, toolkit, run_cluster.sh": "bootstrap inventory.yaml",
    "002 docker save | gzip": "image bundle vllm/vllm-openai:v0.7.2 -o images.tar.gz",
    "002 docker load": "image push",
    "002 git clone": "model pull Qwen/Qwen2.5-1.5B-Instruct --source modelscope",
    "002 scp of the model": "model push /data/model/Qwen2.5-1.5B-Instruct",
    "002 docker exec -ti node bash": "ssh gpu1 --node",
    "002 ray status": "exec --limit gpu1 --node -- ray status",
    "002 a 3090 and an H800": "fit qwen2.5-1.5b --gpus 'RTX 3090' --gpus H800 --network 10Gbit",
    "002 version record": "version --cluster",
    "003 every line": "logs deepseek-r1 --lines 1000",
    "003 a line that is not understood": "diagnose start.log",
    "004 pip install modelscope": (
        "model pull deepseek-ai/DeepSeek-R1-Distill-Llama-70B --source modelscope"
    ),
    "004 vllm serve --config": "serve --config config.yaml",
    "004 what fits": "fit --config config.yaml --gpus RTX4090",
    "004 nvidia-smi -l 2": "status --wide --watch",
    "004 nvidia-smi -L": "exec -- nvidia-smi -L",
    "004 a key for the page": "key create page",
    "004 CUDA out of memory": "diagnose",
}


def parsed(words: list[str]) -> dict[str, Any]:
    """The values of a command's options, as the real command line reads them."""
    command: Any = typer.main.get_command(app)
    name = "clusterctl"
    while hasattr(command, "commands"):
        name, *words = words
        command = command.commands[name]
    params: dict[str, Any] = command.make_context(name, list(words)).params
    return params


@pytest.mark.parametrize("words", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_an_operation_has_its_command(words: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("config.yaml", "prompts.jsonl", "vllm_inference.py", "start.log"):
        (tmp_path / name).touch()
    parsed(shlex.split(words))


@pytest.mark.parametrize("start", SERVED)
def test_a_start_is_asked_for_with_the_articles_own_flags(start: Start) -> None:
    found = parsed(["serve", start.model, *shlex.split(start.flags)])
    options = Options(found["model"], found["tp"], port=found["port"])
    request = read_request(options, (), parse_arguments(found["arguments"]))

    arguments = parse_arguments(shlex.split(start.flags))
    typed = {argument.key: argument.values for argument in arguments}
    assert request.model == start.model
    assert request.port == (int(*typed.pop("port")) if "port" in typed else None)
    assert request.tensor_parallel == (2 if typed.pop("tensor-parallel-size", None) else None)
    assert request.served_names == typed.pop("served-model-name", ())
    assert request.host == next(iter(typed.pop("host", ())), None)
    assert {argument.key: argument.values for argument in request.given} == typed
    assert refused_flags(request.given, parse_version(start.vllm)) == []


@pytest.mark.parametrize("before_flags", [[], ["--"]], ids=["plain", "after --"])
@pytest.mark.parametrize("start", SERVED)
def test_fit_takes_all_these_flags_and_agrees_with_the_log(
    start: Start, before_flags: list[str]
) -> None:
    words = ["fit", start.model, "--gpus", start.gpus, "--vllm", start.vllm, "--json"]
    ran = CliRunner().invoke(app, [*words, *before_flags, *shlex.split(start.flags)])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    if start.weights_gib:
        assert found["ranks"][0]["weights_gib"] == pytest.approx(start.weights_gib, rel=0.003)
    if start.tokens:
        assert found["kv_cache_tokens"] == pytest.approx(start.tokens, rel=0.015)
    if start.at_once:
        assert found["max_concurrency"] == pytest.approx(start.at_once, rel=0.015)


def config_request(tmp_path: Path) -> ServiceRequest:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    return read_request(Options(), read_config_file(file))


def test_the_config_file_is_taken_as_it_is(tmp_path: Path) -> None:
    request = config_request(tmp_path)
    assert (request.host, request.port, request.api_key) == ("0.0.0.0", 6333, "a-secret")
    assert request.served_names == ("DeepSeek-R1",)
    assert refused_flags(request.given, parse_version("0.8.5.post1")) == []


def test_fit_takes_the_config_file_too(tmp_path: Path) -> None:
    config_request(tmp_path)
    words = ["--config", str(tmp_path / "config.yaml"), "--gpus", "vGPU-32GB:31.48", "--vllm"]
    ran = CliRunner().invoke(app, ["fit", *words, "0.8.5.post1", "--json"])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert (found["verdict"], found["max_model_len"], found["max_num_seqs"]) == ("fits", 512, 8)
    assert "a-secret" not in ran.output


def test_a_new_release_is_told_by_line_what_it_lacks(tmp_path: Path) -> None:
    found = refused_flags(config_request(tmp_path).given, parse_version("0.33.0"))
    for flag in ("swap-space", "max-seq-len-to-capture", "disable-log-requests", "bitsandbytes"):
        (error,) = [one for one in found if flag in one.summary]
        line = next(n for n, text in enumerate(CONFIG.splitlines(), 1) if flag in text)
        assert f"config.yaml:{line}" in error.summary


def test_a_context_over_the_models_is_refused_before_a_start() -> None:
    words = ["fit", R1_32B, "--gpus", "A800-80GB", "--vllm", "0.18.0"]
    ran = CliRunner().invoke(app, [*words, "--max-model-len", "200000"])
    assert ran.exit_code == 11
    assert "131,072" in ran.output or "131072" in ran.output
