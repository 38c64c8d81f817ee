"""Starts the processes of ranks when their service starts: they import vLLM at the same time as its
API server and its engine.

vLLM asks Ray for its ranks only when these two have imported it, one after the other. A raylet
starts workers without a job on request (HandlePrestartWorkers in Ray's raylet/node_manager.cc). An
actor with the same runtime environment gets such a worker (WorkerFitForLease in worker_pool.cc).
Otherwise Ray starts another one, as without this, and the first ends (prestarted.py).
"""

from __future__ import annotations

import importlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence

if TYPE_CHECKING:
    from clusterctl.node.documents import ServiceDocument

# The variables, separated by commas, that vLLM sets to 1 in the runtime environment of ranks
# (`ray_noset_device_env_vars` of its platforms); OFF, or none: ranks start when vLLM asks.
RANK_VARIABLES = "CLUSTERCTL_RANK_VARIABLES"
OFF = "off"

FAILED = "no worker was started early"

_KEPT = 300  # Seconds in which Ray keeps the worker, however many are idle
_TIMEOUT = 10.0  # For a raylet to answer


def prestart_arguments(document: ServiceDocument, env: Mapping[str, str]) -> Optional[List[str]]:
    """Return the arguments of `prestart` for a service; None if nothing is to start early."""
    variables, address = env.get(RANK_VARIABLES, OFF), env.get("RAY_ADDRESS", "")
    copies = document.gpus // (document.tensor_parallel * document.pipeline_parallel)
    # Data parallel engines are actors themselves, whose ranks have other runtime environments.
    if copies > 1 or not document.node_ips or not address:
        return None
    counts = Counter(document.node_ips)
    if variables == OFF:
        # One worker without a runtime environment: the first that Ray is asked for on each host
        # looks for held GPUs (held_gpus.py).
        variables, counts = "", Counter(counts.keys())
    workers = (f"{ip}={count}" for ip, count in counts.items())
    return ["--address", address, "--variables", variables, *workers]


def prestart(address: str, variables: str, ranks: Sequence[str]) -> int:
    """Ask raylets for workers: `ranks` are entries IP=COUNT. Print what fails, in lines that begin
    with FAILED, and return 1."""
    runtime_env = {name: "1" for name in variables.split(",") if name}
    try:
        raylets = _raylets(address)
    except Exception as error:
        return _tell(f"{FAILED}: Ray's nodes are not known", error)

    failed = 0
    for entry in ranks:
        ip, _, count = entry.rpartition("=")
        if ip not in raylets:
            unknown = LookupError("Ray lists no live node of this address")
            failed = _tell(f"{FAILED} on {ip}", unknown)
            continue
        try:
            _ask(raylets[ip], int(count), runtime_env)
            if runtime_env:
                _ask(raylets[ip], 1, {})  # Looks for held GPUs (held_gpus.py)
        except Exception as error:
            failed = _tell(f"{FAILED} on {ip}", error)
    return failed


def _tell(what: str, error: Exception) -> int:
    why = " ".join(f"{type(error).__name__}: {error}".split())
    print(f"{what}: {why[:300]}", flush=True)  # noqa: T201
    return 1


def _raylets(address: str) -> Dict[str, str]:
    """Return the address of each live node's raylet, by the node's IP."""
    from clusterctl.node.ray_watch import gcs_state  # Only here: Ray's workers import this module

    found = {}
    for row in gcs_state(address).node_table():
        if row["Alive"]:
            ip = row["NodeManagerAddress"]
            host = f"[{ip}]" if ":" in ip else ip
            found[ip] = f"{host}:{row['NodeManagerPort']}"
    return found


def _ask(raylet: str, count: int, variables: Dict[str, str]) -> None:
    grpc_utils: Any = importlib.import_module("ray._private.grpc_utils")
    utils: Any = importlib.import_module("ray._private.utils")
    runtime_env: Any = importlib.import_module("ray.runtime_env")
    messages: Any = importlib.import_module("ray.core.generated.node_manager_pb2")
    services: Any = importlib.import_module("ray.core.generated.node_manager_pb2_grpc")
    common: Any = importlib.import_module("ray.core.generated.common_pb2")
    request = messages.PrestartWorkersRequest(
        language=common.Language.PYTHON,
        runtime_env_info=utils.get_runtime_env_info(runtime_env.RuntimeEnv(env_vars=variables)),
        keep_alive_duration_secs=_KEPT,
        num_workers=count,
    )
    channel = grpc_utils.init_grpc_channel(raylet)
    services.NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=_TIMEOUT)
