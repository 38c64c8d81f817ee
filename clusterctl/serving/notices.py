"""Recognise log lines of a successful start that explain why the service is slower than possible or
answers differently than requested.

The wordings come from logs of vLLM 0.8 and 0.19 and from the sources of 0.7 to 0.33.
"""

from __future__ import annotations

import re

from clusterctl import deadlines
from clusterctl.errors import ClusterctlError
from clusterctl.node.files import NodePaths
from clusterctl.transport.base import Transport
from clusterctl.transport.host_files import READ_END

# Lines that mark the beginning of a start; the file also has older starts.
START_MARKS = r"non-default args|args: Namespace\(|API server version"

LOG_TAIL = 4_000_000  # Bytes at the end of a service's log that are searched, on the host

# The lines of a log that fit a pattern; no line is longer than 400 characters.
READ = f"""{READ_END}
read_end "$2" "$1" | grep -aE "$3" | cut -c1-400 | tail -n 400
"""

_NOTICES = (
    (
        r"Defaulting to use mp for distributed inference",
        "vLLM started its ranks on one host without Ray (`Defaulting to use mp`)",
    ),
    (
        r"Using default MoE config",
        "vLLM has no tuned MoE kernel for these GPUs and uses a default one, which may be slower; "
        "its benchmarks/kernels/benchmark_moe.py makes one",
    ),
    (
        r"lacks GPU P2P capability|not supported on more than two PCIe-only GPUs",
        "GPUs of a host exchange data without vLLM's custom all-reduce, since they have no direct "
        "link (P2P); clusterctl exec -- nvidia-smi topo -p2p r shows it",
    ),
    (
        r"FlashInfer is not available",
        "the image has no FlashInfer, so sampling with top-p and top-k is slower",
    ),
    (
        r"sampling parameters have been overridden",
        "the model's generation_config.json changes the defaults of sampling; "
        "-- --generation-config vllm keeps vLLM's",
    ),
    (
        r"variable HOST_IP is deprecated and ignored",
        "vLLM ignores HOST_IP, which the image or `env` sets; node_ip in the inventory decides",
    ),
)


def notices(log: str) -> tuple[str, ...]:
    """Return a sentence for each kind of notice in the last start of a log."""
    last = re.split(START_MARKS, log)[-1]
    return tuple(text for pattern, text in _NOTICES if re.search(pattern, last))


def noticed(head: Transport, cluster: str, service: str) -> tuple[str, ...]:
    """Read a service's log on the head for `notices`; a log that cannot be read has none."""
    log = str(NodePaths(cluster).log(service))
    wanted = "|".join((START_MARKS, *(pattern for pattern, _ in _NOTICES)))
    argv = ["sh", "-c", READ, "notices", str(LOG_TAIL), log, wanted]
    try:
        return notices(head.run(argv, sudo=True, timeout=deadlines.SMALL_FILE).stdout)
    except ClusterctlError:
        return ()
