"""Bringing an image to a host by `docker load`: of the layers that lack, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from clusterctl import deadlines
from clusterctl.containers.driver import ContainerDriver, Say
from clusterctl.containers.failures import engine_error
from clusterctl.containers.image_stream import load, silence_limit
from clusterctl.containers.in_time import DISK, in_time
from clusterctl.containers.meter import Meter
from clusterctl.errors import StepFailed
from clusterctl.transfer.content import CHUNK, Blob, BlobSource, ImageContent
from clusterctl.transfer.load_archive import archive, archive_size, skeleton

LOAD = """\
directory=$(mktemp -d) || exit 1
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
tar -xf - -C "$directory" || exit 1
cd "$directory" || exit 1
tar -chf - oci-layout index.json manifest.json blobs | "$@"
"""
# The layers are links to files in the relay's cache: -h sends what they lead to.


def load_from_cache(
    driver: ContainerDriver, content: ImageContent, config: bytes, paths: Mapping[str, str]
) -> None:
    """Load what lacks from files on the host: `paths`, by digest. Raises StepFailed with the
    engine's words, CommandTimedOut."""
    limit = silence_limit(sum(layer.size for layer in content.layers))
    stdin = skeleton(content, config, paths)
    result = driver.host_run(
        ["sh", "-c", LOAD, "load", *driver.load_argv()], stdin=stdin, timeout=limit
    )
    if not result.ok or "Loaded image" not in result.stdout:
        raise engine_error(result.last_lines() or "docker load failed", driver.host)


def load_by_stream(
    driver: ContainerDriver,
    content: ImageContent,
    layers: Sequence[Blob],
    source: BlobSource,
    say: Say,
) -> None:
    """Send what lacks over SSH into `docker load`. Raises StepFailed, CommandTimedOut."""
    size = archive_size(layers)
    load(driver, archive(content, layers, source), size, Meter(say, size))


class HostBlobs:
    """Files of a host as a source of blobs, read over SSH."""

    def __init__(self, driver: ContainerDriver, paths: Mapping[str, str]) -> None:
        self._driver, self._paths = driver, paths

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        path, host = self._paths[blob.digest], self._driver.host
        reading = in_time(f"reading {path}", host, DISK)
        with self._driver.host_open(["tail", "-c", f"+{offset + 1}", path]) as channel, reading:
            channel.settimeout(60.0)
            while chunk := channel.recv(CHUNK):
                yield chunk
            if channel.wait(timeout=deadlines.STREAM_END) != 0:
                raise StepFailed(
                    f"{path} cannot be read",
                    host=host,
                    hint=f"clusterctl exec --limit {host} -- ls -l {path}",
                    detail=channel.stderr_tail() or None,
                )
