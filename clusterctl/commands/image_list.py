"""`image ls`: which images each host's engine has. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from clusterctl.containers.driver import Container, ContainerDriver, Image
from clusterctl.containers.drivers import driver_for
from clusterctl.errors import ClusterctlError
from clusterctl.operations.session import Session
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import failures, fan_out, values


@dataclass
class ListedImage:
    """One image, which may have different names and IDs on different hosts."""

    size: int  # Bytes, unpacked
    names: set[str] = field(default_factory=set)
    digests: set[str] = field(default_factory=set)  # NAME@DIGEST
    hosts: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)  # Hosts whose node container runs from it


@dataclass(frozen=True)
class ImageList:
    """The images of all hosts, sorted by use and size, and the errors of hosts that did not
    answer."""

    images: tuple[ListedImage, ...]
    errors: tuple[ClusterctlError, ...]


def run(session: Session, driver: Callable[[Transport], ContainerDriver] = driver_for) -> ImageList:
    """Query all hosts in parallel. A host that does not answer does not delay the others."""

    def look(host: Transport) -> tuple[list[Image], list[Container]]:
        engine = driver(host)
        return engine.images({}), engine.containers(session.inventory.cluster)

    with session.connected(session.hosts) as transports:
        found = fan_out(transports, look)
    return ImageList(held(values(found)), tuple(failures(found)))


def held(found: Mapping[str, tuple[list[Image], list[Container]]]) -> tuple[ListedImage, ...]:
    """Return the images by their layers, which are the same on every host, unlike IDs."""
    by_layers: dict[tuple[str, ...], ListedImage] = {}
    for host, (images, containers) in found.items():
        running = {container.image for container in containers}
        for image in images:
            one = by_layers.setdefault(image.layers, ListedImage(image.size))
            one.names |= set(image.tags)
            one.digests |= set(image.digests)
            one.hosts += [host] if host not in one.hosts else []
            one.used += [host] if image.id in running and host not in one.used else []
    return tuple(sorted(by_layers.values(), key=lambda one: (not one.used, -one.size)))
