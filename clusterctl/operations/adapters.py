"""Adapters that a service is to have: what speaks against them, and their copies on all hosts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from clusterctl.engine.events import EventSink
from clusterctl.errors import ClusterctlError, UsageError, raise_all
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


def require_adapters(
    survey: Survey,
    document: ServiceDocument,
    shape: ModelShape | None,
    adapters: Sequence[LocalAdapter],
) -> None:
    """Raise all reasons why the service does not take these adapters. `document`: of one of its
    replicas, as it is or will be; `shape`: of its model, None if it is not known."""
    if not adapters:
        return
    name = document.service
    if not takes_adapters(document.argv):
        again = f"clusterctl serve {document.model} --name {name} -- --enable-lora"
        raise UsageError(
            f"{name} was started without --enable-lora, so it takes no adapters",
            hint=f"{again} --max-lora-rank 64, with its other flags",
        )
    most = int(last_value(parse_arguments(document.argv[3:]), "max-lora-rank") or DEFAULT_RANK)
    problems = list(_taken_names(survey, name, adapters))
    problems += [problem for each in adapters for problem in each.problems(shape, most)]
    raise_all(problems)


def _taken_names(
    survey: Survey, name: str, adapters: Sequence[LocalAdapter]
) -> Iterator[ClusterctlError]:
    """Yield an error for each adapter whose name clients use for something else already."""
    has = _adapters(survey.service(name))
    taken = {name: name}
    for service in survey.services.values():
        if listed := service.listed:
            taken |= dict.fromkeys((*listed.served_names, *listed.adapters), service.name)

    for each in adapters:
        same = has.get(each.name, "").endswith(f"/{each.path}")
        if each.name in taken and not same:
            other = f"another name; or first: clusterctl adapter rm {name} {each.name}"
            yield UsageError(
                f"the name {each.name} is taken by the service {taken[each.name]}",
                hint=other if each.name in has else "another name",
            )


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
