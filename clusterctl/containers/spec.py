"""A container as it should be, and a fingerprint that tells two of them apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

FINGERPRINT_LABEL = "clusterctl.fingerprint"
CLUSTER_LABEL = "clusterctl.cluster"

# Of the json-file log driver, whose default keeps everything for ever.
LOG_OPTIONS = {"max-size": "50m", "max-file": "3"}


def container_name(cluster: str) -> str:
    """Of the node container, on every host."""
    return f"clusterctl-{cluster}"


@dataclass(frozen=True, order=True)
class Mount:
    """A bind mount."""

    source: str
    target: str
    read_only: bool = False

    @property
    def bind(self) -> str:
        """As `docker run -v` takes it."""
        return f"{self.source}:{self.target}{':ro' if self.read_only else ''}"


@dataclass(frozen=True)
class ContainerSpec:
    """Everything that `docker run` would be told. Network and IPC are always the host's.

    `image` is an image ID, never a tag: what was verified is what starts.
    """

    name: str
    image: str
    # Takes the place of the image's entry point and arguments; empty keeps both.
    command: tuple[str, ...]
    env: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()
    ulimits: Mapping[str, int] = field(default_factory=dict)  # Soft and hard alike; -1 is unlimited
    cdi_devices: tuple[str, ...] = ()  # Such as `nvidia.com/gpu=all`
    all_gpus: bool = False  # `--gpus all`, where the toolkit offers no CDI
    devices: tuple[str, ...] = ()  # Device paths, such as /dev/infiniband/uverbs0
    capabilities: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    stop_timeout: int = 90  # Seconds between SIGTERM and SIGKILL

    def fingerprint(self) -> str:
        """sha256 over the canonical spec; kept as a label on the container."""
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()
