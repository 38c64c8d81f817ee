"""Versions of what the image has, read from package metadata: importing Ray takes a second."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata
from typing import List, Tuple

from clusterctl.node.ray_watch import VERSION_LABELS

FIRST_WITH_PLAIN_LABELS = (2, 49)  # Before it, `ray start --labels` wanted JSON, or was not there


@dataclass(frozen=True)
class Versions:
    """Empty where a package is not installed."""

    ray: str
    python: str
    vllm: str


def probe() -> Versions:
    return Versions(_of("ray"), platform.python_version(), _of("vllm"))


def labels(versions: Versions) -> List[str]:
    """Arguments for `ray start` that make the node's versions visible to the head."""
    if _release(versions.ray) < FIRST_WITH_PLAIN_LABELS:
        return []
    values = (versions.ray, versions.python)
    pairs = [f"{key}={_label(value)}" for key, value in zip(VERSION_LABELS, values)]  # noqa: B905 - Python 3.9
    return ["--labels=" + ",".join(pairs)]


def _of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _release(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _label(value: str) -> str:
    """Label values have letters, digits, dots, dashes and underscores, 63 at most."""
    return "".join(c if c.isalnum() or c in ".-_" else "-" for c in value)[:63]
