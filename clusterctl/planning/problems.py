"""Predict vLLM's errors before anything starts.

Problems have the names of the causes that are later recognised in logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from clusterctl.models.quantized import KNOWN_METHODS, NEEDS_CAPABILITY, requested
from clusterctl.models.shape import Experts, Mlp, ModelShape, Part
from clusterctl.models.version import show_version
from clusterctl.planning.hardware import SHARES_MEMORY, GpuModel
from clusterctl.planning.memory import FitPlan
from clusterctl.planning.options import AUTO_LENGTH, ServeOptions
from clusterctl.planning.rules import Rules
from clusterctl.planning.speed import NETWORK, SpeedModel
from clusterctl.serving.release_flags import deprecated_flags, refused_flags
from clusterctl.serving.vllm_flags import Argument
from clusterctl.units import GIB

# Names of problems that more memory would solve.
OF_MEMORY = frozenset({"cuda-oom", "no-kv-memory", "kv-too-small-for-len", "cuda-graph-mamba"})

_LARGEST_HOST = 16  # GPUs: more, named as those of one host, are in several

_ROUND_TO = 1024
_SHORTEST = 512  # A context shorter than this is useless, and is not suggested

# Headless, 102 of 121.69 GiB were free at the start of vLLM (GLM-5.3-Flash-EXL3-2x-DGX-Sparks#47).
_FREE_OF_SHARED = 0.82


@dataclass(frozen=True, slots=True)
class PredictedProblem:
    """A problem that vLLM would run into: a `fatal` one prevents its start, others degrade it."""

    name: str
    fatal: bool
    text: str
    hint: str


def predict_problems(
    shape: ModelShape,
    plan: FitPlan,
    rules: Rules,
    arguments: Sequence[Argument] = (),
) -> tuple[PredictedProblem, ...]:
    """Return all known problems of this plan, fatal ones first.

    `arguments`: all flags passed to vLLM, to find those that its version lacks.
    """
    gpus = [seat.gpu for seat in plan.placement.seats]
    found = [*_of_model(shape, plan.options, rules, gpus)]
    for error in refused_flags(arguments, rules.version):
        if "bitsandbytes" not in error.summary:
            hint = error.hint or "leave it out"
            found.append(PredictedProblem("unknown-arg", True, error.summary, hint))
    going = deprecated_flags(arguments, rules.version)
    found += [PredictedProblem("deprecated-flag", False, text, "leave it out") for text in going]
    found += _of_release(plan, rules)
    found += _of_speed(shape, plan)
    found += _of_memory(plan, rules, shape.context)
    return tuple(sorted(found, key=lambda item: not item.fatal))


def _of_release(plan: FitPlan, rules: Rules) -> Iterator[PredictedProblem]:
    """Yield bugs of specific releases that make a start with this layout fail."""
    stages = plan.placement.pp
    if rules.loses_stages and stages > 1:
        several = plan.placement.stages_cross_hosts or len(plan.ranks) > _LARGEST_HOST
        yield PredictedProblem(
            "stages-over-hosts",
            several,
            f"vLLM {plan.vllm} ends with a KeyError when it makes the KV cache of {stages} stages "
            "on several hosts through Ray (vllm-project/vllm#41287)",
            "an image of vLLM 0.20 or newer, or stages on one host",
        )
    if rules.compares_whole_model and stages > 1 and plan.verdict != "fits":
        yield PredictedProblem(
            "whole-model-compared",
            False,
            f"vLLM {plan.vllm} compares the cache of all {len(plan.partition)} stages with the "
            "memory of one (vllm-project/vllm#33698), which refuses contexts that would fit",
            "an image of vLLM 0.16 or newer",
        )


def _of_speed(shape: ModelShape, plan: FitPlan) -> Iterator[PredictedProblem]:
    """Yield what slows down each step, with its share of the estimate."""
    if any(seat.gpu.is_cpu for seat in plan.placement.seats):
        return
    model = SpeedModel(shape, plan.placement, plan.settings.quantization, NETWORK, plan.options)
    stages = model.stages()
    if launches := sum(model.launches(stage) for stage, _ in stages):
        yield PredictedProblem(
            "eager",
            False,
            "--enforce-eager: without CUDA graphs the host launches each operation, which takes "
            f"about {launches * 1e3:.0f} ms a step, however few requests there are",
            "leave --enforce-eager out if its memory is not needed",
        )
    if moved := sum(model.offloaded(stage) for stage, _ in stages):
        seconds = sum(model.offload(stage, gpu, 1) for stage, gpu in stages)
        yield PredictedProblem(
            "offload",
            False,
            f"--cpu-offload-gb: {moved / GIB:.1f} GiB of weights stay in the host's memory, which "
            f"adds about {seconds:.2g} s over PCIe to each step",
            "use more GPUs, or a model that is quantized further",
        )


def tp_problem(shape: ModelShape, tp: int, *, by_number: bool = False) -> str | None:
    """Return why vLLM does not accept that tensor parallel size for this model, or None.

    `by_number`: --enable-expert-parallel keeps experts whole, whatever their width.
    """
    found = heads_problem(shape, tp)
    for layer in dict.fromkeys(shape.layers) if found is None else ():
        experts = None if by_number else layer.experts
        if layer.mlp and layer.mlp.width % tp:
            return f"does not divide the MLP's width of {layer.mlp.width}"
        if experts and experts.width % tp:
            return f"does not divide the experts' width of {experts.width}"

        stored = dict(layer.stored)
        dense: Part = "shared" if layer.experts else "mlp"
        blocks: tuple[tuple[Part, Mlp | Experts | None], ...]
        blocks = ((dense, layer.mlp), ("experts", experts))
        for part, block in blocks:
            storage = stored.get(part, shape.quantization)
            side = storage.block if storage else None
            if block and side and block.width // tp % side:
                return f"does not divide the fp8 scale blocks of {side} in a width of {block.width}"
    return found


def heads_problem(shape: ModelShape, tp: int) -> str | None:
    """Return the problem that `tp_problem` finds in every architecture, or None.

    Attention heads must be divisible by the size (vllm/config/model.py). So must key/value heads,
    or they must divide the size if there are fewer: they are then replicated.
    """
    if shape.heads % tp:
        return f"does not divide the model's {shape.heads} attention heads"
    for heads in shape.kv_heads:
        if heads % tp and tp % heads:
            return f"neither divides the model's {heads} key/value heads nor is a multiple of them"
    return None


def possible_tp(shape: ModelShape, most: int, *, by_number: bool = False) -> tuple[int, ...]:
    """Return the tensor parallel sizes up to `most` that vLLM accepts for this model."""
    sizes = range(1, most + 1)
    return tuple(tp for tp in sizes if tp_problem(shape, tp, by_number=by_number) is None)


def context_problem(shape: ModelShape, options: ServeOptions, tp: int) -> str | None:
    """Return why vLLM does not divide the context of this model like that, or None
    (vllm/config/parallel.py, vllm/config/model.py, and v1/worker/gpu/pcp_manager.py of 0.33)."""
    ranks, prefill = options.shared_context, options.split_prefill
    given = f"--decode-context-parallel-size {ranks}"
    if prefill > 1:
        return _prefill_problem(shape, options, tp)
    if ranks == 1:
        return None
    if tp % ranks:
        return f"{given} does not divide --tp {tp}"
    heads = max(shape.kv_heads, default=1)
    if tp // heads < ranks:
        most = max(1, tp // heads)
        return (
            f"{given}: with --tp {tp} and {heads} key/value heads "
            f"each is on {most} ranks, and no more than these can divide the context"
        )
    queries = shape.heads // heads
    if heads > 1 and queries % ranks:
        return f"{given} does not divide the {queries} query heads of each key/value head"
    return None


def _prefill_problem(shape: ModelShape, options: ServeOptions, tp: int) -> str | None:
    ranks, prefill = options.shared_context, options.split_prefill
    given = f"--prefill-context-parallel-size {prefill}"
    if not shape.is_latent and not any(each.compressed for each in shape.attentions):
        return f"{given}: vLLM divides the prompts of models with latent attention (MLA) only"
    if shape.multimodal and not options.language_model_only:
        return f"{given}: vLLM divides no prompts of models that read images"
    sizes = sorted({1, prefill, tp * prefill})
    if ranks not in sizes:
        taken = ", ".join(map(str, sizes))
        return (
            f"--decode-context-parallel-size {ranks} beside {given} and --tp {tp}: vLLM takes one "
            f"of {taken}"
        )
    return None


def _of_model(
    shape: ModelShape, options: ServeOptions, rules: Rules, gpus: Sequence[GpuModel]
) -> Iterator[PredictedProblem]:
    """Yield a context beyond the model's, and number formats and quantisations that these GPUs, or
    this vLLM, cannot compute."""
    asked = options.max_model_len
    if asked is not None and asked != AUTO_LENGTH and asked > shape.context:
        yield PredictedProblem(
            "context-too-long",
            True,
            f"max_model_len {asked} is greater than the model's own context: "
            f"{shape.context_key}={shape.context}",
            f"--max-model-len {shape.context}",
        )
    old = _names(gpu for gpu in gpus if not gpu.has_bfloat16)
    if old and options.dtype == "bfloat16":
        text = f"bfloat16 needs compute capability 8.0, which {old} lacks"
        yield PredictedProblem("bf16-unsupported", True, text, "--dtype half")
    elif old and options.dtype == "auto" and shape.dtype == "bfloat16":
        yield PredictedProblem(
            "bf16-unsupported",
            False,
            f"the weights are bfloat16, which {old} lacks: they are cast to float16, and in a "
            "cluster of different GPUs every rank needs --dtype half",
            "--dtype half",
        )
    method, own = options.quantization, shape.quantization
    family = (method or "").lower().removesuffix("_marlin")
    # vLLM would raise the errors reported in vllm-project/vllm#4301 and #5842.
    if family in ("awq", "gptq") and not own:
        yield PredictedProblem(
            "quant-config-missing",
            True,
            f"--quantization {method} needs weights that are stored as {family.upper()}, and this "
            "model's weights are not quantised",
            f"a model quantised as {family.upper()}, or --quantization fp8, which quantises while "
            "loading",
        )
    elif own and family in KNOWN_METHODS - {own.method}:
        yield PredictedProblem(
            "quant-mismatch",
            True,
            f"--quantization {method} does not match the model's own quantisation, {own.method}",
            "leave --quantization out: vLLM takes the model's own",
        )
    stored = requested(method, own)
    if stored is None:
        return
    if stored.method == "bitsandbytes" and not rules.has_bitsandbytes:
        yield PredictedProblem(
            "bad-quant-name",
            True,
            f"vLLM {show_version(rules.version)} does not support bitsandbytes",
            "use a model quantised as AWQ, GPTQ or FP8, or an image of an older vLLM",
        )
    least = NEEDS_CAPABILITY.get(stored.method, 0)
    weak = _names(gpu for gpu in gpus if gpu.capability < least)
    slow = _names(gpu for gpu in gpus if not gpu.has_native_fp8 and not gpu.is_cpu)
    if weak:
        yield PredictedProblem(
            "quant-min-capability",
            True,
            f"{stored.method} needs compute capability {least / 10}, which {weak} lacks",
            "use unquantised weights on these GPUs",
        )
    elif stored.method == "fp8" and slow:
        yield PredictedProblem(
            "fp8-not-native",
            False,
            f"{slow} has no native fp8: weights are decompressed by Marlin kernels, which saves "
            "memory but no time",
            "nothing to do; newer GPUs (8.9 and up) compute in fp8",
        )


def _names(gpus: Iterable[GpuModel]) -> str:
    return ", ".join(dict.fromkeys(gpu.name for gpu in gpus))


def shorter_context(plan: FitPlan, longest: int) -> int | None:
    """Return the context to suggest: the longest that fits after deducting the margin of error, if
    it is shorter than the plan's and still useful. `longest`: the model's own."""
    worst = min(plan.ranks, key=lambda rank: rank.kv_cache_gib)
    if worst.kv_cache_gib <= worst.margin_gib:
        return None
    share = 1 - worst.margin_gib / worst.kv_cache_gib
    length = min(int(plan.longest_context * share) // _ROUND_TO * _ROUND_TO, longest)
    return length if _SHORTEST <= length < plan.settings.max_model_len else None


def requests_for(blocks: int) -> int:
    """Return the largest power of two, up to 1024, of requests that have a block each."""
    return 1 << min(max(blocks, 1).bit_length() - 1, 10)


def _of_memory(plan: FitPlan, rules: Rules, longest: int) -> Iterator[PredictedProblem]:
    """Yield the problems of memory, and of tensor parallelism across hosts."""
    worst = min(plan.ranks, key=lambda rank: rank.kv_cache_gib)
    fatal, shorter = plan.verdict == "does not fit", shorter_context(plan, longest)
    where = f"{worst.host} ({worst.gpu})"
    requests, blocks = plan.settings.batch.requests, plan.state_blocks
    if blocks and blocks[0] < requests > 1 and worst.kv_cache_gib > 0:
        yield PredictedProblem(
            "cuda-graph-mamba",
            blocks[1] < requests,
            f"--max-num-seqs {requests}: each request needs a block for its state, and there are "
            f"{blocks[0]} to {blocks[1]}",
            f"--max-num-seqs {requests_for(blocks[0])}",
        )
    if plan.verdict == "fits":
        pass
    elif worst.weights_gib > worst.memory_gib > 0:
        text = f"{where}: {worst.weights_gib:.1f} GiB of weights in {worst.memory_gib:.1f} GiB"
        yield PredictedProblem("cuda-oom", fatal, text, "more ranks, or quantised weights")
    elif worst.kv_cache_gib <= 0:
        text = f"{where}: no memory left for KV blocks ({worst.kv_cache_gib:.2f} GiB)"
        yield PredictedProblem(
            "no-kv-memory", fatal, text, "--gpu-memory-utilization, --tp or --pp up"
        )
    elif plan.longest_context < plan.settings.max_model_len <= longest:
        yield PredictedProblem(
            "kv-too-small-for-len",
            fatal,
            f"{where}: one request of {plan.settings.max_model_len} tokens does not fit in "
            f"{worst.kv_cache_gib:.2f} GiB of KV cache",
            f"--max-model-len {shorter}" if shorter else "more ranks",
        )
    elif plan.verdict == "may not fit":
        text = f"{where}: what is left is within the margin of error ({worst.margin_gib:.1f} GiB)"
        if worst.gpu == SHARES_MEMORY:
            text += ", which is wide: vLLM measures CUDA graphs in memory that the host changes too"
        yield PredictedProblem(
            "may-not-fit", False, text, "--gpu-memory-utilization up, or fewer --max-num-seqs"
        )
    if plan.placement.groups_cross_hosts:
        yield PredictedProblem(
            "tp-spread",
            False,
            "tensor parallel groups span hosts: every layer waits for the network",
            f"--tp 1 --pp {plan.placement.tp * plan.placement.pp}, or one replica per host",
        )
    shared = [rank.host for rank in plan.ranks if rank.gpu == SHARES_MEMORY]
    if shared and plan.settings.utilization > _FREE_OF_SHARED:
        yield PredictedProblem(
            "gpu-memory-taken",
            False,
            f"{SHARES_MEMORY} shares its memory with {shared[0]}, and vLLM refuses to start if "
            "less is free than it is to use",
            f"--gpu-memory-utilization {_FREE_OF_SHARED}",
        )
    over = [rank for rank in plan.ranks if rank.usable_gib + rank.cuda_graphs_gib > rank.memory_gib]
    charged = rules.charges_graphs(second_runner=plan.settings.second_runner)
    if over and not charged and over[0].memory_gib:
        yield PredictedProblem(
            "cuda-oom",
            False,
            f"vLLM {plan.vllm} does not budget for CUDA graphs: {over[0].cuda_graphs_gib:.1f} GiB "
            f"do not fit beside {over[0].usable_gib:.1f} of {over[0].memory_gib:.1f} GiB",
            "--gpu-memory-utilization 0.9, or --enforce-eager",
        )
