"""Stream images: `docker save` out of one engine, `docker load` into another.

They never pass through a temporary file of ours. (Engines before 25 write one of their own on
either side, as large as the image: before the first byte when saving, before unpacking when
loading.)
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable

from clusterctl import deadlines
from clusterctl.containers.driver import ContainerDriver, Image
from clusterctl.containers.failures import engine_error
from clusterctl.containers.in_time import in_time
from clusterctl.containers.meter import MIB, Meter
from clusterctl.errors import ConnectionFailed, StepFailed
from clusterctl.transport.base import Channel

CHUNK = 1 * MIB

LOADING = "docker load"

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


def load(driver: ContainerDriver, chunks: Iterable[bytes], size: int, meter: Meter) -> str:
    """Feed `chunks` to `docker load`. Return the reference or image ID that it loaded.

    Raises StepFailed with the engine's message, CommandTimedOut.
    """
    with driver.host_open(driver.load_argv()) as channel:
        count = 0
        try:
            for chunk in chunks:
                channel.send(chunk)
                count += len(chunk)
                meter.reached(count)
            channel.close_stdin()
        except ConnectionFailed as error:
            # It exited before reading all input: report its own message, not a broken pipe.
            with in_time(LOADING, driver.host):
                status = channel.wait(timeout=deadlines.STREAM_END)
            if status > 0:
                raise engine_error(channel.stderr_tail() or str(error), driver.host) from error
            raise
        return loaded(driver.host, channel, size)


def loaded(host: str, channel: Channel, size: int) -> str:
    """Return the reference or ID that a `docker load` loaded, after it got all its input. Raises
    StepFailed, CommandTimedOut."""
    channel.settimeout(silence_limit(size))
    said = b""
    with in_time(LOADING, host):
        while chunk := channel.recv(65536):
            said += chunk
        status = channel.wait(timeout=deadlines.STREAM_END)
    if status != 0:
        raise engine_error(channel.stderr_tail() or "docker load failed", host)
    names = re.findall(r"^Loaded image(?: ID)?: (\S+)", said.decode(errors="replace"), re.MULTILINE)
    if not names:
        raise StepFailed(
            "docker load found no image in its input",
            host=host,
            hint="the archive must come from `docker save`",
            detail=said.decode(errors="replace").strip() or None,
        )
    return str(names[0])
