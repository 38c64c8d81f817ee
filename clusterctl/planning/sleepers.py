"""Memory for services that sleep: of hosts, where their weights wait, and of GPUs. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import floor
from typing import TYPE_CHECKING

from clusterctl.errors import ClusterctlError, DoesNotFit, UsageError, raise_all
from clusterctl.node.documents import MOST_PINNED
from clusterctl.planning.report import Hardware
from clusterctl.planning.rules import rules_for
from clusterctl.serving.request import ServiceRequest, require_range, require_scaling, sleep_option
from clusterctl.serving.vllm_flags import Argument, last_value, lay_over
from clusterctl.units import GIB

if TYPE_CHECKING:
    from clusterctl.node.documents import ServiceDocument
    from clusterctl.serving.service import PlannedReplica
    from clusterctl.survey.services import Service
    from clusterctl.survey.survey import Survey

# Part of a host's memory that weights may take: vLLM pins what it puts there, and keeps it when it
# wakes. The rest is for processes, the page cache and the system.
_SHARE = 0.75

# GiB of each GPU that a sleeping engine keeps: 1.96 were measured with one rank, 3.47 with two
# (docs/performance.md), which have buffers for what they exchange.
_ASLEEP_ALONE, _ASLEEP = 2.0, 3.5

# Part of a GPU that vLLM may take beyond its --gpu-memory-utilization
_UNCOUNTED = 0.03

_UTILIZATION = "gpu-memory-utilization"


def parked(documents: Iterable[ServiceDocument]) -> dict[str, float]:
    """Return the GiB of each host, by node IP, that these services may take of its memory."""
    # One that stays awake counts as none. What it has pinned, if it once slept, it keeps until its
    # next start: a quarter of the memory is left for such.
    found: dict[str, float] = defaultdict(float)
    for document in documents:
        own = 0.0 if document.stays_awake else document.parked_gib
        each = parked_by_two(own) if document.standby_port else own * MOST_PINNED
        for node_ip, ranks in Counter(document.node_ips).items():
            found[node_ip] += ranks * each
    return found


def parked_by_two(weights_gib: float) -> float:
    """Return the GiB that the two engines of a service with a standby may take: one sleeps while
    the other starts, and keeps what it has pinned."""
    return 2 * weights_gib * MOST_PINNED


def require_room_to_sleep(survey: Survey, replicas: Sequence[PlannedReplica]) -> None:
    """Raise DoesNotFit unless all of these that are to sleep have a place for it in their host's
    memory, beside what is declared now."""
    memory = {
        node.node_ip: (node.host, survey.facts[node.host].memory)
        for node in survey.topology.nodes
        if node.host in survey.facts
    }
    planned = {each.name for each in replicas}
    running = [each.document for each in survey.replicas.values() if each.name not in planned]
    before = [document for document in running if document.sleeps]
    for each in replicas:
        if each.document.sleeps:
            require_host_memory(each.document, before, memory)
            before.append(each.document)


def require_host_memory(
    document: ServiceDocument,
    others: Sequence[ServiceDocument],
    memory: Mapping[str, tuple[str, int]],
) -> None:
    """Raise DoesNotFit unless the hosts have memory for a service that is to sleep. `memory`: the
    host's name and its bytes, by node IP."""
    before = parked(others)
    for node_ip, own in parked([document]).items():
        host, size = memory.get(node_ip, ("", 0))
        room = size / GIB * _SHARE - before.get(node_ip, 0.0)
        if size and own > max(room, 0.0):
            taken = before.get(node_ip, 0.0)
            elsewhere = "" if document.swap_with else f", or add --on with hosts other than {host}"
            others_take = f", of which other services take {taken:.1f}" if taken else ""
            raise DoesNotFit(
                f"{document.service} may take {own:.1f} GiB of the host's memory while "
                f"{'its engines sleep' if document.standby_port else 'it sleeps'}, "
                f"but only {size / GIB * _SHARE:.1f} GiB may be used for that{others_take}",
                host=host,
                hint=f"{_without_sleep(document)}{elsewhere}",
            )


def _without_sleep(document: ServiceDocument) -> str:
    if document.least >= 0:
        return "serve it with a number in place of the range (--replicas 2)"
    return f"leave {sleep_option(document)} out"


def require_one_replica(
    asked: ServiceRequest | ServiceDocument, service: str, replicas: int
) -> None:
    """Raise UsageError for several replicas of a service that sleeps as a whole."""
    if replicas > 1 and asked.sleeps and asked.least < 0:
        option = sleep_option(asked)
        what = {"--idle": "sleeps when it is idle", "--standby": "has a standby"}
        does = what.get(option, "swaps GPUs with another service")
        raise UsageError(
            f"{service} {does} ({option}), so it has one replica, not {replicas}",
            hint=f"clusterctl scale {service} 1, or serve it without {option}",
        )


def with_room_for_sleeper(request: ServiceRequest, hardware: Hardware) -> ServiceRequest:
    """Return the request with a --gpu-memory-utilization that leaves room for a sleeping standby,
    or for the service that it swaps with. Raises DoesNotFit if the user gave one that does not."""
    sizes = [gpu.memory_gib for site in hardware.sites for gpu in site.gpus if not gpu.is_cpu]
    if not (request.standby or request.swaps) or not sizes:
        return request
    one_rank = (request.tensor_parallel, request.pipeline_parallel or 1) == (1, 1)
    asleep = _ASLEEP_ALONE if one_rank else _ASLEEP
    part = asleep / min(sizes)

    given = last_value(request.given, _UTILIZATION)
    if given is None:
        utilization = rules_for(hardware.vllm).utilization - part
        argument = Argument(_UTILIZATION, (f"{floor(utilization * 100) / 100:g}",))
        return replace(request, given=lay_over(request.given, [argument]))
    most = floor((1 - _UNCOUNTED - part) * 100) / 100
    try:
        fits = float(given) <= most
    except ValueError:
        return request  # vLLM's error is more precise
    if not fits:
        other = "a standby" if request.standby else "the service that it swaps with"
        raise DoesNotFit(
            f"--{_UTILIZATION} {given} leaves no room for {other}, which keeps up to {asleep:g} "
            "GiB of each GPU while it sleeps",
            hint=f"--{_UTILIZATION} {most:g}, or leave it out",
        )
    return request


def turns_note(request: ServiceRequest, name: str) -> str:
    """Return when another engine on its GPUs starts, or this one beside another, and what that
    costs."""
    given = last_value(request.given, _UTILIZATION)
    room = f", for which --{_UTILIZATION} {given} leaves room" if given else ""
    if request.swap:
        return f"another service can have its GPUs in turn{room}: --swap-with {name}"
    if request.swap_with:
        return f"it starts once {request.swap_with} has had no requests for a while{room}"
    return f"its standby starts once the service is ready and has had no requests for a while{room}"


def as_it_scales(request: ServiceRequest, service: Service) -> ServiceRequest:
    """Return the request; without a number of replicas, for those that the service has, which sleep
    and wake as before. Raises UsageError for what contradicts that, and for a target that nothing
    keeps."""
    listed, ending = service.listed, ""
    problems: list[ClusterctlError] = []

    def fail(text: str, hint: str) -> None:
        problems.append(UsageError(text, hint=hint + ending))

    if request.replicas is None and listed and listed.least >= 0 and service.documents:
        idle, ttft = request.idle or service.documents[0].idle, request.ttft or listed.ttft
        request = replace(request, least=listed.least, idle=idle, ttft=ttft)
        number = 1 if request.standby or request.swaps else max(listed.asked, 1)
        ending = f", or end the range with --replicas {number}"
        current = f"--replicas {listed.least}..{listed.asked}"
        require_scaling(f"the range of {service.name} ({current})", request, fail)
    require_range(request, fail)
    raise_all(problems)
    return request


def last_awake(least: int, numbers: Collection[int]) -> int:
    """Return the number up to which replicas never sleep: so many of those that there are. -1 if
    `least` says that the service does not scale."""
    awake = sorted(numbers)[: max(least, 0)]
    return awake[-1] if awake else min(least, 0)


def scaling_note(request: ServiceRequest, replicas: int) -> str:
    """Return when a replica beyond those that stay awake is asked, and when it sleeps."""
    idle = f"{request.idle:g} s without a request"
    if request.least >= replicas:
        return "all replicas stay awake: there are no others"
    if replicas == 1:
        return f"its replica sleeps after {idle}"

    awake, others = "all may sleep", "more"
    if request.least:
        awake, others = f"at least {request.least} stay{'s' * (request.least == 1)} awake", "others"
    reasons = "while requests wait or KV caches fill"
    if request.ttft:
        reasons += f", or first tokens take more than {request.ttft:g} s"
    return f"{awake}; {others} are asked {reasons}, and sleep after {idle}"
