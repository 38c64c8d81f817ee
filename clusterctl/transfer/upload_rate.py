"""How fast bytes get from this machine to a host: measured, as no NIC tells what lies between."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from clusterctl.containers.driver import ContainerDriver
from clusterctl.errors import ConnectionFailed
from clusterctl.transfer.codec import FAST_LINK

SAMPLE = 4 << 20  # Bytes: a third of a second at 100 Mbit/s

ROUNDS = 3  # Of which the best counts: a processor that is busy for a moment is not a slow link

ALIKE = 0.8  # Two slow rounds that differ by less than this factor say how fast the link is

LIMIT = 30.0  # Seconds for one round; a link that takes longer is slow, however slow it is


def busy() -> bool:
    """Whether more wants to run than there are processors."""
    return os.getloadavg()[0] > (os.cpu_count() or 1)


def upload_rate(driver: ContainerDriver, busy: Callable[[], bool] = busy) -> float | None:
    """Mbit/s to the driver's host, over SSH. None when the connection breaks, and when this
    machine is so busy that its processors would be measured: 16 to 200 Mbit/s were, at a load
    of 18 on two cores, over a link that carried 1800 before.
    """
    if busy():
        return None
    rates: list[float] = []
    while len(rates) < ROUNDS and not _settled(rates):
        try:
            rates.append(SAMPLE * 8 / 1e6 / _seconds(driver))
        except TimeoutError:
            return SAMPLE * 8 / 1e6 / LIMIT
        except ConnectionFailed:
            return None
    return None if busy() else max(rates)


def _settled(rates: list[float]) -> bool:
    if not rates or max(rates) >= FAST_LINK:
        return bool(rates)
    return len(rates) == 2 and min(rates) > ALIKE * max(rates)


def _seconds(driver: ContainerDriver) -> float:
    """Until the host has taken all of a sample: random bytes, which nothing on the way packs."""
    sample = os.urandom(SAMPLE)
    with driver.host_open(["sh", "-c", "cat >/dev/null"]) as channel:
        channel.settimeout(LIMIT)
        began = time.monotonic()
        channel.send(sample)
        channel.close_stdin()
        channel.wait(timeout=LIMIT)
        return time.monotonic() - began
