"""`bench --start`: restart a service, and measure by stages what its start takes, cold and warm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from clusterctl.errors import UsageError
from clusterctl.node.documents import cache_dir
from clusterctl.operations import restarting
from clusterctl.operations.restarting import RestartPlan
from clusterctl.operations.session import Session
from clusterctl.planning.replicas import as_declared
from clusterctl.serving.proof import Proof
from clusterctl.survey.services import Replica
from clusterctl.survey.survey import Survey

# What vLLM keeps of a start for the next one, as node_environment sets it
CACHES = {"VLLM_CACHE_ROOT": "vllm", "TRITON_CACHE_DIR": "triton"}


@dataclass(frozen=True)
class MeasuredStart:
    """What a start took, from that of vLLM's process to the first answer."""

    replica: str
    cold: bool  # Without anything that vLLM keeps of earlier starts; files may be in memory
    seconds: float
    stages: Mapping[str, float]  # Seconds, in order, as the supervisor reads vLLM's log


def run(
    session: Session, name: str, runs: int, *, agree: Callable[[RestartPlan], None]
) -> list[MeasuredStart]:
    """Restart the service or replica `name` cold and then warm, `runs` times.

    `agree` shows what restarts, and raises if the user declines. Raises UsageError if a cold start
    is not possible without loss for others, and what `restarting.run` raises.
    """
    measured: list[MeasuredStart] = []

    def agree_once(plan: RestartPlan) -> None:
        hosts_to_clear(plan)
        if not measured:
            agree(plan)

    def clear_caches(plan: RestartPlan) -> None:
        for host in hosts_to_clear(plan):
            clear(plan.survey, host)

    for _ in range(runs):
        cold = restarting.run(session, name, agree=agree_once, before=clear_caches)
        measured += _measured(cold, cold=True)
        measured += _measured(restarting.run(session, name, agree=lambda _: None), cold=False)
    return measured


def _measured(proofs: Mapping[str, Proof], *, cold: bool) -> list[MeasuredStart]:
    return [
        MeasuredStart(replica, cold, round(proof.ready_seconds, 1), proof.stages)
        for replica, proof in proofs.items()
    ]


def hosts_to_clear(plan: RestartPlan) -> list[str]:
    """Return the hosts of the replicas. Raises UsageError if others use the caches there, if the
    caches are elsewhere, or if one replica would start with what another has just compiled."""
    survey = plan.survey
    hosts: set[str] = set()
    for replica in plan.replicas:
        own = set(as_declared(survey, replica).layout.hosts)
        if same := own & hosts:
            raise UsageError(
                f"{replica.name} would not start cold: another replica on {min(same)} starts first",
                hint=f"clusterctl bench {replica.name} --start",
            )
        _require_usual_caches(survey, replica, own)
        hosts |= own

    service = plan.replicas[0].document.service
    for other in survey.replicas.values():
        shared = hosts & set(as_declared(survey, other).layout.hosts)
        if other.document.service != service and shared:
            raise UsageError(
                f"{other.name} on {min(shared)} would lose what it has compiled, too",
                hint=f"clusterctl stop {other.document.service}, or measure on other hosts",
            )
    return sorted(hosts)


def _require_usual_caches(survey: Survey, replica: Replica, hosts: Iterable[str]) -> None:
    env = {**survey.inventory.env, **replica.document.env}
    for host in hosts:
        env.update(survey.inventory.host(host).env)
    if moved := ", ".join(sorted(env.keys() & CACHES.keys())):
        raise UsageError(
            f"a cold start of {replica.name} is not known: {moved} is set",
            hint=f"take {moved} out of `env`, and run clusterctl bootstrap",
        )


def clear(survey: Survey, host: str) -> None:
    caches = cache_dir(survey.inventory.cluster)
    paths = [f"{caches}/{directory}" for directory in CACHES.values()]
    removed = survey.transports[host].run(["rm", "-rf", "--", *paths], sudo=True)
    removed.output("removing vLLM's caches", host)
