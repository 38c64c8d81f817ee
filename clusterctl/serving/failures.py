"""Failures that are recognised by patterns in a log, with cause and fix, and the search for them.

The wordings come from logs of vLLM 0.7 to 0.19, from the sources of vLLM (0.32) and Ray (2.60),
from issues, and from runs of the lab. `{name}` in a text is the pattern's group of that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from clusterctl.errors import StepFailed

# Number of characters searched per line: progress bars and dumps of settings are longer, and some
# patterns would take long on them.
_LONGEST_LINE = 4000


@dataclass(frozen=True)
class Signature:
    """One failure, recognised by a pattern in a log line."""

    id: str
    pattern: re.Pattern[str]
    cause: str  # one sentence
    fix: str
    # The line only reports that something failed earlier; used if no other signature matches
    wrapper: bool = False


def signature(name: str, pattern: str, cause: str, fix: str, *, wrapper: bool = False) -> Signature:
    return Signature(name, re.compile(pattern), cause, fix, wrapper)


# Memory
MEMORY = (
    signature(
        "context-too-long",
        r"User-specified max_model_len \((?P<asked>\d+)\) is greater than the derived "
        r"max_model_len \(\w+=(?P<most>\d+)",
        "--max-model-len {asked} is longer than the model's own context of {most} tokens",
        "add -- --max-model-len {most}",
    ),
    signature(
        "context-does-not-fit",
        r"max seq len \((?P<asked>\d+)\).*KV cache is needed(?:.*estimated maximum model length is "
        r"(?P<most>\d+))?",
        "one request of {asked} tokens needs more KV cache than is left beside the weights",
        "lower -- --max-model-len (vLLM's estimate: {most}), or add GPUs",
    ),
    signature(
        "context-does-not-fit",
        r"max seq len \((?P<asked>\d+)\) is larger than the maximum number of tokens that can be "
        r"stored in KV cache \((?P<most>\d+)\)",
        "one request of {asked} tokens needs more KV cache than is left beside the weights",
        "add -- --max-model-len {most}, or add GPUs",
    ),
    signature(
        "no-kv-memory",
        r"No available memory for the cache blocks|Cannot auto-fit max_model_len",
        "the weights and the working memory leave nothing of --gpu-memory-utilization for the "
        "KV cache",
        "raise -- --gpu-memory-utilization, lower --max-num-batched-tokens, --max-num-seqs or "
        "--max-model-len, add --enforce-eager, or use more GPUs: clusterctl fit MODEL",
    ),
    signature(
        "gpu-memory-taken",
        r"Free memory on device \S+ \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less "
        r"than desired",
        "another process holds GPU memory: {free} of {total} GiB are free at the start",
        "clusterctl exec -- nvidia-smi shows it; stop it, or lower -- --gpu-memory-utilization",
    ),
    signature(
        "sampler-memory",
        r"CUDA out of memory occurred when warming up sampler with (?P<count>\d+) dummy requests",
        "the sampler's warm-up with {count} requests at once does not fit in GPU memory",
        "lower -- --max-num-seqs",
    ),
    signature(
        "gpu-out-of-memory",
        r"OutOfMemoryError: CUDA out of memory\. Tried to allocate (?P<size>[\d.]+ \w+)\. GPU "
        r"(?P<gpu>\d+) has a total capacity of (?P<total>[\d.]+ GiB)",
        "GPU {gpu} of {total} ran out of memory beside the KV cache (it wanted {size} more)",
        "lower -- --gpu-memory-utilization so that more is left, lower --max-num-seqs, "
        "or add --enforce-eager",
    ),
    signature(
        "host-out-of-memory",
        r"oom-kill|exit code:? ?-9\b|killed due to the node running low on memory|RayOutOfMemory",
        "the host ran out of memory and a process was killed",
        "lower -- --cpu-offload-gb, or load on fewer ranks per host",
    ),
    signature(
        "disk-full",
        r"No space left on device",
        "a disk or /dev/shm is full",
        "clusterctl exec -- df -h / /dev/shm",
    ),
    signature(
        "batch-below-image",
        r"max_tokens_per_mm_item \((?P<item>\d+)\) is larger than max_num_batched_tokens",
        "one image takes {item} tokens, more than one step may have",
        "raise -- --max-num-batched-tokens above {item}",
    ),
    signature(
        "batch-below-context",
        r"max_num_batched_tokens \((?P<tokens>\d+)\) is smaller than max_model_len "
        r"\((?P<context>\d+)\)",
        "this vLLM takes a prompt in one step, and a step of {tokens} tokens is shorter than the "
        "context of {context}",
        "add -- --max-num-batched-tokens {context}, or lower --max-model-len",
    ),
    signature(
        "bus-error",
        r"Bus error|SIGBUS|exit code:? ?-7\b",
        "shared memory (/dev/shm) is too small for what the ranks of one host share",
        "clusterctl exec -- df -h /dev/shm; start the container with the host's IPC",
    ),
)

# The model's files and flags
MODEL = (
    signature(
        "heads-not-divisible",
        r"Total number of attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel "
        r"size \((?P<tp>\d+)\)",
        "--tp {tp} does not divide the model's {heads} attention heads",
        "choose a --tp that divides {heads}, and --pp for the rest",
    ),
    signature(
        "unknown-argument",
        r"error: unrecognized arguments: (?P<what>.+)",
        "this vLLM does not know {what}",
        "leave it out, or use an image of a vLLM that has it",
    ),
    signature(
        "no-weights",
        r"Cannot find any model weights with `?(?P<path>[^`\s]+)",
        "there are no weights in {path}",
        "copy them there on every host, or serve random ones: -- --load-format dummy",
    ),
    signature(
        "model-path-missing",
        r"Invalid repository ID or local directory specified|Repo id must (?:be in the form|use)",
        "the model's path does not exist in the container of this host, and is not a Hub id either",
        "the same path on every host, under `models` of the inventory: clusterctl check",
    ),
    signature(
        "gated-model",
        r"trying to access a gated repo|GatedRepoError|403 Client Error.*huggingface",
        "the Hub gives this model only to those who accepted its licence",
        "accept it on the model's page and run `hf auth login` on the host, or copy the weights",
    ),
    signature(
        "hub-unknown",
        r"RepositoryNotFoundError|401 Client Error.*huggingface",
        "the Hub has no such model, or not for this account",
        "check the name, or put the weights on the hosts",
    ),
    signature(
        "no-network",
        r"couldn't connect to 'https://huggingface\.co'|LocalEntryNotFoundError|OfflineModeIsEnabled"
        r"|Max retries exceeded with url: \S*huggingface",
        "the model is not on this host and the Hub cannot be reached from it",
        "put the weights under `models` on every host",
    ),
    signature(
        "damaged-weights",
        r"HeaderTooLarge|SafetensorError",
        "a weight file is cut short or is a git-lfs pointer",
        "git lfs pull, or copy the model again",
    ),
    signature(
        "offloaded-bitsandbytes",
        r"has no attribute 'bnb_quant_state'",
        "vLLM's V0 engine loses the scales of bitsandbytes weights that are offloaded to the CPU",
        "leave out -- --cpu-offload-gb; vLLM 0.8 can keep it without what makes it fall back to "
        "V0, such as --kv-cache-dtype fp8",
    ),
    signature(
        "architecture-unknown",
        r"Model architectures (?P<names>\[.*?\]) are not supported|does not recognize this "
        r"architecture",
        "the vLLM in this image is older than the model",
        "use a newer image",
    ),
    signature(
        "needs-remote-code",
        r"requires you to execute the configuration file|setting `?trust_remote_code=True",
        "the model brings Python code of its own that has to be run",
        "read that code, then add -- --trust-remote-code",
    ),
    signature(
        "no-bfloat16",
        r"Bfloat16 is only supported on GPUs with compute capability of at least 8\.0",
        "a GPU of this cluster (before Ampere) cannot compute in bfloat16",
        "add -- --dtype half",
    ),
    signature(
        "chat-template-missing",
        r"default chat template is no longer allowed|does not define a chat template|"
        r"chat template .*not (?:found|provided)",
        "the tokenizer has no chat template, so chat requests cannot be answered",
        "add -- --chat-template PATH, or use /v1/completions",
    ),
    signature(
        "nothing-to-ask",
        r"it listens, and answers no request that would prove it",
        "vLLM runs, and answers neither completions nor embeddings, scores, classes or pooling",
        "choose what it serves: -- --runner generate, --runner pooling or --pooler-config.task "
        "embed; models of speech alone are not served",
    ),
)

# Between the hosts: Ray, Gloo, NCCL
CLUSTER = (
    signature(
        "one-host-only",
        r"World size \((?P<world>\d+)\) is larger than the number of available GPUs "
        r"\((?P<gpus>\d+)\) in this node",
        "vLLM tried to place {world} ranks on one host with {gpus} GPUs",
        "start it with clusterctl serve, which passes --distributed-executor-backend ray",
    ),
    signature(
        "no-room-in-ray",
        r"Cannot provide a placement group|No available node types can fulfill|number of required "
        r"\w+s exceeds the total number of available",
        "Ray has fewer free GPUs than ranks, or a node's IP differs from its VLLM_HOST_IP",
        "clusterctl status shows Ray's nodes and GPUs",
    ),
    signature(
        "no-room-for-replicas",
        r"Not enough resources to allocate (?P<copies>\d+) "
        r"(?:DP ranks on DP master node|placement groups)",
        "a replica needs its GPUs on one host, and the free GPUs hold fewer than {copies} replicas",
        "serve fewer with -- --data-parallel-size N, or use a smaller --tp",
    ),
    signature(
        "same-ip-twice",
        r"Every node should have a unique IP address",
        "two nodes have the same VLLM_HOST_IP",
        "clusterctl bootstrap sets it per host",
    ),
    signature(
        "ray-versions-differ",
        r"Version mismatch: The cluster was started with",
        "the hosts run different versions of Ray or Python",
        "clusterctl bootstrap brings one image to all of them",
    ),
    signature(
        "ray-token",
        r"InvalidAuthToken|AuthenticationError: .*[Tt]oken",
        "a node has another Ray token than the head",
        "clusterctl bootstrap copies the head's token",
    ),
    signature(
        "ray-unreachable",
        r"(?:Unable|Failed) to connect to GCS|Could not find any running Ray instance",
        "the head's Ray cannot be reached from this node",
        "clusterctl check tests the ports between the hosts",
    ),
    signature(
        "port-taken",
        r"\[Errno 98\].*[Aa]ddress already in use",
        "another program listens on the service's port",
        "choose another: clusterctl serve MODEL --port N",
    ),
    signature(
        "gloo-interface",
        r"Unable to find address for: (?P<nic>\S+)",
        "GLOO_SOCKET_IFNAME names {nic}, which this host does not have",
        "set nics.gloo of this host in the inventory, then clusterctl bootstrap",
    ),
    signature(
        "gloo-mesh",
        r"Gloo connectFullMesh failed",
        "the ranks cannot reach each other: Gloo took an interface that the others cannot see",
        "set nics.gloo of each host to the interface of its node IP, then clusterctl bootstrap",
    ),
    signature(
        "nccl-interface",
        r"Bootstrap ?: no socket interface found",
        "NCCL_SOCKET_IFNAME names an interface that this host does not have",
        "set nics.nccl of this host in the inventory, then clusterctl bootstrap",
    ),
    signature(
        "nccl-timeout",
        r"Watchdog caught collective operation timeout",
        "a rank stopped answering in the middle of a step",
        "look at the rank that is silent: clusterctl logs --host HOST",
    ),
    signature(
        "nccl-shared-memory",
        r"Error while creating shared memory segment",
        "shared memory (/dev/shm) is too small for NCCL",
        "clusterctl exec -- df -h /dev/shm",
    ),
    signature(
        "nccl-system",
        r"ncclSystemError|unhandled system error",
        "NCCL met an error of the network or of shared memory",
        "serve again with NCCL_DEBUG=INFO in the inventory's env; its log then names the call",
    ),
    signature(
        "rendezvous",
        r"DistStoreError|The client socket has timed out after",
        "a rank could not reach rank 0 over the network",
        "open all TCP ports between the hosts on the cluster's network: clusterctl check",
    ),
)

# Image and container
CONTAINER = (
    signature(
        "no-device",
        r"Failed to infer device type",
        "vLLM sees no GPU in the container",
        "clusterctl check shows why the container has no GPUs",
    ),
    signature(
        "gpu-lost",
        r"Failed to initialize NVML: Unknown Error",
        "the container lost its GPUs (a systemctl daemon-reload takes them away)",
        "clusterctl bootstrap creates the container again",
    ),
    signature(
        "driver-mismatch",
        r"Driver/library version mismatch",
        "the NVIDIA driver was updated without a reboot",
        "reboot the host",
    ),
    signature(
        "driver-too-old",
        r"driver on your system is too old|CUDA driver version is insufficient|unsatisfied "
        r"condition: cuda>=",
        "the image needs a newer NVIDIA driver than the host has",
        "update the driver, or use an older image",
    ),
    signature(
        "gpu-too-old",
        r"no kernel image is available for execution on the device",
        "the image has no code for this generation of GPU",
        "use an older image",
    ),
    signature(
        "no-compiler",
        r"InvalidCxxCompiler|No working C\+\+ compiler found",
        "the image has no C++ compiler, and the first request makes vLLM compile",
        "add -- --enforce-eager, or an image with g++",
    ),
    signature(
        "no-libnuma",
        r"has no attribute 'init_cpu_memory_env'|libnuma\.so\.1: cannot open shared object",
        "the image lacks libnuma, which vLLM on CPU needs",
        "install libnuma1 in the image",
    ),
    signature(
        "no-ray",
        r"No module named 'ray'|Ray is not installed",
        "the image has no Ray",
        "clusterctl bootstrap derives an image that has it",
    ),
    signature(
        "no-vllm-metadata",
        r"PackageNotFoundError: No package metadata was found for vllm",
        "the image's vLLM was installed under another name",
        "add the metadata of `vllm` to the image",
    ),
)

# Lines that only report that something failed earlier
WRAPPERS = (
    signature(
        "rank-died",
        r"(?:RayWorkerProc rank=\S+|Worker proc \S+|VllmWorkerProcess pid \d+) died"
        r"|ActorDiedError|The actor died unexpectedly",
        "the process of a rank died",
        "clusterctl logs shows its last lines on its host",
        wrapper=True,
    ),
    signature(
        "engine-not-started",
        r"Engine core initialization failed|EngineCore failed to start|WorkerProc initialization "
        r"failed",
        "the engine did not start; see the lines above",
        "clusterctl logs",
        wrapper=True,
    ),
    signature(
        "engine-died",
        r"EngineDeadError",
        "the engine died while it served",
        "clusterctl logs",
        wrapper=True,
    ),
)

# The first match of a line wins, so the more specific signatures come first.
SIGNATURES = (*MEMORY, *MODEL, *CLUSTER, *CONTAINER, *WRAPPERS)


@dataclass(frozen=True)
class Diagnosis:
    """A recognised failure."""

    id: str
    cause: str
    fix: str
    line: str
    number: int  # of the line in the log, from 1
    wrapper: bool  # it only reports that something failed earlier


def diagnose(lines: Iterable[str]) -> Diagnosis | None:
    """Return the earliest line that names a cause, else the earliest that only reports a failure;
    None if none is recognised. Later failures mostly follow from the first."""
    found = findings(lines)
    return min(found, key=lambda one: (one.wrapper, one.number), default=None)


def findings(lines: Iterable[str]) -> list[Diagnosis]:
    """Return every recognised failure in the log, each cause once, in order."""
    seen: dict[tuple[str, str], Diagnosis] = {}
    for number, line in enumerate(lines, start=1):
        text = line[:_LONGEST_LINE]
        matches = ((one, one.pattern.search(text)) for one in SIGNATURES)
        known, match = next(((one, match) for one, match in matches if match), (None, None))
        if known is None or match is None:
            continue
        values = {name: value or "unknown" for name, value in match.groupdict().items()}
        cause, fix = known.cause.format(**values), known.fix.format(**values)
        one = Diagnosis(known.id, cause, fix, text.strip(), number, known.wrapper)
        seen.setdefault((one.id, one.cause), one)
    return list(seen.values())


def explain(service: str, lines: list[str], *, host: str | None = None) -> StepFailed:
    """Return the error for a service that did not start, with the cause if it is recognised."""
    tail = "\n".join(lines[-20:])
    one = diagnose(lines)
    if one is None:
        return StepFailed(
            f"{service} did not start, and its log shows no known failure",
            host=host,
            hint=f"clusterctl logs {service}",
            detail=tail,
        )
    return StepFailed(f"{service} did not start: {one.cause}", host=host, hint=one.fix, detail=tail)
