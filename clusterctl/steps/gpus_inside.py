"""Whether a running container still has the GPUs it was started with."""

from __future__ import annotations

from clusterctl import deadlines
from clusterctl.containers.driver import Container, ContainerDriver
from clusterctl.engine.step import HostView
from clusterctl.errors import ClusterctlError


def without_gpus(view: HostView, driver: ContainerDriver, container: Container) -> str | None:
    """Why `container` must be made anew, in words: it sees none of the host's GPUs.

    With the toolkit's classic mode a `systemctl daemon-reload` on the host takes them away
    (nvidia-docker issue 1730), and nothing but a new container brings them back.
    """
    if not view.host.gpus or not view.facts.gpus.gpus or not _asks_for_gpus(container):
        return None
    try:
        told = driver.exec(container.id, ["nvidia-smi", "-L"], timeout=deadlines.GPUS_LISTED)
    except ClusterctlError:
        return None  # a container that cannot be asked is not thereby known to have lost them
    if "GPU 0" in told.stdout or "NVML" not in told.stdout + told.stderr:
        return None
    return f"its GPUs are gone: {told.stdout.strip() or told.last_lines(1)}"


def _asks_for_gpus(container: Container) -> bool:
    return container.all_gpus or any("nvidia" in name for name in container.cdi_devices)
