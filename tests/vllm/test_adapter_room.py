"""The room for adapters that `fit` counts is what vLLM itself makes, without a GPU or weights."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from clusterctl.models.catalogue import config_file
from clusterctl.models.config_json import describe
from clusterctl.planning.adapters import AdapterRoom, adapter_bytes
from clusterctl.planning.weights import PipelineStage
from tests.fakes.catalogue import config_of
from tests.vllm.engine import Engine

pytestmark = pytest.mark.timeout(600)  # On a busy machine

SHARDED = AdapterRoom(1, 32, sharded=True)


@pytest.mark.parametrize(
    ("model", "tp", "room"),
    [
        ("Qwen/Qwen3-1.7B", 1, AdapterRoom(2, 32)),
        ("Qwen/Qwen3-1.7B", 4, SHARDED),
        ("Qwen/Qwen3.5-27B", 4, AdapterRoom(2, 32)),
        ("google/gemma-4-31B-it", 4, SHARDED),
    ],
)
def test_the_bytes_are_those_that_vllm_makes(
    engine: Engine, model: str, tp: int, room: AdapterRoom
) -> None:
    flags = [f"--max-loras={room.slots}", f"--max-lora-rank={room.rank}"]
    flags += ["--fully-sharded-loras"] if room.sharded else []
    script, root = Path(__file__).with_name("adapter_room.py"), Path(__file__).parents[2]
    ran = subprocess.run(
        [str(engine.python), str(script), f"--tensor-parallel-size={tp}", "--enable-lora", *flags],
        input=config_file(model).read_bytes(),
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        check=True,
    )
    shape = describe(config_of(model))
    whole = PipelineStage(0, len(shape.layers), tp, has_embedding=True, has_head=True)

    assert adapter_bytes(shape, whole, room) == int(ran.stdout.splitlines()[-1])
