"""Select the driver for the hosts' container engine. No other module does."""

from __future__ import annotations

from clusterctl.containers.driver import ContainerDriver
from clusterctl.transport.base import Transport


def driver_for(transport: Transport, *, sudo: bool = True) -> ContainerDriver:
    """Return the driver for the transport's host. It connects at first use."""
    # Docker's library takes 0.5 s to import: only when an engine is used.
    from clusterctl.containers.docker_driver import DockerDriver

    return DockerDriver(transport, sudo=sudo)
