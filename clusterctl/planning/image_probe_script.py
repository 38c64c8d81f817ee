"""Runs inside the image: computes with its vLLM how much memory a model takes, without starting it.

The model is built on the meta device, where it has sizes but no memory, once per pipeline stage, as
rank 0 of its tensor parallel group would build it. vLLM's own planner then divides a KV cache.
`docker exec` runs this text unchanged, so it imports nothing from clusterctl.

Most functions it calls are private to vLLM and change between releases. If it fails, the failure is
reported and the formulas are used alone.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

# Bytes of the KV cache to divide: a larger one reduces the effect of rounding.
POOL = 1 << 40


def main() -> None:
    """Read the question from stdin and write the answer to stdout, as JSON; logs go to stderr."""
    question = json.load(sys.stdin)
    os.environ.update(question["env"])
    stdout, sys.stdout = sys.stdout, sys.stderr
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(question["config"]))
        answer = ask(question, directory)
    json.dump(answer, stdout)


def ask(question: dict[str, Any], directory: str) -> dict[str, Any]:
    """Answer a question: config (the model's config.json), arguments (of `vllm serve`), env, tp,
    pp."""
    import vllm

    config = engine_config(question, directory)
    groups = one_process_groups(config, directory)
    built = []
    for stage in range(question["pp"]):
        take_place(groups, question["tp"], question["pp"], stage)
        built.append(build(config))
    return {
        "vllm": vllm.__version__,
        "memory": device_memory(),
        "stages": [sizes for sizes, _ in built],
        **cut_cache(config, [specs for _, specs in built]),
    }


def engine_config(question: dict[str, Any], directory: str) -> Any:
    """Return the config that `vllm serve` would use. TP and PP are set after it is created: vLLM
    would otherwise require as many GPUs."""
    from vllm.engine.arg_utils import EngineArgs

    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:  # before 0.12
        from vllm.utils import FlexibleArgumentParser
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    fixed = ["--model", directory, "--skip-tokenizer-init", "--load-format", "dummy"]
    # Ignore flags of the API server, such as those of tool calls.
    parsed, _ = parser.parse_known_args([*question["arguments"], *fixed])
    config = EngineArgs.from_cli_args(parsed).create_engine_config()
    parallel = config.parallel_config
    parallel.tensor_parallel_size = question["tp"]
    parallel.pipeline_parallel_size = question["pp"]
    parallel.world_size = question["tp"] * question["pp"]
    return config


def one_process_groups(config: Any, directory: str) -> tuple[Any, Any]:
    """Return vLLM's tensor and pipeline parallel groups, with this process as the only member."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state

    with set_current_vllm_config(config):
        store = f"file://{directory}/ranks"
        parallel_state.init_distributed_environment(1, 0, store, 0, "gloo")
        parallel_state.initialize_model_parallel(1, 1)
    return parallel_state.get_tp_group(), parallel_state.get_pp_group()


def take_place(groups: tuple[Any, Any], tp: int, pp: int, stage: int) -> None:
    """Make this process look like the first of `tp` ranks of that stage."""
    for group, size, rank in zip(groups, (tp, pp), (0, stage), strict=True):
        group.ranks = list(range(size))
        group.world_size = size
        group.rank = group.rank_in_group = rank


def build(config: Any) -> tuple[list[list[int]], dict[str, Any]]:
    """Build a stage. Returns runs of equal tensors in the order of creation, as [bytes, count], and
    the KV cache specs of its layers."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model

    config.compilation_config.static_forward_context.clear()
    before = torch.get_default_dtype()
    torch.set_default_dtype(config.model_config.dtype)
    try:
        with torch.device("meta"), set_current_vllm_config(config):
            model = initialize_model(config)
    finally:
        torch.set_default_dtype(before)
    tensors = itertools.chain(model.parameters(), model.buffers())
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    runs = [[size, len(list(run))] for size, run in itertools.groupby(sizes)]
    with set_current_vllm_config(config):
        return runs, cache_specs(config)


def cache_specs(config: Any) -> dict[str, Any]:
    """Map layer names to their KVCacheSpec, without layers that share another layer's cache."""
    found = {}
    for name, layer in config.compilation_config.static_forward_context.items():
        if getattr(layer, "kv_sharing_target_layer_name", None):
            continue
        spec = layer.get_kv_cache_spec(config) if hasattr(layer, "get_kv_cache_spec") else None
        if spec is not None:
            found[name] = spec
    return found


def cut_cache(config: Any, specs: list[dict[str, Any]]) -> dict[str, Any]:
    """Divide POOL bytes per rank with vLLM: blocks, concurrent requests, bytes per block."""
    from vllm.config import set_current_vllm_config
    from vllm.v1.core import kv_cache_utils as planner

    with set_current_vllm_config(config):
        settle_layout(config, specs)
        whole = planner.get_kv_cache_configs(config, specs, [POOL] * len(specs))
        alone = [planner.get_kv_cache_configs(config, [one], [POOL])[0] for one in specs]
        requests = planner.get_max_concurrency_for_kv_cache_config(config, whole[0])
    return {
        "blocks": whole[0].num_blocks,
        "block_bytes": [POOL / one.num_blocks for one in alone],
        "concurrency": requests,
        "max_model_len": config.model_config.max_model_len,
    }


def settle_layout(config: Any, specs: list[dict[str, Any]]) -> None:
    """Register KV cache specs and choose the cache layout, as EngineCore does at start. Releases
    without these functions skip both."""
    from vllm.v1.attention.backends import utils as backends
    from vllm.v1.core import single_type_kv_cache_manager as kinds

    if hasattr(kinds, "register_all_kvcache_specs"):
        kinds.register_all_kvcache_specs(config)
    if hasattr(backends, "resolve_kv_cache_layout"):
        from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends

        offered = backends.get_supported_kv_cache_layouts(get_current_attn_backends(config))
        every = [spec for one in specs for spec in one.values()]
        backends.resolve_kv_cache_layout(config, [[each.name for each in offered]], every)


def device_memory() -> int | None:
    """Return the total bytes of the first GPU according to PyTorch; None without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    return int(torch.cuda.get_device_properties(0).total_memory)


if __name__ == "__main__":
    main()
