"""Load an image into a host's engine: by `docker pull` from the relay on the host, or by `docker
load` of only the missing layers."""

from __future__ import annotations

import io
import re
import tarfile
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from clusterctl import deadlines
from clusterctl.containers.driver import ContainerDriver, Say
from clusterctl.containers.failures import engine_error, in_time
from clusterctl.containers.image_stream import silence_limit
from clusterctl.errors import ClusterctlError, CommandTimedOut, StepFailed
from clusterctl.transfer.bundle import blob_name, documents
from clusterctl.transfer.chain_link import LinkProgress
from clusterctl.transfer.content import ImageContent

LOOK_EVERY = 2.0  # Seconds between checks of the chain while the engine prints nothing

TRIES = 4  # Consecutive failed pulls without a byte received

PULL = """\
exec 3<&0
"$@" & pull=$!
{ cat <&3; kill "$pull"; } >/dev/null 2>&1 & watch=$!
wait "$pull"; status=$?
kill "$watch" 2>/dev/null
exit "$status"
"""
# The pull must end with the connection. Otherwise it would retry for over a minute with a relay
# that is gone, and a new pull of the same layers would only join it.

LOAD = """\
directory=$(mktemp -d) || exit 1
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
tar -xf - -C "$directory" || exit 1
cd "$directory" || exit 1
tar -chf - oci-layout index.json manifest.json blobs | "$@"
"""
# The layers are symbolic links to files in the relay's cache; `tar -h` follows them.

# Names that images are pulled under: chain.Chain.pull_reference.
_RELAY_NAME = re.compile(r"127\.0\.0\.1:\d+/[0-9a-f]{32}/")


class Carrier(Protocol):
    """The part of Chain that a pull uses."""

    def pull_reference(self, host: str) -> str: ...

    def problem(self, host: str) -> ClusterctlError | None: ...

    def progress(self) -> Mapping[str, LinkProgress]: ...


class _PullStalled(CommandTimedOut):
    """The pull made no progress; pulling again would not help."""


def is_relay_name(tag: str) -> bool:
    """Return whether `tag` is a temporary name that `pull` gave an image."""
    return bool(_RELAY_NAME.match(tag))


def pull(
    driver: ContainerDriver,
    chain: Carrier,
    say: Say,
    *,
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """Pull the chain's image on the driver's host; return the temporary name that it has there.

    A restarted relay breaks the engine's connections: failed pulls are repeated. Raises StepFailed
    with the engine's message, the chain's own problem where that is the cause, CommandTimedOut.
    """
    failures, before = 0, -1
    while True:
        reference = chain.pull_reference(driver.host)
        try:
            _pull_once(driver, chain, reference)
        except StepFailed as error:
            received = chain.progress()[driver.host].received
            failures = 1 if received > before else failures + 1
            before = received
            if chain.problem(driver.host) or failures >= TRIES or isinstance(error, _PullStalled):
                raise chain.problem(driver.host) or error from error
            say(f"pulling again after: {error.summary}")
            pause(1.0)
        else:
            return reference


def _pull_once(driver: ContainerDriver, chain: Carrier, reference: str) -> None:
    host = driver.host
    received, moved = -1, time.monotonic()
    with driver.host_open(["sh", "-c", PULL, "pull", *driver.pull_argv(reference)]) as channel:
        channel.settimeout(LOOK_EVERY)
        while True:
            try:
                if not channel.recv(65536):
                    break
            except TimeoutError:
                problem = chain.problem(host)
                if problem is not None:
                    raise problem from None
                before, received = received, chain.progress()[host].received
                if received != before:
                    moved = time.monotonic()
                elif time.monotonic() - moved > deadlines.RELAYED_PULL_SILENCE:
                    raise _PullStalled(
                        f"docker pull made no progress for {deadlines.RELAYED_PULL_SILENCE:.0f} s",
                        host=host,
                        hint="look at the engine there: journalctl -u docker -n 50",
                    ) from None
        with in_time("docker pull", host):
            if channel.wait(timeout=deadlines.STREAM_END) == 0:
                return
        error = engine_error(channel.stderr_tail() or "docker pull failed", host)
    if error.hint is None or "registry" in error.summary:
        error.summary = "the engine could not pull from the relay on its host"
        error.hint = "run the same command again: it resumes where it stopped"
    raise error


def load_from_cache(
    driver: ContainerDriver, content: ImageContent, config: bytes, paths: Mapping[str, str]
) -> None:
    """Load the missing layers from files on the host (`paths`: digest to path). Raises StepFailed
    with the engine's message, CommandTimedOut."""
    result = driver.host_run(
        ["sh", "-c", LOAD, "load", *driver.load_argv()],
        stdin=skeleton(content, config, paths),
        timeout=silence_limit(sum(layer.size for layer in content.layers)),
    )
    if not result.ok or "Loaded image" not in result.stdout:
        raise engine_error(result.last_lines() or "docker load failed", driver.host)


def skeleton(content: ImageContent, config: bytes, paths: Mapping[str, str]) -> bytes:
    """Return a small tar: an archive without a tag, since a loaded image is tagged only after it
    was checked, with a symbolic link for each layer of `paths` (digest to file on the host).
    `tar --dereference` on the host turns it into the archive."""
    members = {**documents([content], named=False), blob_name(content.config.digest): config}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        for digest, path in paths.items():
            entry = tarfile.TarInfo(blob_name(digest))
            entry.type, entry.linkname = tarfile.SYMTYPE, path
            tar.addfile(entry)
    return buffer.getvalue()
