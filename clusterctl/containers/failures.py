"""Convert the engine's error messages, and its silence, to a cause and a fix.

The phrases are Docker's own (20.10 to 29), matched in lower case; unknown messages are passed on
unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from clusterctl.containers.driver import EngineUnavailable
from clusterctl.errors import CommandTimedOut, StepFailed


@dataclass(frozen=True)
class Failure:
    """Cause and fix of an error whose lower-case message contains one of `phrases`. `unavailable`:
    the engine itself is at fault, not the request."""

    summary: str
    hint: str | None
    phrases: tuple[str, ...] = ()
    unavailable: bool = False


_KNOWN = (
    Failure(
        "the SSH user may not use the Docker engine",
        "let the user become root with sudo, or: sudo usermod -aG docker USER",
        ("permission denied while trying to connect",),
        unavailable=True,
    ),
    Failure(
        "the Docker engine is not running",
        "to see why: systemctl status docker; journalctl -u docker -n 50",
        (
            "cannot connect to the docker daemon",
            "is the docker daemon running",
            "dial-stdio",
            "failed to open the raw stream",
        ),
        unavailable=True,
    ),
    Failure(
        "Docker is not installed",
        "clusterctl bootstrap",
        (
            "docker: not found",
            "docker: command not found",
            "command not found: docker",
            "no such file or directory: docker",
            "docker: no such file or directory",
        ),
        unavailable=True,
    ),
    Failure(
        "the disk that holds Docker's data is full",
        "make room: docker system df; docker image prune",
        ("no space left on device", "not enough free space"),
    ),
    Failure(
        "the registry refuses more pulls for now (rate limit)",
        "log in on that host (docker login), wait, or set image_archive in the inventory",
        ("toomanyrequests", "too many requests", "pull rate limit"),
    ),
    Failure(
        "the registry has no such image",
        "check `image` in the inventory: name and tag",
        ("manifest unknown", "not found: manifest unknown", "manifest for", ": not found"),
    ),
    Failure(
        "the registry refuses access: the image is private or does not exist",
        "docker login on that host as root, or set image_archive in the inventory",
        ("pull access denied", "unauthorized", "authentication required", "access to the resource"),
    ),
    Failure(
        "the image does not exist for this host's processor architecture",
        "choose an image built for it",
        ("no matching manifest for",),
    ),
    Failure(
        "the host cannot reach the registry",
        "set image_archive in the inventory to a `docker save` file on this machine",
        (
            "no such host",
            "dial tcp",
            "client.timeout exceeded",
            "tls handshake timeout",
            "network is unreachable",
            "connection refused",
        ),
    ),
    Failure(
        "Docker cannot give GPUs to containers: the NVIDIA container toolkit is missing",
        "clusterctl bootstrap installs it; by hand: nvidia-ctk runtime configure "
        "--runtime=docker && systemctl restart docker",
        ("could not select device driver", "unknown or invalid runtime name: nvidia"),
    ),
    Failure(
        "Docker does not know the GPUs by their CDI names",
        "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        ("unresolvable cdi devices", "cdi device injection failed", "unknown device"),
    ),
    Failure(
        "the driver is too old for the image's CUDA",
        "install a newer driver: clusterctl bootstrap FILE --install-driver FILE.run; or use an "
        "image for an older CUDA",
        ("unsatisfied condition: cuda", "please update your driver"),
    ),
    Failure(
        "the NVIDIA container toolkit cannot reach the driver",
        "nvidia-smi",
        ("nvidia-container-cli",),
    ),
    Failure(
        "the host refuses a limit that the container asks for",
        "raise it: LimitNOFILE in the docker service, or ulimits of the host",
        ("error setting rlimit",),
    ),
    Failure(
        "the host has no usable cgroups",
        "systemctl status; mount | grep cgroup",
        ("devices cgroup isn't mounted", "cgroups: cgroup mountpoint does not exist"),
    ),
)


def explain(message: str) -> Failure:
    """Return the cause and the fix for an engine's `message`."""
    lowered = message.lower()
    for known in _KNOWN:
        if any(phrase in lowered for phrase in known.phrases):
            return known
    lines = (line.strip() for line in message.splitlines())
    first = next((line[:300] for line in lines if line), "nothing")
    return Failure(f"Docker says: {first}", None)


def engine_error(message: str, host: str | None = None, *, unavailable: bool = False) -> StepFailed:
    """Build the error for an engine's `message`, which becomes the detail.

    `unavailable`: the engine itself is known to be at fault, whatever the message.
    """
    failure = explain(message)
    kind = EngineUnavailable if unavailable or failure.unavailable else StepFailed
    return kind(failure.summary, host=host, hint=failure.hint, detail=message.strip()[-4000:])


ENGINE = "check the engine on the host: journalctl -u docker -n 50"
DISK = "check the disk of the host: dmesg | tail -n 30"


@contextmanager
def in_time(what: str, host: str, hint: str = ENGINE) -> Iterator[None]:
    """Raise CommandTimedOut if a Channel's `recv` or `wait` raises TimeoutError in the block."""
    try:
        yield
    except TimeoutError as error:
        words = str(error) or None
        raise CommandTimedOut(f"{what} hangs", host=host, hint=hint, detail=words) from error
