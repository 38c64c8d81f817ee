"""Which container engine hosts have: the one place that says so."""

from __future__ import annotations

from clusterctl.containers.driver import ContainerDriver
from clusterctl.transport.base import Transport


def driver_for(transport: Transport, *, sudo: bool = True) -> ContainerDriver:
    """The engine of the transport's host, or of this machine; the first use connects."""
    # Docker's library takes half a second to load: not before an engine is asked.
    from clusterctl.containers.docker_driver import DockerDriver

    return DockerDriver(transport, sudo=sudo)
