"""Which Ray goes with which vLLM. Pure."""

from __future__ import annotations

import re

RAY_FOR_VLLM = {
    (0, 25): "2.56.1",  # served with TP 2 and PP 2 over two hosts with one H200 each
    (0, 32): "2.60.0",  # served with TP 2 over two hosts, on CPU
    (0, 33): "2.56.1",  # vLLM's own CI: requirements/test/cuda.in, ray[default]>=2.56.0,<2.57
}
"""Pairs of which one is known to work, by vLLM's minor release."""

OTHERWISE = "2.56.1"

OLDEST_WITH_TOKENS = (2, 52)
"""The first Ray with token authentication (RAY_AUTH_MODE)."""


def ray_for(vllm: str | None) -> str:
    """The Ray release to install beside that release of vLLM, such as `0.33.0+cu130`."""
    major, minor, *_ = (*release(vllm or ""), 0, 0)
    return RAY_FOR_VLLM.get((major, minor), OTHERWISE)


def has_tokens(ray: str) -> bool:
    """Whether that release of Ray knows token authentication."""
    return release(ray) >= OLDEST_WITH_TOKENS


def release(version: str) -> tuple[int, ...]:
    """The leading numbers: `2.56.1rc1` is (2, 56, 1)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
