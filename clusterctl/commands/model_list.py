"""`model ls`: list each host's models, in one round trip each and without reading weights.
`model search`: the GPUs to plan for."""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.errors import ClusterctlError
from clusterctl.operations.session import Session
from clusterctl.planning.cluster_hardware import gpus_of
from clusterctl.planning.hardware import GpuModel, find_gpu, gpu_of_host
from clusterctl.survey.survey import take_survey
from clusterctl.transfer.weights.on_host import Holding, holdings, look_at_models
from clusterctl.transport.fanout import failures, fan_out, values
from clusterctl.units import MIB


@dataclass(frozen=True)
class ModelList:
    """The hosts' models, and the errors of hosts that did not answer."""

    directory: str
    holdings: tuple[Holding, ...]
    errors: tuple[ClusterctlError, ...]


def run(session: Session) -> ModelList:
    """Query the session's hosts in parallel. One that does not answer does not delay the others."""
    models = session.inventory.models
    with session.connected(session.hosts) as transports:
        found = fan_out(transports, lambda each: look_at_models(each, models))
    return ModelList(models, tuple(holdings(values(found))), tuple(failures(found)))


def gpus_of_cluster(session: Session) -> tuple[GpuModel, ...]:
    """Return the GPUs that the inventory declares by name, or, if it leaves some open, those
    reported by the hosts that answer."""
    declared = [gpu for host in session.inventory.hosts for gpu in host.gpus]
    if declared and all(gpu.model and (gpu.memory or find_gpu(gpu.model)) for gpu in declared):
        return tuple(gpu_of_host(str(gpu.model), (gpu.memory or 0) // MIB) for gpu in declared)
    with session.connected() as transports:
        return gpus_of(take_survey(session.inventory, transports).answers)
