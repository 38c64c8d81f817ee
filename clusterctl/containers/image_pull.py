"""Follow `docker pull`: report how many layers have arrived, and why it failed."""

from __future__ import annotations

from clusterctl import deadlines
from clusterctl.containers.driver import Say
from clusterctl.containers.failures import engine_error
from clusterctl.errors import CommandTimedOut
from clusterctl.transport.base import Channel, lines


def follow(channel: Channel, say: Say) -> None:
    """Report layers until the pull ends. Raises StepFailed, CommandTimedOut, and TimeoutError if it
    does not exit after its last output."""
    channel.settimeout(deadlines.PULL_SILENCE)
    layers: dict[str, bool] = {}
    try:
        for line in lines(channel):
            if _note(line, layers):
                say(f"{sum(layers.values())} of {len(layers)} layers")
    except TimeoutError as error:
        raise CommandTimedOut(
            f"docker pull printed nothing for {deadlines.PULL_SILENCE:.0f} s",
            hint="check the host's way to the registry, or set image_archive in the inventory",
        ) from error
    if channel.wait(timeout=deadlines.STREAM_END) != 0:
        raise engine_error(channel.stderr_tail() or "docker pull failed without a message")


def _note(line: str, layers: dict[str, bool]) -> bool:
    """Record a line such as `4abcf2066143: Pull complete`. Return whether it was one."""
    layer, colon, state = line.partition(": ")
    if not colon or state not in ("Pulling fs layer", "Pull complete", "Already exists"):
        return False
    layers[layer] = state != "Pulling fs layer"
    return True
