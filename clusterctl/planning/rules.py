"""How each vLLM version computes memory, and which of its two model runners a model gets.

Read in the sources of 0.7.2, 0.8.5.post1, 0.9.2, 0.10.2, 0.12.0, 0.15.1, 0.17.1, 0.18.0, 0.20.0,
0.22.0 to 0.26.0, 0.29.0, 0.32.0 and 0.33.0 (config/cache.py, engine/arg_utils.py, config/vllm.py,
v1/core/kv_cache_utils.py). A rule that changed between two of these applies from the version named
in the source or a log, otherwise from the first version in which it was seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clusterctl.errors import UsageError
from clusterctl.models.shape import ModelShape
from clusterctl.models.version import Version, parse_version, show_version
from clusterctl.serving.release_flags import BITSANDBYTES_ABSENT_FROM

Sampler = Literal["sort", "pivot", "gumbel"]

NEWEST: Version = (0, 33, 0)  # The newest version whose source was read

OLDEST: Version = (0, 7, 0)  # docs/decisions/0032-oldest-releases.md


@dataclass(frozen=True)
class _Of:
    """A rule of the versions from `since` on, up to but not including `until`."""

    since: Version = (0, 0, 0)
    until: Version = (999, 0, 0)

    def __get__(self, rules: Rules, owner: type) -> bool:
        return self.since <= rules.version < self.until


@dataclass(frozen=True)
class Rules:
    """How one version computes memory. `notes` explain the choice of version to the user."""

    version: Version
    notes: tuple[str, ...] = ()

    # The first engine: no chunked prefill, no hybrid cache, sampler on the first rank only.
    engine_v0 = _Of(until=(0, 8, 0))
    # Chunked prefill is on by default for models beyond 32K (vllm#6666).
    chunks_long_contexts = _Of((0, 5, 4))
    # Buffers of fused experts stay allocated after a step (v1/worker/workspace.py).
    keeps_workspace = _Of((0, 17, 0))
    # Top-k/top-p by pivots (v1/sample/ops/topk_topp_triton.py), before by sorting the vocabulary.
    _samples_by_pivots = _Of((0, 17, 0))
    # The second runner profiles sampling without top-k and top-p (`_dummy_sampler_run`).
    second_samples_plainly = _Of(until=(0, 33, 0))
    # CUDA graphs are estimated and deducted from the KV cache's share; on the second runner later
    # (`profile_cudagraph_memory` in v1/worker/gpu/).
    _graphs_charged = _Of((0, 21, 0))
    _second_charges_graphs = _Of((0, 29, 0))
    tunes_kernels = _Of((0, 15, 0))  # Compiled kernels are tuned on dummy arguments (overheads.py)
    # Weights are loaded with max_split_size_mb:20 (v1/worker/gpu_worker.py, `load_model`).
    unsplit_weights = _Of((0, 22, 0))
    # On Hopper mxfp4 experts are not padded, only their scales (weights.py)
    triton_mxfp4 = _Of((0, 25, 0))
    # "KV cache size" is concurrency x max_model_len (hybrid models: differs from before).
    tokens_from_concurrency = _Of((0, 21, 0))
    # Sliding windows reserve for every batch in flight: 2 with asynchronous scheduling.
    in_flight_batches = _Of((0, 26, 0))
    null_block_held = _Of((0, 26, 0))  # The start check plans with one block less than there is
    # Prefix caching, and with it aligned states, is on by default for models that keep a state: a
    # request holds two blocks of each group of them (vllm/model_executor/models/config.py).
    aligns_states = _Of((0, 24, 0))
    # A third block for a checkpoint inside a prompt, where FlashInfer computes delta nets: blocks
    # are then multiples of 64 (v1/kv_cache_interface.py, `MambaSpec`).
    checkpoints_states = _Of((0, 33, 0))
    # The start fails if --max-num-seqs is above the number of blocks (vllm#34094).
    needs_block_per_request = _Of((0, 16, 0))
    # Many requests with a state each were seen to take GiB that are not explained (memory.py)
    crowds_states = _Of((0, 26, 0))
    # 0.14 and 0.15 compare what the whole model needs with the memory of one stage (vllm#33698).
    compares_whole_model = _Of((0, 14, 0), (0, 16, 0))
    # Ray and stages on several hosts end with a KeyError when the cache is made (vllm#41287).
    loses_stages = _Of((0, 18, 0), (0, 20, 0))
    spares_a100 = _Of((0, 9, 0))  # A100 gets the small defaults of batch size (vllm#17885)
    widest_from_160_gib = _Of((0, 26, 0))  # GPUs of 160 GiB and more get 16384 batched tokens
    has_bitsandbytes = _Of(until=BITSANDBYTES_ABSENT_FROM)

    @property
    def utilization(self) -> float:
        """The default of --gpu-memory-utilization."""
        return 0.92 if self.version >= (0, 20, 0) else 0.9

    @property
    def sampler(self) -> Sampler:
        return "pivot" if self._samples_by_pivots else "sort"

    def charges_graphs(self, *, second_runner: bool) -> bool:
        """Return whether vLLM deducts CUDA graphs from the KV cache's share of memory, on its
        second model runner or on the first."""
        return self._second_charges_graphs if second_runner else self._graphs_charged


def too_old(version: Version) -> UsageError:
    """Return the error for a version before OLDEST, which is planned for, and not served."""
    return UsageError(
        f"vLLM {show_version(version)} is older than {show_version(OLDEST)}, the oldest release "
        "that can be served",
        hint=f"image: vllm/vllm-openai:v{show_version(NEWEST)} in the inventory, and clusterctl "
        "bootstrap",
    )


def require_served(version: str | None) -> None:
    """Raise UsageError for a version before OLDEST. One that cannot be parsed passes."""
    parsed = parse_version(version) if version else None
    if parsed and parsed < OLDEST:
        raise too_old(parsed)


def rules_for(version: str | None) -> Rules:
    """Return the rules of a version as users, images or `pip` write it.

    A version older or newer than any known here, or one that cannot be parsed, uses the nearest or
    the newest rules and notes that.
    """
    parsed = parse_version(version) if version else None
    if parsed is None:
        what = "no vLLM version given" if version is None else f"{version!r} is not a vLLM version"
        note = f"{what}: planned for {show_version(NEWEST)}, the newest version known here"
        return Rules(NEWEST, (note,))
    how, end, known = "newer", "newest", NEWEST
    if parsed < OLDEST:
        how, end, known = "older", "oldest", OLDEST
    elif parsed <= (*NEWEST[:2], 99):
        return Rules(parsed)
    note = (
        f"vLLM {show_version(parsed)} is {how} than the {end} version known here: "
        f"the rules of {show_version(known)} apply"
    )
    return Rules(parsed, (note,))


# From 0.22 on models move to a second runner (v1/worker/gpu/), which profiles memory differently:
# until 0.33 it samples without top-k and top-p, and before 0.29 it leaves CUDA graphs out of the
# sum. Read in `VllmConfig.use_v2_model_runner` (config/vllm.py) of 0.22.0 to 0.33.0.
_FROM = (0, 22, 0)
_FOR_DENSE_FROM = (0, 25, 0)
_FOR_ALL_FROM = (0, 29, 0)

# DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES; in 0.22 and 0.23 unquantised only.
_LISTED_SINCE: dict[str, Version] = {
    "Qwen3ForCausalLM": _FROM,
    "LlamaForCausalLM": (0, 23, 0),
    "MistralForCausalLM": (0, 23, 0),
    "DeepseekV2ForCausalLM": (0, 24, 0),
    "GraniteMoeForCausalLM": (0, 24, 0),
    "Qwen2MoeForCausalLM": (0, 24, 0),
}

# Mixtures of experts that 0.25 to 0.28 run on the second runner, beside all dense models.
_WITH_EXPERTS = frozenset({"DeepseekV2ForCausalLM", "GraniteMoeForCausalLM", "Qwen2MoeForCausalLM"})


def has_second_runner(shape: ModelShape, version: Version, *, quantized: bool) -> bool:
    """Return whether that version uses the second runner for the model by default."""
    if version < _FROM or version >= _FOR_ALL_FROM:
        return version >= _FOR_ALL_FROM
    if version >= _FOR_DENSE_FROM:
        return len(shape.attentions) == len(shape.layers) and (
            not any(layer.experts for layer in shape.layers) or shape.architecture in _WITH_EXPERTS
        )
    listed = version >= _LISTED_SINCE.get(shape.architecture, _FOR_ALL_FROM)
    return listed and not (quantized and version < (0, 24, 0))
