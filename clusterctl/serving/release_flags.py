"""Flags that were added or removed between vLLM releases, so that a start that must fail is refused
before anything is stopped for it.

Found by reading the argument definitions of 0.7.2, 0.8.5.post1, 0.9.2, 0.10.2, 0.11.2, 0.12.0,
0.15.1, 0.17.1, 0.18.0, 0.20.0, 0.25.1, 0.29.0 and 0.33.0. `absent_from` is the first of these
without the flag: a release in between may lack it already, and then vLLM itself refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clusterctl.errors import UsageError
from clusterctl.models.version import Version, show_version
from clusterctl.serving.vllm_flags import Argument

SHUTDOWN_TIMEOUT_SINCE: Version = (0, 18, 0)  # --shutdown-timeout (vllm#34730)

DATA_PARALLEL_BACKEND_SINCE: Version = (0, 9, 2)

# The package of 0.28.0 has neither the quantisation nor its loader; 0.27.1 has both
BITSANDBYTES_ABSENT_FROM: Version = (0, 28, 0)


@dataclass(frozen=True)
class Removed:
    """A flag, or one value of it, that newer releases refuse."""

    name: str
    absent_from: Version
    instead: str  # Hint for the user
    value: str | None = None

    def matches(self, argument: Argument, version: Version) -> bool:
        if argument.key != self.name or version < self.absent_from:
            return False
        return self.value is None or self.value in argument.values


_DROP = "leave it out"

REMOVED: tuple[Removed, ...] = (
    Removed("swap-space", (0, 18, 0), "leave it out: it had no effect since 0.8 (vllm#27984)"),
    Removed("max-seq-len-to-capture", (0, 11, 2), "leave it out (vllm#25543)"),
    Removed("disable-log-requests", (0, 17, 1), "leave it out: requests are not logged by default"),
    Removed("enable-reasoning", (0, 10, 2), "leave it out: --reasoning-parser alone is enough"),
    Removed("use-v2-block-manager", (0, 10, 2), _DROP),
    Removed("worker-use-ray", (0, 7, 2), "leave it out: clusterctl asks for Ray itself"),
    Removed("engine-use-ray", (0, 7, 2), _DROP),
    Removed("device", (0, 10, 2), "leave it out: vLLM finds the device"),
    Removed("num-scheduler-steps", (0, 10, 2), _DROP),
    Removed("multi-step-stream-outputs", (0, 10, 2), _DROP),
    Removed("num-lookahead-slots", (0, 12, 0), _DROP),
    Removed("preemption-mode", (0, 11, 2), _DROP),
    Removed("guided-decoding-backend", (0, 12, 0), "use --structured-outputs-config"),
    Removed("task", (0, 15, 1), "use --runner and --convert"),
    Removed("rope-scaling", (0, 11, 2), "use --hf-overrides with rope_parameters"),
    Removed("rope-theta", (0, 11, 2), "use --hf-overrides with rope_parameters"),
    Removed("cuda-graph-sizes", (0, 15, 1), "use --cudagraph-capture-sizes"),
    Removed("speculative-model", (0, 8, 5), "use --speculative-config"),
    Removed("calculate-kv-scales", (0, 29, 0), _DROP),
    Removed("disable-frontend-multiprocessing", (0, 20, 0), _DROP),
    Removed(
        "quantization",
        BITSANDBYTES_ABSENT_FROM,
        "use a model quantised as AWQ, GPTQ or FP8, or an image of an older vLLM",
        value="bitsandbytes",
    ),
)


def removed_flags(arguments: Iterable[Argument], version: Version | None) -> list[UsageError]:
    """Return an error for each argument that this vLLM is known to refuse; none if its version is
    unknown."""
    if version is None:
        return []
    shown = show_version(version)
    return [
        UsageError(
            f"{' '.join(filter(None, (argument.flag, removed.value)))} ({argument.origin}) "
            f"does not exist in vLLM {shown}",
            hint=removed.instead,
        )
        for argument in arguments
        for removed in REMOVED
        if removed.matches(argument, version)
    ]
