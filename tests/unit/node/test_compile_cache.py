"""The cache of compiled code, which belongs to one GPU of a host, in processes like vLLM's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.node.compile_cache import own_cache

ENVS = """\
environment_variables = {"VLLM_CACHE_ROOT": lambda: "/caches/vllm"}
def __getattr__(name):
    return environment_variables[name]()
"""

TORCH = """\
class cuda:
    index = None
    def is_initialized(): return cuda.index is not None
    def current_device(): return cuda.index
"""

# The plugins of a rank are loaded before it has chosen its GPU, and may be loaded several times.
RANK = """\
import sys
import torch
from vllm import envs
from clusterctl.node.compile_cache import register
register()
register()
print(envs.VLLM_CACHE_ROOT)
torch.cuda.index = int(sys.argv[1])
print(envs.VLLM_CACHE_ROOT)
"""


@pytest.mark.parametrize(
    ("gpu", "cache"), [(0, "/caches/vllm"), (1, "/caches/vllm/gpu1"), (7, "/caches/vllm/gpu7")]
)
def test_a_rank_loads_no_code_that_was_compiled_for_another_gpu(
    gpu: int, cache: str, tmp_path: Path
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    (tmp_path / "vllm" / "envs.py").write_text(ENVS)
    (tmp_path / "torch.py").write_text(TORCH)
    root = Path(__file__).parents[3]
    ran = subprocess.run(
        [sys.executable, "-c", RANK, str(gpu)],
        env={"PYTHONPATH": f"{root}:{tmp_path}"},
        capture_output=True,
        text=True,
    )
    assert ran.stdout.split() == ["/caches/vllm", cache], ran.stderr


def test_a_process_without_torch_has_the_first_cache() -> None:
    assert own_cache("/caches/vllm", 0) == "/caches/vllm"
