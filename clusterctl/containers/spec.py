"""The desired container, and its fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

FINGERPRINT_LABEL = "clusterctl.fingerprint"
CLUSTER_LABEL = "clusterctl.cluster"

# Of the json-file log driver, which never deletes logs by default.
LOG_OPTIONS = {"max-size": "50m", "max-file": "3"}

# Of every container, against set-user-ID programs and file capabilities in its image.
SECURITY_OPTIONS = ("no-new-privileges",)

# Processes and threads. Ray starts a worker per CPU, with some 30 threads each, and the ranks have
# a thread per CPU: 256 CPUs need half of this, and the host's own limit is larger.
PIDS_LIMIT = 32_768


def container_name(cluster: str) -> str:
    """Return the name of the node container, the same on every host."""
    return f"clusterctl-{cluster}"


@dataclass(frozen=True, order=True)
class Mount:
    """A bind mount."""

    source: str
    target: str
    read_only: bool = False

    @property
    def bind(self) -> str:
        """The argument for `docker run -v`."""
        return f"{self.source}:{self.target}{':ro' if self.read_only else ''}"


@dataclass(frozen=True)
class ContainerSpec:
    """All settings of a container. Network and IPC are always the host's, and SECURITY_OPTIONS
    apply."""

    name: str
    image: str  # An image ID, never a tag: what was verified is what starts
    # Replaces the image's entry point and arguments; if empty, both are kept.
    command: tuple[str, ...]
    env: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()
    ulimits: Mapping[str, int] = field(default_factory=dict)  # Soft and hard; -1 is unlimited
    cdi_devices: tuple[str, ...] = ()  # Such as `nvidia.com/gpu=all`
    all_gpus: bool = False  # `--gpus all`, if the toolkit has no CDI
    devices: tuple[str, ...] = ()  # Device paths, such as /dev/infiniband/uverbs0
    capabilities: tuple[str, ...] = ()  # The only ones: all others are dropped
    pids_limit: int = PIDS_LIMIT
    labels: Mapping[str, str] = field(default_factory=dict)
    stop_timeout: int = 90  # Seconds between SIGTERM and SIGKILL

    def fingerprint(self) -> str:
        """Return the sha256 of the canonical spec, which becomes a label of the container."""
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()
