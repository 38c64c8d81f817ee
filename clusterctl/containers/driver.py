"""The interface of a container engine on one host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from clusterctl import deadlines
from clusterctl.containers.spec import CLUSTER_LABEL, FINGERPRINT_LABEL, ContainerSpec, Mount
from clusterctl.errors import StepFailed
from clusterctl.transport.base import Channel, CommandResult


class EngineUnavailable(StepFailed):
    """The engine is not installed, not running, hangs, or denies access."""


@dataclass(frozen=True)
class Image:
    """An image in the engine."""

    # The config's digest, or the manifest's with the containerd image store: the same image may
    # have different IDs on two hosts.
    id: str
    layers: tuple[str, ...]  # diff IDs of RootFS, the same on every host
    size: int  # Bytes, unpacked
    tags: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    architecture: str = ""  # In Go's terms: amd64, arm64
    digests: tuple[str, ...] = ()  # NAME@DIGEST, by which it was pulled


@dataclass(frozen=True)
class Container:
    """A container in the engine. `env` includes the image's."""

    id: str
    name: str
    image: str  # Image ID
    status: str  # created | running | paused | restarting | removing | exited | dead
    exit_code: int
    error: str  # The engine's reason why it did not start
    command: tuple[str, ...]  # Entry point and arguments
    env: Mapping[str, str]
    image_env: Mapping[str, str]
    mounts: tuple[Mount, ...]
    ulimits: Mapping[str, int]
    cdi_devices: tuple[str, ...]
    all_gpus: bool
    devices: tuple[str, ...]
    capabilities: tuple[str, ...]
    drops_others: bool  # Has no capability but these; else the engine's default ones, too
    security_options: tuple[str, ...]
    pids_limit: int  # 0: none
    labels: Mapping[str, str]
    stop_timeout: int
    network: str
    ipc: str
    restart: str  # Name of the restart policy
    init: bool
    started_at: str = ""  # RFC 3339; changes with every start
    restarts: int = 0  # Starts by the restart policy

    @property
    def running(self) -> bool:
        return self.status == "running"

    @property
    def cluster(self) -> str | None:
        """The cluster that the container belongs to; None if clusterctl did not create it."""
        return self.labels.get(CLUSTER_LABEL)

    @property
    def fingerprint(self) -> str | None:
        return self.labels.get(FINGERPRINT_LABEL)


Say = Callable[[str], None]  # Takes one short line of progress at a time


class ContainerDriver(Protocol):
    """The engine of one host. Every call has a deadline, and raises EngineUnavailable if the engine
    does not answer, StepFailed if it refuses."""

    @property
    def host(self) -> str:
        """The host's name in the inventory."""

    def image(self, reference: str) -> Image | None:
        """Return the image with that ID or tag, or None."""

    def images(self, labels: Mapping[str, str]) -> list[Image]:
        """Return the images with all of `labels`, newest first."""

    def containers(self, cluster: str) -> list[Container]:
        """Return the containers of that cluster by label, including stopped ones."""

    def find(self, name: str) -> Container | None:
        """Return the container with exactly that name, whoever created it."""

    def run(self, spec: ContainerSpec) -> str:
        """Create and start a container and return its ID. Removes it if it cannot start."""

    def start(self, container: str) -> None: ...

    def stop(self, container: str, timeout: int) -> None:
        """Send SIGTERM, and SIGKILL after `timeout` seconds. A stopped container is not an
        error."""

    def remove(self, container: str) -> None:
        """Remove the container, running or not. A missing container is not an error."""

    def logs(self, container: str, tail: int = 100) -> str:
        """Return the last `tail` lines of stdout and stderr."""

    def exec(
        self,
        container: str,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float = deadlines.COMMAND,
    ) -> CommandResult:
        """Run `argv` in a running container."""

    def run_once(
        self,
        image: str,
        argv: Sequence[str],
        *,
        timeout: float = deadlines.CONTAINER_ONCE,
        init: bool = False,
        devices_of: ContainerSpec | None = None,
    ) -> CommandResult:
        """Run `argv` in a temporary container without network, and remove it. `init`: add the
        engine's own /sbin/docker-init, whatever the image contains. `devices_of`: the spec whose
        GPUs and devices it gets."""

    def tag(self, image: str, reference: str) -> None: ...

    def published(self, reference: str) -> str:
        """Return the registry's digest for `reference`, as the engine sees it without a login.
        Raises StepFailed if the registry refuses or does not answer."""

    def pull(self, reference: str, say: Say) -> None:
        """Pull the image from its registry, with the host's own login."""

    def build(
        self,
        dockerfile: str,
        reference: str,
        arguments: Mapping[str, str],
        say: Say,
        files: Mapping[str, str] | None = None,
    ) -> None:
        """Build an image on the host's network, and tag it. `files`: what the Dockerfile can copy,
        by name."""

    def remove_image(self, reference: str) -> None:
        """Remove or untag the image. A missing image is not an error."""

    # Command lines to run on the host, for streams and programs there. Their input and output are
    # the same for every engine.

    def save_argv(self, image: str) -> tuple[str, ...]:
        """The command that writes the image with that ID as an archive: manifest, configuration,
        layers."""

    def load_argv(self) -> tuple[str, ...]:
        """The command that loads an archive like that of `save_argv`, which may omit layers that
        the engine has. It prints `Loaded image: REFERENCE` or `Loaded image ID: ID`."""

    def pull_argv(self, reference: str) -> tuple[str, ...]:
        """The command that pulls the image, without progress output."""

    def exec_argv(
        self, container: str, argv: Sequence[str], *, terminal: bool = False
    ) -> tuple[str, ...]:
        """The command that runs `argv` in a running container, passing on its stdin, and its
        terminal if it has one."""

    def stock_argv(self, cache: str, reference: str) -> tuple[str, ...]:
        """The command that lists the engine's images, as lines for `transfer.engine_state`."""

    def host_run(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = deadlines.COMMAND
    ) -> CommandResult:
        """Run a command on the engine's host, as a user with access to the engine."""

    def host_open(self, argv: Sequence[str]) -> Channel:
        """Start a command on the engine's host, as a user with access to the engine, and return its
        channel."""
