"""`docker pull` on a host from the relay that runs there, with checks of its progress."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from clusterctl import deadlines
from clusterctl.containers.driver import ContainerDriver, Say
from clusterctl.containers.failures import engine_error, in_time
from clusterctl.errors import ClusterctlError, CommandTimedOut, StepFailed
from clusterctl.transfer.chain_link import LinkProgress

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

# Names that images are pulled under: chain.Chain.pull_reference.
_RELAY_NAME = re.compile(r"127\.0\.0\.1:\d+/[0-9a-f]{32}/")


class Carrier(Protocol):
    """The part of Chain that a pull uses."""

    def pull_reference(self, host: str) -> str: ...

    def problem(self, host: str) -> ClusterctlError | None: ...

    def progress(self) -> Mapping[str, LinkProgress]: ...


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


def is_relay_name(tag: str) -> bool:
    """Return whether `tag` is a temporary name that `pull` gave an image."""
    return bool(_RELAY_NAME.match(tag))


class _PullStalled(CommandTimedOut):
    """The pull made no progress; pulling again would not help."""


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
