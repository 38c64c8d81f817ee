"""What five published deployment notes type has a command here that takes their own flags, and the
release that they use has these flags. The articles are those of test_logs_of_articles.py.
"""

from __future__ import annotations

import json
import shlex
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

# Model, flags, their GPUs and release, and what their log says of requests of full length at once
SERVED = [
    ("openai/gpt-oss-20b", "--port 10000 --max-model-len 131072 --gpu-memory-utilization 0.65 "
     "--trust-remote-code", "A100-80GB", "0.19.0", 11.99),
    ("google/gemma-4-26B-A4B", f"{GEMMA} --max-model-len 131072 --gpu-memory-utilization 0.9",
     "A100-80GB", "0.19.0", None),
    ("google/gemma-4-26B-A4B", f"{GEMMA} --max-model-len 131072 --enforce-eager "
     "--enable-chunked-prefill --gpu-memory-utilization 0.9", "A100-80GB", "0.19.0", 6.96),
    ("google/gemma-4-26B-A4B", f"{GEMMA} --max-model-len 256K --quantization fp8 "
     "--gpu-memory-utilization 0.65", "A100-80GB", "0.19.0", 4.37),
    ("google/gemma-4-31b-it", f"{GEMMA} --max-model-len 131072 --gpu-memory-utilization 0.95",
     "A100-80GB", "0.19.0", 1.23),
    (R1_7B, "--served-model-name DeepSeek-R1-Distill-Qwen-7B --max-model-len=2048 --dtype=half "
     "--host 0.0.0.0 --port 8080", "V100-32GB", "0.7.1", 117.06),
    ("Qwen2.5-1.5B-Instruct", "--tensor-parallel-size 2 --max-model-len 128 "
     "--gpu_memory_utilization=0.5", "2xRTX 3090", "0.7.2", 5033.62),
    ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "--port 6006 --max-model-len 8192 "
     "--served-model-name deepseek-r1 --gpu-memory-utilization 0.95 --max-num-seqs 1024",
     "A800-80GB", "0.18.0", 5.95),
]  # fmt: skip
"""003 shows no `--max-num-seqs`: 1,024 is vLLM's default on its GPU, where `serve` passes 256."""

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
    "002 ray status": "ssh gpu1 --node ray status",
    "002 ray status on all": "exec --node -- ray status",
    "002 a 3090 and an H800": "fit qwen2.5-1.5b --gpus 'RTX 3090' --gpus H800 --network 10Gbit",
    "002 version record": "version --cluster",
    "003 every line": "logs deepseek-r1 --lines 1000",
    "003 a line that is not understood": "diagnose start.log",
    "004 pip install modelscope": (
        "model pull deepseek-ai/DeepSeek-R1-Distill-Llama-70B --source modelscope"
    ),
    "004 vllm serve --config": "serve --config config.yaml",
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


@pytest.mark.parametrize(("model", "flags", "_gpus", "vllm", "_logged"), SERVED)
def test_a_start_is_asked_for_with_the_articles_own_flags(
    model: str, flags: str, _gpus: str, vllm: str, _logged: float | None
) -> None:
    found = parsed(["serve", model, *shlex.split(flags)])
    options = Options(found["model"], found["tp"], port=found["port"])
    request = read_request(options, (), parse_arguments(found["arguments"]))

    typed = {argument.key: argument.values for argument in parse_arguments(shlex.split(flags))}
    assert request.model == model
    assert request.port == (int(*typed.pop("port")) if "port" in typed else None)
    assert request.tensor_parallel == (2 if typed.pop("tensor-parallel-size", None) else None)
    assert request.served_names == typed.pop("served-model-name", ())
    assert request.host == next(iter(typed.pop("host", ())), None)
    assert {argument.key: argument.values for argument in request.given} == typed
    assert refused_flags(request.given, parse_version(vllm)) == []


@pytest.mark.parametrize(
    ("model", "flags", "gpus", "vllm", "logged"), [row for row in SERVED if row[-1]]
)
def test_fit_takes_all_these_flags_and_agrees_with_the_log(
    model: str, flags: str, gpus: str, vllm: str, logged: float
) -> None:
    words = ["fit", model, "--gpus", gpus, "--vllm", vllm, "--json", *shlex.split(flags)]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["max_concurrency"] == pytest.approx(logged, rel=0.015)


def config_request(tmp_path: Path) -> ServiceRequest:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    return read_request(Options(), read_config_file(file))


def test_the_config_file_is_taken_as_it_is(tmp_path: Path) -> None:
    request = config_request(tmp_path)
    assert (request.host, request.port, request.api_key) == ("0.0.0.0", 6333, "a-secret")
    assert request.served_names == ("DeepSeek-R1",)
    assert refused_flags(request.given, parse_version("0.8.5.post1")) == []


def test_a_new_release_is_told_by_line_what_it_lacks(tmp_path: Path) -> None:
    found = refused_flags(config_request(tmp_path).given, parse_version("0.33.0"))
    for flag in ("swap-space", "max-seq-len-to-capture", "disable-log-requests", "bitsandbytes"):
        (error,) = [one for one in found if flag in one.summary]
        line = next(n for n, text in enumerate(CONFIG.splitlines(), 1) if flag in text)
        assert f"config.yaml:{line}" in error.summary


def test_a_context_over_the_models_is_refused_before_a_start() -> None:
    words = ["fit", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "--gpus", "A800-80GB", "--vllm"]
    ran = CliRunner().invoke(app, [*words, "0.18.0", "--max-model-len", "200000"])
    assert ran.exit_code == 11
    assert "131,072" in ran.output or "131072" in ran.output
