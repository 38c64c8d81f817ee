"""Chooses the driver of the hosts' container engine. Nothing else does."""

from __future__ import annotations

from clusterctl.containers.driver import ContainerDriver
from clusterctl.transport.base import Transport


def driver_for(transport: Transport, *, sudo: bool = True) -> ContainerDriver:
    """Return the driver for the transport's host. It connects on first use."""
    # Docker's library takes half a second to load: not before an engine is asked.
    from clusterctl.containers.docker_driver import DockerDriver

    return DockerDriver(transport, sudo=sudo)
