"""Prints the bytes that vLLM makes for adapters in the model whose config.json is on stdin, on the
meta device: `adapter_room.py FLAG...`, with a Python that has vLLM. Not imported."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch

from clusterctl.planning import ask_vllm as asked
from vllm.lora.layers import BaseLayerWithLoRA
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.v1.worker.lora_model_runner_mixin import LoRAModelRunnerMixin

asked.hide_gpus()
with tempfile.TemporaryDirectory() as place:
    Path(place, "config.json").write_text(sys.stdin.read())
    config = asked.engine_config(place, sys.argv[1:])
    asked.become(config, 0)
    torch.set_default_dtype(config.model_config.dtype)
    with asked.on_meta(), asked.current(config), torch.no_grad():
        model = initialize_model(config)
        before = {id(each) for each in (*model.parameters(), *model.buffers())}
        LoRAModelRunnerMixin().load_lora_model(model, config, torch.device("meta"))
layers = [each for each in model.modules() if isinstance(each, BaseLayerWithLoRA)]
made = [value for layer in layers for value in vars(layer).values()]
several = [value if isinstance(value, list | tuple) else [value] for value in made]
tensors = [each for values in several for each in values if isinstance(each, torch.Tensor)]
storages = {
    each.untyped_storage()._cdata: each.untyped_storage().nbytes()
    for each in tensors
    if id(each) not in before
}
print(json.dumps(sum(storages.values())))
