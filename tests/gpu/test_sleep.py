"""vLLM's sleep mode on a GPU keeps the contract that its stand-in keeps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.gpu.conftest import ON_CPUS, Table


@pytest.mark.skipif(ON_CPUS or not shutil.which("vllm"), reason="needs vLLM for GPUs here")
def test_vllm_keeps_the_contract_of_a_sleeper(gpus: int, table: Table) -> None:
    model = os.environ.get("CLUSTERCTL_GPU_MODEL")
    if not model:
        pytest.skip("CLUSTERCTL_GPU_MODEL names no directory")
    flags = ["--enable-sleep-mode", "--max-model-len", "4096"]
    if os.path.exists(f"{model}/RANDOM_WEIGHTS"):  # noqa: PTH110 - one look
        flags += ["--load-format", "dummy"]
    argv = [sys.executable, "-m", "tests.gpu.sleep", model, "--cycles", "20", *flags]
    ran = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=900)
    for line in ran.stdout.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            table.add(f"sleep: {row.pop('what')}", **row)
    assert ran.returncode == 0
