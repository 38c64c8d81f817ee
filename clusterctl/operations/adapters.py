"""Adapters that a service is to have: what speaks against them, and their copies on all hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusterctl.engine.events import EventSink
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.inventory.model import Inventory
from clusterctl.models.shape import ModelShape
from clusterctl.node.adapters import takes_adapters
from clusterctl.node.documents import ServiceDocument
from clusterctl.serving.adapters import DEFAULT_RANK, LocalAdapter
from clusterctl.serving.vllm_flags import last_value, parse_arguments
from clusterctl.survey.services import Service
from clusterctl.survey.survey import Survey, connected
from clusterctl.transfer.weights.delivery import Destination, deliver_over
from clusterctl.transfer.weights.model_sources import of_directory
from clusterctl.transport.credentials import Credentials


def refusals(
    survey: Survey,
    document: ServiceDocument,
    shape: ModelShape | None,
    adapters: Sequence[LocalAdapter],
) -> list[ClusterctlError]:
    """Return why the service does not take these adapters. `document`: of one of its replicas, as
    it is or will be; `shape`: of its model, None if it is not known."""
    name = document.service
    if not adapters:
        return []
    if not takes_adapters(document.argv):
        again = f"clusterctl serve {document.model} --name {name} -- --enable-lora"
        return [
            UsageError(
                f"{name} was started without --enable-lora, so it takes no adapters",
                hint=f"{again} --max-lora-rank 64, with its other flags",
            )
        ]
    has = _adapters(survey.service(name))
    taken = {name: name}
    for service in survey.services.values():
        if listed := service.listed:
            taken |= dict.fromkeys((*listed.served_names, *listed.adapters), service.name)
    most = int(last_value(parse_arguments(document.argv[3:]), "max-lora-rank") or DEFAULT_RANK)
    problems: list[ClusterctlError] = []
    for each in adapters:
        same = has.get(each.name, "").endswith(f"/{each.path}")
        if each.name in taken and not same:
            other = f"another name; or first: clusterctl adapter rm {name} {each.name}"
            problems.append(
                UsageError(
                    f"the name {each.name} is taken by the service {taken[each.name]}",
                    hint=other if each.name in has else "another name",
                )
            )
        problems += each.problems(shape, most)
    return problems


def _adapters(service: Service) -> Mapping[str, str]:
    return service.listed.adapters if service.listed else {}


def copy_adapters(
    inventory: Inventory,
    adapters: Sequence[LocalAdapter],
    credentials: Credentials,
    sink: EventSink,
) -> None:
    """Copy adapters to all hosts, over one connection to each. What is there is not sent again."""
    if not adapters:
        return
    to = Destination(inventory, tuple(inventory.hosts))
    found = [of_directory(each.directory, each.path, sink, whole=False) for each in adapters]
    with connected(to.involved, credentials) as transports:
        for one in found:
            deliver_over(transports, to, lambda _, one=one: one, agree=lambda _: None, sink=sink)  # type: ignore[misc]
