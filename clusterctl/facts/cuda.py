"""Compare an image's CUDA with a host's driver and GPUs, by NVIDIA's published tables. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from operator import eq, ge, gt, le, lt

from clusterctl.facts.model import GpuFacts
from clusterctl.published import table

_TABLE = table("cuda")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(word) for word in re.findall(r"\d+", version))


# Driver branch to the newest CUDA that it supports
_NEWEST_CUDA = {int(k): _numbers(v) for k, v in _TABLE["newest_cuda_of_driver"].items()}

# Oldest driver for any minor version of a CUDA (minor version compatibility)
_FIRST_DRIVER: Mapping[int, str] = {int(k): v for k, v in _TABLE["first_driver_of_cuda"].items()}

_CONDITION = re.compile(r"(cuda|driver)\s*(>=|<=|=|<|>)\s*([0-9.]+)")


def too_old(driver: str, env: Mapping[str, str]) -> str | None:
    """Return what the image requires, for the user, if `driver` cannot run it; None if it can, or
    if either is unknown. `env`: the image's environment."""
    ours = _numbers(driver)
    if not ours:
        return None
    if wanted := env.get("NVIDIA_REQUIRE_CUDA"):
        alternatives = [_CONDITION.findall(words) for words in wanted.split()]
        known = [conditions for conditions in alternatives if conditions]
        branches = [branch for branch in _NEWEST_CUDA if branch <= ours[0]]
        # A driver that the table does not have is assumed to be good enough.
        if not known or not branches or ours[0] >= max(_NEWEST_CUDA) + 5:
            return None
        cuda = _NEWEST_CUDA[max(branches)]
        if any(_hold(conditions, ours, cuda) for conditions in known):
            return None
        named = [value for conditions in known for what, _, value in conditions if what == "cuda"]
        return f"CUDA {named[0]}" if named else wanted
    version = env.get("CUDA_VERSION", "")
    first = _FIRST_DRIVER.get(_numbers(version)[0]) if _numbers(version) else None
    return f"CUDA {version}" if first and ours < _numbers(first) else None


def needed_driver(env: Mapping[str, str]) -> str | None:
    """The oldest driver branch that supports the image's CUDA, such as `570`; None if unknown."""
    words = re.search(r"cuda>=([0-9.]+)", env.get("NVIDIA_REQUIRE_CUDA", ""))
    version = _numbers(words[1] if words else env.get("CUDA_VERSION", ""))[:2]
    if not version:
        return None
    if not words and version[0] in _FIRST_DRIVER:
        return _FIRST_DRIVER[version[0]]
    return next((str(branch) for branch, cuda in _NEWEST_CUDA.items() if cuda >= version), None)


_OPERATORS = {">=": ge, "<=": le, "=": eq, "<": lt, ">": gt}


def _hold(
    conditions: Sequence[tuple[str, str, str]], driver: Sequence[int], cuda: Sequence[int]
) -> bool:
    """Whether all conditions hold. Brands are ignored: images list the same drivers for all."""
    for what, operator, value in conditions:
        wanted = _numbers(value)
        # Compare as many numbers as are wanted: 535.161 equals 535.
        ours = tuple(driver if what == "driver" else cuda)[: len(wanted)]
        if not _OPERATORS[operator](ours, wanted):
            return False
    return True


def no_code_for(gpu: GpuFacts, env: Mapping[str, str]) -> tuple[str, str] | None:
    """Return cause and fix if the image's CUDA cannot have code for the GPU's generation; None if
    it may have, or if either is unknown."""
    required = re.search(r"cuda>=([0-9.]+)", env.get("NVIDIA_REQUIRE_CUDA", ""))
    version = env.get("CUDA_VERSION") or (required[1] if required else "")
    capability = gpu.compute_capability
    ours = _numbers(version)[:2]
    if not ours or not capability:
        return None

    what = (
        f"CUDA {version} of the image has no code for {gpu.model} (compute capability "
        f"{capability}), which CUDA"
    )
    if (first := _of_generation("first_cuda_of_gpu", capability)) and ours < _numbers(first):
        return f"{what} {first} introduced", f"an image with CUDA {first} or later"
    if (last := _of_generation("last_cuda_of_gpu", capability)) and ours[0] > int(last):
        return f"{what} {int(last) + 1} dropped", f"an image with CUDA {last}"
    return None


def _of_generation(column: str, capability: str) -> str | None:
    """Look up `8.9`, else its generation, `8`: code for 8.0 runs on every 8.x."""
    of_gpu: Mapping[str, str] = _TABLE[column]
    return of_gpu.get(capability) or of_gpu.get(capability.partition(".")[0])
