"""Runs inside an image: determines with its vLLM what a start would need, without starting it.

Every requested rank is built on PyTorch's meta device, where tensors have sizes but no memory, and
vLLM's own code groups its KV cache. No GPU is used: where the image is for CUDA, vLLM sees the GPU
that the question describes, so that it chooses the same kernels and block sizes as on that GPU.
`docker exec` runs this text unchanged, so it imports nothing from clusterctl.

stdin: {"gpu": {"capability": 90, "name": "H100", "bytes": ..., "multiprocessors": 132} or null,
"questions": [...]} (see `AskedStart`); stdout: one answer per line (see `answer`). vLLM is imported
once, and each question gets a forked process.

Most functions called here are private to vLLM. Those that moved between 0.25 and 0.33 are looked up
in each place. Tried with 0.25.1, 0.32.0 and 0.33.0.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import itertools
import json
import os
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

POOL = 1 << 42  # Bytes of a cache so large that whole blocks do not matter

# Context lengths for which the blocks of a request are counted, beside the longest
LENGTHS = tuple(1 << power for power in range(11, 21))

# What most questions import: once, before the processes part
SHARED = (
    "transformers.models.auto.modeling_auto",
    "vllm.model_executor.model_loader.utils",
    "vllm.model_executor.models.deepseek_v2",
    "vllm.model_executor.models.qwen2_5_vl",
    "vllm.v1.core.kv_cache_planning",
    "vllm.v1.worker.gpu.attn_utils",
)


class AskedStart(TypedDict):
    """A start to compute."""

    id: str
    directory: str  # Where the files are, if `files` is empty
    files: dict[str, str]  # The small ones of the model: config.json and what lies beside it
    arguments: list[str]  # Flags of `vllm serve`
    env: dict[str, str]
    ranks: list[int]  # Those to build
    room: list[int]  # Bytes that each stage has for weights and KV cache; empty if unknown


def main() -> None:
    asked = json.load(sys.stdin)
    stdout, sys.stdout = sys.stdout, sys.stderr
    hide_gpus()
    if asked["gpu"]:
        describe_gpu(asked["gpu"])
    shared = SHARED if len(asked["questions"]) > 1 else ()
    for module in ("vllm.engine.arg_utils", "vllm.model_executor.models.registry", *shared):
        with contextlib.suppress(Exception):
            importlib.import_module(module)

    for question in asked["questions"]:
        child = os.fork()
        if not child:
            print(json.dumps(answered(question)), file=stdout, flush=True)
            os._exit(0)
        os.waitpid(child, 0)


def answered(question: AskedStart) -> dict[str, Any]:
    """Return the answer, or vLLM's refusal in its own words."""
    import vllm

    said = {"id": question["id"], "vllm": vllm.__version__}
    os.environ.update(question["env"])
    with tempfile.TemporaryDirectory() as directory:
        for name, text in question["files"].items():
            Path(directory, Path(name).name).write_text(text)
        try:
            place = directory if question["files"] else question["directory"]
            return said | answer(question, place)
        except (Exception, SystemExit) as refused:
            import traceback

            traceback.print_exc()
            return said | {"refusal": str(refused) or repr(refused), "kind": type(refused).__name__}


def answer(question: AskedStart, directory: str) -> dict[str, Any]:
    """Build the ranks and divide a cache.

    Returns `stages` (per rank: runs of [bytes, count] in the order of creation), `hosted` (bytes of
    tables in the host's memory, per rank), `groups` (of the KV cache), `block_bytes` (per rank),
    `requests` ([length, blocks of a request]), the scheduler's limits, and `memory_refusal` (None
    if `room` is enough).
    """
    config = engine_config(directory, question["arguments"])
    ranks = []
    for rank in question["ranks"]:
        become(config, rank)
        ranks.append(build(config))
    caches = [rank.caches for rank in ranks]
    said: dict[str, Any] = {
        "architecture": config.model_config.architecture,
        "stages": [rank.runs for rank in ranks],
        "hosted": [rank.hosted for rank in ranks],
        "max_model_len": config.model_config.max_model_len,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "cache_dtype": config.cache_config.cache_dtype,
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "groups": [],
    }
    if not any(caches):
        return said
    with current(config):
        divide = settled(config, caches)
        room = [
            given - sum(size * count for size, count in rank.runs)
            for given, rank in zip(question["room"], ranks, strict=False)
        ]
        return said | divided(config, divide, len(ranks), room)


# --- no GPU, and one that is described ------------------------------------------------------------


def hide_gpus() -> None:
    """Hide all GPUs. An empty list of devices keeps Triton, which layers import."""
    os.environ.update(
        CUDA_VISIBLE_DEVICES="",
        VLLM_NO_USAGE_STATS="1",
        VLLM_WORKER_MULTIPROC_METHOD="spawn",
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_OFFLINE="1",
        VLLM_LOGGING_LEVEL="ERROR",
    )


class Anything:
    """Stands in for streams and events, which nothing waits for here."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def __enter__(self) -> Anything:
        return self

    def __exit__(self, *_: object) -> None: ...


def describe_gpu(gpu: dict[str, Any]) -> None:
    """Make PyTorch, Triton and vLLM's platform report this GPU, as many times as a start needs."""
    import torch

    major, minor = divmod(gpu["capability"], 10)
    properties = types.SimpleNamespace(
        name=gpu["name"],
        major=major,
        minor=minor,
        total_memory=gpu["bytes"],
        multi_processor_count=gpu["multiprocessors"],
        warp_size=32,
        is_integrated=False,
        uuid="GPU-0",
        L2_cache_size=50 << 20,
        regs_per_multiprocessor=1 << 16,
        max_threads_per_multi_processor=2048,
        shared_memory_per_block_optin=shared_memory(gpu["capability"]),
        shared_memory_per_multiprocessor=shared_memory(gpu["capability"]) + 1024,
    )
    known = {
        "get_device_properties": properties,
        "get_device_capability": (major, minor),
        "get_device_name": properties.name,
        "device_count": 1 << 12,
        "current_device": 0,
        "mem_get_info": (gpu["bytes"], gpu["bytes"]),
        "current_stream": Anything(),
        "default_stream": Anything(),
        "set_device": None,
        "synchronize": None,
        "empty_cache": None,
    }
    for name, value in known.items():
        setattr(torch.cuda, name, functools.partial(_constant, value))
    for name in ("device_count", "current_stream", "synchronize", "empty_cache"):
        setattr(torch.accelerator, name, functools.partial(_constant, known.get(name)))
    torch.accelerator.current_device_index = functools.partial(_constant, 0)
    torch.accelerator.set_device_index = functools.partial(_constant, None)
    torch.accelerator.get_memory_info = functools.partial(_constant, known["mem_get_info"])
    torch.accelerator.current_accelerator = lambda *_, **__: torch.device("cuda")
    for owner in (torch.cuda, torch):
        owner.Stream = owner.Event = Anything

    _empty_what_does_not_load()
    describe_platform(major, minor, gpu)
    describe_to_triton(gpu)
    keep_in_host_memory()


def shared_memory(capability: int) -> int:
    """Bytes of shared memory that a block may take (CUDA C++ Programming Guide, table of compute
    capabilities)."""
    kib = {70: 96, 75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
    return kib.get(capability, 99) << 10


def _constant(value: Any, *_: Any, **__: Any) -> Any:
    return value


def _empty_what_does_not_load() -> None:
    """Import an empty module in place of each compiled one that needs a different PyTorch or a
    driver. Sizes depend at most on their presence."""
    import importlib.abc
    import importlib.machinery as machinery
    import importlib.util

    class Compiled(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
            if not name.startswith("vllm.") or not name.endswith(("_C", "libtorch")):
                return None
            found = machinery.PathFinder.find_spec(name, path)
            spec = machinery.ModuleSpec(name, self, origin=found.origin if found else None)
            spec.loader_state = found
            return spec

        def create_module(self, spec: Any) -> Any:
            real = spec.loader_state
            with contextlib.suppress(ImportError, AttributeError):
                return importlib.util.module_from_spec(real)
            return types.ModuleType(spec.name)

        def exec_module(self, module: Any) -> None:
            real = module.__spec__.loader_state if module.__spec__ else None
            if real is not None and hasattr(real.loader, "exec_module"):
                with contextlib.suppress(ImportError):
                    real.loader.exec_module(module)

    sys.meta_path.insert(0, Compiled())


def describe_platform(major: int, minor: int, gpu: dict[str, Any]) -> None:
    """Replace vLLM's platform by that of CUDA with this capability."""
    from vllm import platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    known = {
        "get_device_capability": DeviceCapability(major, minor),
        "get_device_name": gpu["name"],
        "get_device_total_memory": gpu["bytes"],
        "get_device_uuid": "GPU-0",
        # The one for CUDA would connect to the peers
        "get_device_communicator_cls": "vllm.distributed.device_communicators."
        "base_device_communicator.DeviceCommunicatorBase",
        "is_fully_connected": gpu.get("nvlink", True),
        "is_pin_memory_available": False,
        "is_integrated_gpu": gpu["capability"] == 121,  # GB10
        "num_compute_units": gpu["multiprocessors"],
        "device_count": 1 << 12,
        "set_device": None,
        "manual_seed_all": None,
    }
    methods = {
        name: classmethod(lambda cls, *_, _value=value, **__: _value)
        for name, value in known.items()
    }
    platforms._current_platform = type("DescribedPlatform", (NonNvmlCudaPlatform,), methods)()


def describe_to_triton(gpu: dict[str, Any]) -> None:
    """Give Triton a driver that knows the target, which some layers query on import."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase
    from triton.runtime import driver

    properties = {
        "max_shared_mem": shared_memory(gpu["capability"]),
        "multiprocessor_count": gpu["multiprocessors"],
        "warpSize": 32,
        "max_num_regs": 1 << 16,
        "sm_clock_rate": 0,
        "mem_clock_rate": 0,
        "mem_bus_width": 0,
    }

    class Described(DriverBase):  # type: ignore[misc]
        def __init__(self) -> None:
            of_device = functools.partial(_constant, properties)
            self.utils = types.SimpleNamespace(get_device_properties=of_device)

        @classmethod
        def is_active(cls) -> bool:
            return True

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", gpu["capability"], 32)

        def get_active_torch_device(self) -> Any:
            import torch

            return torch.device("cuda", 0)

        def map_python_to_cpp_type(self, ty: str) -> str:
            return ty

        def get_benchmarker(self) -> Any:
            return functools.partial(_constant, 0.0)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int = 0) -> int:
            return 0

        def get_device_capability(self, device: int = 0) -> Any:
            return divmod(gpu["capability"], 10)

    driver.set_active(Described())


def keep_in_host_memory() -> None:
    """Let tables of n-grams believe that a GPU reads the host's memory, where they stay."""
    from vllm.utils import platform_utils, torch_utils

    platform_utils.is_uva_available = functools.partial(_constant, True)
    torch_utils.get_accelerator_view_from_cpu_tensor = lambda tensor: tensor


# --- the engine's configuration and its ranks -----------------------------------------------------


def engine_config(directory: str, arguments: list[str]) -> Any:
    """Return the config that `vllm serve` would use. The context of the API server decides the
    defaults of the batch."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.models import registry
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    # Models are inspected in a new process otherwise, which would look for a real GPU.
    registry._run_in_subprocess = lambda function: function()
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    fixed = ["--model", directory, "--skip-tokenizer-init", "--load-format", "dummy"]
    # Flags of the API server, such as those of tool calls, are unknown to this parser.
    parsed, _ = parser.parse_known_args([*arguments, *fixed])
    return EngineArgs.from_cli_args(parsed).create_engine_config(UsageContext.OPENAI_API_SERVER)


def current(config: Any) -> Any:
    from vllm.config import set_current_vllm_config

    return set_current_vllm_config(config)


def become(config: Any, rank: int) -> None:
    """Make this process that rank of the whole world, in groups whose collectives do nothing:
    PyTorch's own "fake" backend, divided by vLLM."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from vllm.distributed import parallel_state as state
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

    parallel = config.parallel_config
    if dist.is_initialized():
        state.destroy_model_parallel()
        state._WORLD = None
        dist.destroy_process_group()
    world = parallel.world_size * parallel.data_parallel_size
    parallel.rank = rank % parallel.world_size
    parallel.data_parallel_rank = rank // parallel.world_size
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    if not isinstance(dist.new_group, functools.partial):
        new_group = dist.new_group

        def without_peers(ranks: Any = None, *_: Any, **__: Any) -> Any:
            return new_group(ranks, backend="fake")

        dist.new_group = functools.partial(without_peers)
    MessageQueue.create_from_process_group = staticmethod(functools.partial(_constant, None))
    state._node_count = functools.partial(_constant, parallel.nnodes)
    if hasattr(state, "_NODE_COUNT"):
        state._NODE_COUNT = parallel.nnodes
    with current(config):
        state._WORLD = state.init_world_group(list(range(world)), 0, "fake")
        sizes = {
            "tensor_model_parallel_size": parallel.tensor_parallel_size,
            "pipeline_model_parallel_size": parallel.pipeline_parallel_size,
            "decode_context_model_parallel_size": parallel.decode_context_parallel_size,
        }
        prefill = getattr(parallel, "prefill_context_parallel_size", None)
        if prefill is not None:
            sizes["prefill_context_model_parallel_size"] = prefill
        state.initialize_model_parallel(**sizes, backend="fake")


class BuiltRank(NamedTuple):
    """What a rank holds."""

    runs: list[list[int]]  # Of equal tensors, as [bytes, count]
    caches: dict[str, Any]  # Of each layer
    hosted: int  # Bytes of tables that stay in the host's memory


def build(config: Any) -> BuiltRank:
    """Build this rank's part of the model, without memory."""
    import torch
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform

    with contextlib.suppress(ImportError):  # Some attention layers ask for scratch space
        from vllm.v1.worker.workspace import init_workspace_manager

        init_workspace_manager(torch.device("meta"), 1)
    config.compilation_config.static_forward_context.clear()
    before = torch.get_default_dtype()
    torch.set_default_dtype(config.model_config.dtype)
    try:
        with on_meta() as pinned, current(config), torch.no_grad():
            model = initialize_model(config)
            drafter = drafter_for(config, model)
    finally:
        torch.set_default_dtype(before)
    hosted = {each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in pinned}
    storages = {}
    parts = [part for part in (model, drafter) if part is not None]
    tensors = [(part.parameters(), part.buffers()) for part in parts]
    for tensor in itertools.chain.from_iterable(itertools.chain.from_iterable(tensors)):
        storage = tensor.untyped_storage()
        if storage._cdata not in hosted:
            storages[storage._cdata] = storage.nbytes()  # Shared ones, such as tied heads, once
    runs = [[size, len(list(run))] for size, run in itertools.groupby(storages.values())]
    with current(config):
        # Hybrids align the blocks of attention with a page of state.
        current_platform.update_block_size_for_backend(config)
        return BuiltRank(runs, layer_caches(config), sum(hosted.values()))


def drafter_for(config: Any, model: Any) -> Any:
    """Build the model that proposes tokens, sharing embeddings and head with `model` as the worker
    lets it; None without --speculative-config, and for methods without weights."""
    asked = config.speculative_config
    if asked is None or asked.draft_model_config is None or asked.method.startswith("ngram"):
        return None
    import torch
    from vllm.model_executor import model_loader
    from vllm.model_executor.model_loader.utils import initialize_model

    def get_model(*, vllm_config: Any, model_config: Any = None, prefix: str = "", **_: Any) -> Any:
        return initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)

    model_loader.get_model = get_model  # Without weights; the modules below import it
    from vllm.v1.worker.gpu.spec_decode import init_speculator

    taken = len(inspect.signature(init_speculator).parameters)
    speculator = init_speculator(*(config, torch.device("meta"), None)[:taken])
    return speculator.load_draft_model(model, set())


@contextlib.contextmanager
def on_meta() -> Iterator[list[Any]]:
    """Create all tensors on the meta device, even those that request CUDA by name or index, or the
    host's pinned memory. Yields a list that gets the latter."""
    import torch
    from torch.overrides import TorchFunctionMode

    meta, host = torch.device("meta"), torch.device("cpu")
    pinned: list[Any] = []

    def is_gpu(value: Any) -> bool:
        return isinstance(value, torch.device | str) and str(value).startswith("cuda")

    class OnMeta(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            if function is torch.Tensor.cuda:
                return args[0].to(meta)
            device = kwargs.get("device")
            if kwargs.pop("pin_memory", False) and torch.device(device or "cpu") == host:
                pinned.append(function(*args, **kwargs | {"device": meta}))
                return pinned[-1]
            if isinstance(device, int) or is_gpu(device):
                kwargs["device"] = meta
            args = tuple(meta if is_gpu(each) else each for each in args)
            return function(*args, **kwargs)

    with meta, OnMeta():
        yield pinned


def layer_caches(config: Any) -> dict[str, Any]:
    """Map the layers that have a cache to their KVCacheSpec."""
    with contextlib.suppress(ImportError):
        from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

        return dict(get_kv_cache_spec(config))
    found = {}
    for name, layer in config.compilation_config.static_forward_context.items():
        shares = getattr(layer, "kv_sharing_target_layer_name", None)
        if not shares and hasattr(layer, "get_kv_cache_spec"):
            found[name] = layer.get_kv_cache_spec(config)
    return {name: spec for name, spec in found.items() if spec is not None}


# --- the cache ------------------------------------------------------------------------------------


def settled(config: Any, caches: list[dict[str, Any]]) -> Any:
    """Do what EngineCore does first, and return the function that divides bytes of each rank."""
    from vllm.v1.attention.backends import utils as backends
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core import single_type_kv_cache_manager as kinds

    if hasattr(kinds, "register_all_kvcache_specs"):
        kinds.register_all_kvcache_specs(config)
    if hasattr(backends, "resolve_kv_cache_layout"):
        from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends

        offered = backends.get_supported_kv_cache_layouts(get_current_attn_backends(config))
        specs = [spec for each in caches for spec in each.values()]
        backends.resolve_kv_cache_layout(config, [[each.name for each in offered]], specs)
    try:
        from vllm.v1.core import kv_cache_planning as planning
    except ImportError:  # Before 0.33
        return lambda room: kv_cache_utils.get_kv_cache_configs(config, caches, room)
    groups = planning.get_global_kv_cache_groups(config, caches)
    config.adjust_dcp_kv_cache_interleave_size(groups)
    return lambda room: planning.get_kv_cache_configs(config, caches, room, groups)


def divided(config: Any, divide: Any, ranks: int, room: list[int]) -> dict[str, Any]:
    """Describe the groups, the bytes of a block on each rank, and the blocks of a request."""
    from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config

    length = config.model_config.max_model_len
    each = [[POOL if other == rank else POOL * ranks * 64 for other in range(ranks)]
            for rank in range(ranks)]  # fmt: skip
    whole = generate_scheduler_kv_cache_config(divide([POOL] * ranks))
    said: dict[str, Any] = {
        "groups": [group_of(group, config) for group in whole.kv_cache_groups],
        "block_bytes": [POOL // divide(rooms)[0].num_blocks for rooms in each],
        "requests": [],
        "memory_refusal": None,
    }
    lengths = [each for each in LENGTHS if each < length]
    for tokens in (*lengths, length):
        config.model_config.max_model_len = tokens
        said["requests"].append([tokens, sum(blocks_of(group.kv_cache_spec, config)
                                             for group in whole.kv_cache_groups)])  # fmt: skip
    if room:
        try:
            divide(room)
        except ValueError as refused:
            said["memory_refusal"] = str(refused)
    return said


def blocks_of(spec: Any, config: Any) -> int:
    """Return the blocks that a request of max_model_len takes from a group."""
    needed, page = int(spec.max_memory_usage_bytes(config)), int(spec.page_size_bytes)
    return -(-needed // page)


def group_of(group: Any, config: Any) -> dict[str, Any]:
    """Describe a group: number of layers, kind of cache, tokens and bytes of a layer's block."""
    spec = group.kv_cache_spec
    inner = next(iter(getattr(spec, "kv_cache_specs", {}).values()), spec)
    said = {
        "layers": len(group.layer_names),
        "kind": type(inner).__name__.removesuffix("Spec"),
        "block_size": spec.block_size,
        "page_bytes": spec.page_size_bytes,
        "blocks": blocks_of(spec, config),
    }
    for name in ("sliding_window", "attention_chunk_size", "compress_ratio"):
        value = getattr(inner, name, None)
        if value and value != 1:
            said[name] = value
    return said


if __name__ == "__main__":
    main()
