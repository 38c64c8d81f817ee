"""Stream images out of an engine: `docker save`.

clusterctl writes no temporary file. (Engines before 25 write their own, as large as the image,
before the first byte.)
"""

from __future__ import annotations

from collections.abc import Generator

from clusterctl import deadlines
from clusterctl.containers.driver import ContainerDriver, Image
from clusterctl.containers.failures import engine_error, in_time
from clusterctl.units import MIB

CHUNK = 1 * MIB

# Bytes/s at which even a slow disk saves or unpacks; 123 to 187 MB/s were measured on two cores.
SLOWEST_UNPACK = 20 * MIB


def silence_limit(size: int) -> float:
    """Return the seconds without a byte after which an image's stream is considered dead."""
    return 300.0 + size / SLOWEST_UNPACK


def saved(driver: ContainerDriver, image: Image) -> Generator[bytes]:
    """Yield the output of `docker save`. Raises StepFailed, CommandTimedOut."""
    saving = in_time("docker save", driver.host)
    with driver.host_open(driver.save_argv(image.id)) as channel, saving:
        channel.settimeout(silence_limit(image.size))
        while chunk := channel.recv(CHUNK):
            yield chunk
        if channel.wait(timeout=deadlines.STREAM_END) != 0:
            raise engine_error(channel.stderr_tail() or "docker save failed", driver.host)
