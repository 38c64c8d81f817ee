"""Failures between the hosts (Ray, Gloo, NCCL), failures of image and container, and lines that
only say that something failed earlier.

The wordings come from the sources of vLLM (0.32) and Ray (2.60), from issues, and from runs of
the lab. `{name}` in a text is the pattern's group of that name.
"""

from __future__ import annotations

from clusterctl.serving.failure_signature import signature

CLUSTER = (
    signature(
        "one-host-only",
        r"World size \((?P<world>\d+)\) is larger than the number of available GPUs "
        r"\((?P<gpus>\d+)\) in this node",
        "vLLM tried to place {world} ranks on one host with {gpus} GPUs",
        "let clusterctl start it: it asks for Ray",
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
        "a host gets whole replicas only, and the free GPUs hold fewer than {copies} so",
        "fewer with -- --data-parallel-size N, or a smaller --tp",
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

CONTAINER = (
    signature(
        "no-device",
        r"Failed to infer device type",
        "vLLM sees no GPU in the container",
        "clusterctl check; the container must be given the GPUs",
    ),
    signature(
        "gpu-lost",
        r"Failed to initialize NVML: Unknown Error",
        "the container lost its GPUs (a systemctl daemon-reload takes them away)",
        "clusterctl bootstrap makes the container anew",
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
        "the engine did not start; its own words stand above",
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
