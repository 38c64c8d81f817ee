"""The NVIDIA driver against the CUDA that an image was built for. Pure.

CUDA images say in NVIDIA_REQUIRE_CUDA what they run on: alternatives between spaces, conditions
between commas (`cuda>=12.8 brand=tesla,driver>=550,driver<551`); the toolkit's classic mode
refuses to start a container whose condition is not met. Images without it name their CUDA in
CUDA_VERSION.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

# Driver branch to the newest CUDA it was made for: `CUDA Version` in nvidia-smi's heading, and the
# table of drivers in the CUDA toolkit's release notes
NEWEST_CUDA = {
    450: (11, 0), 455: (11, 1), 460: (11, 2), 465: (11, 3), 470: (11, 4), 495: (11, 5),
    510: (11, 6), 515: (11, 7), 520: (11, 8), 525: (12, 0), 530: (12, 1), 535: (12, 2),
    545: (12, 3), 550: (12, 4), 555: (12, 5), 560: (12, 6), 565: (12, 7), 570: (12, 8),
    575: (12, 9), 580: (13, 0), 590: (13, 1),
}  # fmt: skip

# Oldest driver for any minor version of a CUDA (minor version compatibility: CUDA Compatibility
# guide, table 1)
FIRST_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}

_CONDITION = re.compile(r"(cuda|driver)\s*(>=|<=|=|<|>)\s*([0-9.]+)")


def too_old(driver: str, env: Mapping[str, str]) -> str | None:
    """What the image wants, in words, when `driver` cannot run it; None when it can, or when
    image or driver are unknown here. `env`: the image's environment."""
    ours = _numbers(driver)
    if not ours:
        return None
    if wanted := env.get("NVIDIA_REQUIRE_CUDA"):
        alternatives = [_CONDITION.findall(words) for words in wanted.split()]
        known = [conditions for conditions in alternatives if conditions]
        cuda = _newest_cuda(ours)
        if not known or cuda is None or any(_holds(a, ours, cuda) for a in known):
            return None
        return _first_cuda(known) or wanted
    version = env.get("CUDA_VERSION", "")
    first = FIRST_DRIVER.get(_numbers(version)[0]) if _numbers(version) else None
    return f"CUDA {version}" if first and ours < _numbers(first) else None


def needed_driver(env: Mapping[str, str]) -> str | None:
    """The oldest branch made for the image's CUDA, such as `570`; None where it is not known."""
    words = re.search(r"cuda>=([0-9.]+)", env.get("NVIDIA_REQUIRE_CUDA", ""))
    version = _numbers(words[1] if words else env.get("CUDA_VERSION", ""))[:2]
    if not version:
        return None
    if not words and version[0] in FIRST_DRIVER:
        return FIRST_DRIVER[version[0]]
    return next((str(branch) for branch, cuda in NEWEST_CUDA.items() if cuda >= version), None)


def _newest_cuda(driver: Sequence[int]) -> tuple[int, ...] | None:
    """None for a driver newer than this table: it is taken to be good enough."""
    branches = [branch for branch in NEWEST_CUDA if branch <= driver[0]]
    if driver[0] >= max(NEWEST_CUDA) + 5 or not branches:
        return None
    return NEWEST_CUDA[max(branches)]


def _holds(
    conditions: Sequence[tuple[str, str, str]], driver: Sequence[int], cuda: Sequence[int]
) -> bool:
    """Whether all hold. A brand is not looked at: images list the same drivers for each."""
    return all(
        _compare(driver if what == "driver" else cuda, operator, _numbers(value))
        for what, operator, value in conditions
    )


def _compare(ours: Sequence[int], operator: str, wanted: Sequence[int]) -> bool:
    """As many numbers as are wanted: 535.161 equals 535."""
    left, right = tuple(ours[: len(wanted)]), tuple(wanted)
    return {
        ">=": left >= right,
        "<=": left <= right,
        "=": left == right,
        "<": left < right,
        ">": left > right,
    }[operator]


def _first_cuda(alternatives: Sequence[Sequence[tuple[str, str, str]]]) -> str | None:
    return next(
        (f"CUDA {value}" for conditions in alternatives for what, _, value in conditions
         if what == "cuda"),
        None,
    )  # fmt: skip


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(word) for word in re.findall(r"\d+", version))
