"""How a model's weights are stored: `quantization_config`, its lists of modules that are stored
differently, and the effect of --quantization."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Any

from clusterctl.models.shape import Quantization

# Compute capability x 10 below which vLLM refuses the method (`get_min_capability` in
# vllm/model_executor/layers/quantization).
NEEDS_CAPABILITY: dict[str, int] = {
    "fp8": 75, "mxfp8": 75, "nvfp4": 75, "mxfp4": 80, "awq": 75, "gptq": 75,
}  # fmt: skip

KNOWN_METHODS = frozenset({"fp8", "mxfp8", "nvfp4", "mxfp4", "int8", "awq", "gptq", "bitsandbytes"})

_FP8 = Quantization("fp8", 8)
_FP8_CHANNELS = Quantization("fp8", 8, channels=True)
_MXFP8 = Quantization("mxfp8", 8, group=32)
_NVFP4 = Quantization("nvfp4", 4, group=16)
MXFP4 = Quantization("mxfp4", 4, group=32)
_MXFP4_UNPADDED = Quantization("mxfp4", 4, group=32, padded=False)
_INT8 = Quantization("int8", 8)
_BITSANDBYTES = Quantization("bitsandbytes", 4, group=64)

# Lists of modules that are not quantised, by the names that each method has for them.
_PLAIN_LISTS = (
    "ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers",
    "llm_int8_skip_modules",
)  # fmt: skip

_EXPERTS = re.compile(r"\.experts(\.|$)")

# Modules beside the language model, whose layers are counted from 0 too.
_BESIDE = re.compile(r"^(model\.)?(mtp|vision|visual|audio|mm_projector|multi_modal)")

_LAYER = re.compile(r"^.*?(?=layers\.[\d*])")


@dataclass(frozen=True)
class StoredModules:
    """How each module of a checkpoint is stored: `usual`, unless its name, a parent's, or a pattern
    says otherwise. Names start at `layers.`; None means not quantised."""

    usual: Quantization | None = None
    named: Mapping[str, Quantization | None] = field(default_factory=dict)
    patterns: tuple[tuple[re.Pattern[str], Quantization | None], ...] = ()
    beside: Quantization | None = None  # How modules beside the language model are
    unknown: str = ""  # The method or algorithm, if it is not known here
    cache_dtype: str = "auto"

    def of(self, names: Iterable[str]) -> Quantization | None:
        """Return how the module with one of these names is stored."""
        if not self.named and not self.patterns:
            return self.usual
        for name in names:
            for part in _with_parents(name):
                if part in self.named:
                    return self.named[part]
            for pattern, stored in self.patterns:
                if pattern.search(name):
                    return stored
        return self.usual


def _with_parents(name: str) -> Iterator[str]:
    """Yield the name, and those of its parent modules."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def stored_modules(config: Mapping[str, Any], text: Mapping[str, Any]) -> StoredModules:
    """Return how the modules of the checkpoint with this config.json are stored."""
    given = config.get("quantization_config") or text.get("quantization_config")
    given = given or config.get("compression_config")
    if not isinstance(given, Mapping):
        return StoredModules()
    if isinstance(inner := given.get("quantization"), Mapping):  # ModelOpt's file, as it is
        given = {**given, **inner}

    usual, named, unknown = _usual(given)
    patterns: list[tuple[re.Pattern[str], Quantization | None]] = []
    for name in _plain_names(given):
        _add(name, None, named, patterns)
    if usual and usual.method == "mxfp4" and given.get("quant_method") == "mxfp4":
        usual = None  # vLLM quantises the experts alone in this way
        patterns.append((_EXPERTS, MXFP4))
    if config.get("expert_dtype") == "fp4" and usual:
        patterns.append((_EXPERTS, _MXFP4_UNPADDED))
    if given.get("moe_quant_algo") == "NVFP4":
        usual = Quantization("fp8", 8, block=_side(given) or None)
        named, patterns = {}, [(_EXPERTS, _NVFP4)]  # what is listed is meant for ModelOpt's tools
    listed = any(_BESIDE.match(name) for name in _plain_names(given))
    beside = usual if usual and usual.method == "fp8" and not listed else None
    return StoredModules(usual, named, tuple(patterns), beside, unknown, _cache_dtype(given))


def _plain_names(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names and patterns of modules that are not quantised."""
    for key in _PLAIN_LISTS:
        listed = given.get(key)
        if isinstance(listed, Sequence) and not isinstance(listed, str):
            yield from (name for name in listed if isinstance(name, str))
    dynamic = given.get("dynamic")  # GPTQModel: `-:` before a pattern of modules to leave out
    if isinstance(dynamic, Mapping):
        yield from (f"re:{key[2:]}" for key in dynamic if str(key).startswith("-:"))
    extra = given.get("extra_config")  # AutoRound
    if isinstance(extra, Mapping):
        for name, own in extra.items():
            if isinstance(own, Mapping) and own.get("bits", 4) >= 16:
                yield str(name)


def _add(
    name: str,
    stored: Quantization | None,
    named: dict[str, Quantization | None],
    patterns: list[tuple[re.Pattern[str], Quantization | None]],
) -> None:
    """Record how the modules that this name or pattern matches are stored."""
    if name.startswith("re:"):
        try:
            patterns.append((re.compile(name[3:]), stored))
        except re.error:
            return
        return

    if _BESIDE.match(name):
        return
    short = _LAYER.sub("", name).removesuffix(".weight")
    start = short.removesuffix("*").removesuffix(".")
    if "*" in start:
        patterns.append((re.compile(translate(short.lstrip("*."))[:-2]), stored))
    elif "layers." in short or short in ("lm_head", "head", "language_model.lm_head"):
        named[start.rpartition(".")[2] if "head" in start else start] = stored
    else:
        patterns.append((re.compile(rf"(^|\.){re.escape(start)}(\.|$)"), stored))


def _usual(
    given: Mapping[str, Any],
) -> tuple[Quantization | None, dict[str, Quantization | None], str]:
    """Return how linear layers are stored, which ones are named individually, and the method or
    algorithm if it is unknown."""
    method = str(given.get("quant_method") or "").lower().replace("-", "_")
    named: dict[str, Quantization | None] = {}
    algorithm = str(given.get("quant_algo") or "").upper()
    if method in ("awq", "gptq", "awq_marlin", "gptq_marlin", "auto_round"):
        group = _count(128, given.get("group_size"), given.get("q_group_size"))
        bits = _count(4, given.get("bits"), given.get("w_bit"))
        # GPTQ has zeros even when symmetric
        kind = "awq" if method.startswith("awq") else "gptq"
        return Quantization(kind, bits, group=max(0, group)), named, ""
    if algorithm == "MIXED_PRECISION" or given.get("quantized_layers"):
        unknown = _list_mixed(given, named)
        return None, named, unknown
    if algorithm:
        stored = _of_algorithm(algorithm, given)
        return (
            stored or Quantization(method or algorithm.lower(), 8),
            named,
            ("" if stored else algorithm),
        )
    if method in ("compressed_tensors", "modelopt", "modelopt_fp4", "sparseml"):
        return (*_of_groups(given, named), "")
    if method == "bitsandbytes":
        return (
            Quantization("bitsandbytes", 8 if given.get("load_in_8bit") else 4, group=64),
            (named),
            "",
        )
    if method == "mxfp4":
        return MXFP4, named, ""
    if method == "fbgemm_fp8":
        return _FP8_CHANNELS, named, ""
    if "fp8" in method:
        side = _side(given)
        return Quantization("fp8", 8, block=side) if side else _FP8, named, ""
    return (
        Quantization(method or "unknown", _count(8, given.get("bits"))),
        named,
        (method or "unknown"),
    )


def _side(given: Mapping[str, Any]) -> int:
    """Return the side of the blocks that share a scale; 0 without blocks."""
    block = given.get("weight_block_size")
    return _count(0, block[0]) if isinstance(block, list) and block else 0


def _list_mixed(given: Mapping[str, Any], named: dict[str, Quantization | None]) -> str:
    """Record how each layer of a mixed-precision checkpoint is stored; return an unknown algorithm,
    if any."""
    layers = given.get("quantized_layers")
    unknown = ""
    for name, own in layers.items() if isinstance(layers, Mapping) else ():
        algorithm = str(own.get("quant_algo", "")).upper() if isinstance(own, Mapping) else ""
        stored = _of_algorithm(algorithm, own if isinstance(own, Mapping) else {})
        unknown = unknown or ("" if stored else algorithm or "MIXED_PRECISION")
        _add(str(name), stored, named, [])
    return unknown


def _of_algorithm(algorithm: str, given: Mapping[str, Any]) -> Quantization | None:
    """Return the storage of one of ModelOpt's algorithms; None if it is unknown."""
    if "NVFP4" in algorithm:
        return _NVFP4
    if "MXFP8" in algorithm:
        return _MXFP8
    if "MXFP4" in algorithm:
        return _MXFP4_UNPADDED
    if algorithm.startswith("FP8_PB"):
        return Quantization("fp8", 8, block=_side(given) or 128)
    if algorithm.startswith("FP8"):
        return _FP8_CHANNELS if "CHANNEL" in algorithm else _FP8
    if "AWQ" in algorithm or algorithm.startswith("W4A"):
        return Quantization("awq", 4, group=_count(128, given.get("group_size")), zeros=False)
    return None


def _of_groups(
    given: Mapping[str, Any], named: dict[str, Quantization | None]
) -> tuple[Quantization | None, dict[str, Quantization | None]]:
    """Return the storage of the first group in `config_groups` that covers all linear layers, and
    record the modules that other groups name."""
    groups = given.get("config_groups")
    usual = None
    for group in groups.values() if isinstance(groups, Mapping) else ():
        if not isinstance(group, Mapping):
            continue
        stored = _of_group(group, str(group.get("format") or given.get("format") or ""))
        for target in group.get("targets") or ["Linear"]:
            if target == "Linear":
                usual = usual or stored
            else:
                _add(str(target), stored, named, [])
    if usual is None and not named:
        usual = _FP8
    return usual, named


def _of_group(group: Mapping[str, Any], form: str) -> Quantization:
    weights = group.get("weights")
    weights = weights if isinstance(weights, Mapping) else {}
    bits, size = _count(8, weights.get("num_bits")), _count(0, weights.get("group_size"))
    if weights.get("type") == "float" and bits == 4:
        return _NVFP4 if size == 16 or "nvfp4" in form else _MXFP4_UNPADDED
    if weights.get("type") == "float":
        if size == 32 or "mxfp8" in form:
            return _MXFP8
        block = weights.get("block_structure")
        if isinstance(block, list) and block:
            return Quantization("fp8", 8, block=_count(128, block[0]))
        return _FP8_CHANNELS if weights.get("strategy") == "channel" else _FP8
    if bits >= 8 and "pack" not in form:
        return _FP8_CHANNELS if weights.get("type") != "int" else _INT8
    zeros = not weights.get("symmetric", True)
    return Quantization("gptq", bits, group=size or 128, zeros=zeros)


def _cache_dtype(given: Mapping[str, Any]) -> str:
    """Return the dtype of the KV cache that the checkpoint specifies."""
    algorithm, scheme = given.get("kv_cache_quant_algo"), given.get("kv_cache_scheme")
    if isinstance(scheme, Mapping) and scheme.get("num_bits") == 8:
        return "fp8"
    named = str(algorithm or (scheme if isinstance(scheme, str) else "")).upper()
    return "fp8" if named.startswith("FP8") else "auto"


def _count(default: int, *values: object) -> int:
    """Return the first of `values` that is a non-zero number, else `default`."""
    found = (value for value in values if isinstance(value, int) and value)
    return next(found, default)


def requested(method: str | None, own: Quantization | None) -> Quantization | None:
    """Return the quantization with `--quantization METHOD`. The checkpoint's own takes precedence.

    Only fp8 and bitsandbytes can quantise weights while loading.
    """
    if own is not None or method is None:
        return own
    return {"fp8": _FP8, "bitsandbytes": _BITSANDBYTES}.get(method)
