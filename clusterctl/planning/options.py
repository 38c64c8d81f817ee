"""The vLLM options that change memory, read from an argument list and checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.errors import ClusterctlError, UsageError, raise_all
from clusterctl.planning.allocator import GIB
from clusterctl.serving.vllm_flags import Argument, parse_arguments


class UnknownValue(UsageError):
    """A value that is not known here; a newer vLLM may know it."""


AUTO_LENGTH = -1  # --max-model-len auto: vLLM takes the longest context that fits


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """None means that vLLM's default applies. Sizes in GiB, lengths in tokens."""

    max_model_len: int | None = None
    utilization: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_dtype: str = "auto"
    dtype: str = "auto"
    quantization: str | None = None
    enforce_eager: bool = False
    block_size: int | None = None
    cpu_offload_gib: float = 0.0
    kv_cache_bytes: int | None = None
    async_scheduling: bool = True
    hybrid_cache: bool = True
    language_model_only: bool = False
    second_runner: bool | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    partition: tuple[int, ...] = ()


_LENGTH = re.compile(r"^(\d{1,12})(?:\.(\d{1,6}))?\s*([kKmMgG]?)$")
_FACTORS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}
_KV_DTYPES = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla")
_DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")


def parse_length(text: str) -> int:
    """`131072`, `256K` (1024s), `256k` (1000s), `25.6k`, as vLLM reads them; `auto` is -1.

    Raises ValueError. Lower case counts in thousands: vLLM's `human_readable_int`.
    """
    if text.strip().lower() in ("auto", "-1"):
        return AUTO_LENGTH
    match = _LENGTH.match(text.strip())
    if match is None or (match[2] and match[3] not in ("k", "m", "g")):
        raise ValueError("a number of tokens such as 131072, 128K or auto")
    value = int(float(f"{match[1]}.{match[2] or 0}") * _FACTORS[match[3]])
    if value <= 0:
        raise ValueError("more than 0")
    return value


def _count(text: str) -> int:
    value = parse_length(text)
    if value <= 0:
        raise ValueError("more than 0")
    return value


def _utilization(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError("between 0 and 1, such as 0.9")
    return value


def _gib(text: str) -> float:
    value = float(text)
    if not 0 <= value < 65536:
        raise ValueError("a size in GiB")
    return value


class _NotListedError(ValueError):
    """The value is none of those known here."""


def _one_of(*allowed: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in allowed:
            raise _NotListedError(f"one of {', '.join(allowed)}")
        return text

    return check


def _partition(text: str) -> tuple[int, ...]:
    layers = tuple(int(part) for part in text.split(","))
    if any(count < 0 for count in layers):
        raise ValueError("layers per stage, such as 13,51")
    return layers


_READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "max-model-len": ("max_model_len", parse_length),
    "gpu-memory-utilization": ("utilization", _utilization),
    "max-num-seqs": ("max_num_seqs", _count),
    "max-num-batched-tokens": ("max_num_batched_tokens", _count),
    "kv-cache-dtype": ("kv_cache_dtype", _one_of(*_KV_DTYPES)),
    "dtype": ("dtype", _one_of(*_DTYPES)),
    "quantization": ("quantization", str),
    "block-size": ("block_size", _count),
    "cpu-offload-gb": ("cpu_offload_gib", _gib),
    "kv-cache-memory-bytes": ("kv_cache_bytes", _count),
    "tensor-parallel-size": ("tp", _count),
    "pipeline-parallel-size": ("pp", _count),
    "data-parallel-size": ("dp", _count),
}

_SWITCHES: dict[str, tuple[str, bool]] = {
    "enforce-eager": ("enforce_eager", True),
    "async-scheduling": ("async_scheduling", True),
    "disable-hybrid-kv-cache-manager": ("hybrid_cache", False),
    "language-model-only": ("language_model_only", True),
}


def parse_options(
    arguments: Sequence[str] | Sequence[Argument], env: Mapping[str, str] | None = None
) -> ServeOptions:
    """The options in an argument list for `vllm serve`; others are passed over.

    `env`: variables of vLLM's process; VLLM_CPU_KVCACHE_SPACE (GiB), VLLM_PP_LAYER_PARTITION
    and VLLM_USE_V2_MODEL_RUNNER are read. Raises UsageError, or Problems, for every value that
    vLLM would refuse; UnknownValue for those that only a newer vLLM may take.
    """
    errors: list[ClusterctlError] = []
    values: dict[str, Any] = _from_env(env or {}, errors)
    for argument in _as_arguments(arguments):
        values |= _read(argument, errors)
    raise_all(errors)
    return replace(ServeOptions(), **values)


def _as_arguments(arguments: Sequence[str] | Sequence[Argument]) -> list[Argument]:
    words = [item for item in arguments if isinstance(item, str)]
    given = [item for item in arguments if isinstance(item, Argument)]
    return [*parse_arguments(words), *given]


def _from_env(env: Mapping[str, str], errors: list[ClusterctlError]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    space = env.get("VLLM_CPU_KVCACHE_SPACE")
    if space:
        found = _checked("VLLM_CPU_KVCACHE_SPACE", space, _gib, errors)
        values["kv_cache_bytes"] = int(found * GIB) if found else None
    layers = env.get("VLLM_PP_LAYER_PARTITION")
    if layers:
        values["partition"] = _checked("VLLM_PP_LAYER_PARTITION", layers, _partition, errors) or ()
    runner = env.get("VLLM_USE_V2_MODEL_RUNNER")
    if runner in ("0", "1"):
        values["second_runner"] = runner == "1"
    return values


def _read(argument: Argument, errors: list[ClusterctlError]) -> dict[str, Any]:
    if argument.key in _SWITCHES:
        field, when_given = _SWITCHES[argument.key]
        return {field: when_given != argument.negated}
    if argument.key not in _READERS:
        return {}
    field, reader = _READERS[argument.key]
    if len(argument.values) != 1:
        errors.append(UsageError(f"{argument.flag} takes one value", hint="vllm serve --help"))
        return {}
    return {field: _checked(argument.flag, argument.values[0], reader, errors)}


def _checked(
    flag: str, text: str, reader: Callable[[str], Any], errors: list[ClusterctlError]
) -> Any:
    try:
        return reader(text)
    except ValueError as refused:
        reason = str(refused)
        wanted = "a number" if reason.startswith(("could not", "invalid literal")) else reason
        kind = UnknownValue if isinstance(refused, _NotListedError) else UsageError
        errors.append(kind(f"{flag} {text}: vLLM wants {wanted}", hint="vllm serve --help"))
        return None
