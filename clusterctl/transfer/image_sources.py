"""Where an image comes from: a host that has it, an archive, Docker on this machine, or its
registry, reached from a host or from this machine.

To add a place, write a method of `ImageFinder` that returns an `Origin`, and add it to `_nearest`
and its `--from` value to `place`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from clusterctl.containers.driver import ContainerDriver, EngineUnavailable, Say
from clusterctl.containers.drivers import driver_for
from clusterctl.containers.reference import parse, tagged
from clusterctl.engine.events import EventSink, Note
from clusterctl.engine.plan import Stage
from clusterctl.engine.step import Unknown
from clusterctl.errors import ClusterctlError, StepFailed, UsageError
from clusterctl.inventory.model import Host, Inventory
from clusterctl.inventory.outside import outside_of
from clusterctl.steps.engines import Engines
from clusterctl.steps.image_digest import DigestRecord, read_record
from clusterctl.steps.node_image import ImagePulled
from clusterctl.transfer.archive_image import archive_image
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.content import ImageContent, ImageSource, digest_of
from clusterctl.transfer.engine_image import engine_image, overlay_image, save_on_host
from clusterctl.transfer.engine_state import (
    EngineState,
    HeldImage,
    WantedImage,
    inspect_engine,
    settings,
)
from clusterctl.transfer.registry.client import NoSuchImage
from clusterctl.transport.base import Transport
from clusterctl.transport.credentials import Ask, nobody
from clusterctl.transport.fanout import fan_out, values
from clusterctl.transport.local import LocalTransport

USUAL_PLATFORM = "linux/amd64"

HOST = "host:"  # Prefix of --from values that name a host

# Directory for the layers that others lack, on a host that heads a chain, during the transfer.
SAVED = "/var/lib/clusterctl/saved"

# Hosts that are asked whether they reach the registry; an answer may count as a pull there.
ASKED = 4

EngineStates = Mapping[str, EngineState]  # By host


@dataclass(frozen=True)
class PulledFirst(Unknown):
    """`host` pulls the image from its registry, and the other hosts get it from that host."""

    host: str

    def stage(self, reference: str, engines: Engines, *, marked: bool) -> Stage:
        """Return the stage that precedes the delivery. `marked`: `down --purge` removes it."""
        pull = ImagePulled(reference, engines, self.reason, marked=marked)
        return Stage("Image from its registry", (self.host,), (pull,))


# Makes an image ready to send, given the diff IDs of the layers that hosts lack. A HostImage is
# sent by its host, any other image by this machine.
Supply = Callable[[Collection[str], Say], ImageSource]


@dataclass(frozen=True)
class Origin:
    """A place from which an image can be sent."""

    name: str  # Shown to users: gpu1, bundle.tar, its registry
    wanted: WantedImage
    supply: Supply
    content: ImageContent | None = None  # None if only `supply` reads the image
    digest: str | None = None  # In the registry, if it is known to come from there
    clear: Callable[[], object] = lambda: None  # Removes temporary files of `supply`
    unpacked: int = 0  # Bytes in the engine that has it; unknown where `content` is known

    @property
    def registry(self) -> ImageContent | None:
        """The image in the registry, if it was queried in this run."""
        return self.content if self.digest else None


def local_origin(
    name: str, image: ImageSource, reference: str, digest: str | None = None
) -> Origin:
    """Return the origin of an image that this machine reads from an archive, or from a registry,
    where it has the digest `digest`."""
    content = image.content
    config = json.loads(b"".join(image.open(content.config)))
    ids = frozenset({content.config.digest, digest_of(content.manifest)})
    wanted = WantedImage(tagged(reference), content.diff_ids, ids, settings(config.get("config")))
    return Origin(name, wanted, lambda _lacking, _say: image, content, digest)


def host_origin(
    driver: ContainerDriver,
    engine: EngineState,
    held: HeldImage,
    reference: str,
    directory: str = SAVED,
) -> Origin:
    """Return the origin of an image that a host has. That host heads the chain; no layer passes
    through this machine."""

    def supply(lacking: Collection[str], say: Say) -> ImageSource:
        found = overlay_image(driver, engine, held, reference, directory, lacking, say)
        if found is not None:
            return found
        image = driver.image(held.id)
        if image is None:
            raise StepFailed(
                f"{reference} is gone from this host",
                host=driver.host,
                hint="run the same command again",
            )
        return save_on_host(driver, image, reference, directory, say=say, keep=lacking)

    return Origin(
        driver.host,
        _wanted_held(held, reference),
        supply,
        clear=lambda: driver.host_run(["rm", "-rf", directory]),
        unpacked=held.size,
    )


def _wanted_held(held: HeldImage, reference: str) -> WantedImage:
    return WantedImage(tagged(reference), held.layers, frozenset({held.id}), held.settings)


@dataclass(frozen=True)
class ImageFinder:
    """Finds `reference`: at `chosen` (registry, docker, host:NAME, a path), else at the nearest
    origin. `order`: host names; if images differ between hosts, the first host's counts."""

    reference: str
    drivers: Mapping[str, ContainerDriver]
    order: tuple[str, ...]
    chosen: str | None = None
    archive: Path | None = None  # The inventory's archive of this image
    operator: ContainerDriver | None = None  # Docker on this machine
    # If the hosts' platform is unknown. None: that of an archive, and of a registry USUAL_PLATFORM.
    platform: str | None = None
    ca: str = ""  # CA certificates in PEM that registries are trusted by, too
    store: BlobStore = field(default_factory=BlobStore)
    ask: Ask = nobody
    say: Say = lambda _: None
    saved: str = SAVED
    pullers: tuple[str, ...] = ()  # Hosts that may pull the image, the preferred ones first
    # What a host has recorded of the image's name.
    recorded: Callable[[str], DigestRecord | None] = lambda _: None
    # The host that pulls, once that is decided: registries are asked once in a run.
    _pulls: list[PulledFirst] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        inventory: Inventory,
        reference: str,
        drivers: Mapping[str, ContainerDriver],
        transports: Mapping[str, Transport],
        order: tuple[str, ...],
        sink: EventSink,
    ) -> ImageFinder:
        """Return an image's finder for hosts of `inventory`, reached through `transports`."""
        return cls(
            reference,
            drivers,
            order,
            archive=inventory.image_archive if reference == inventory.image else None,
            operator=operators_engine(),
            ca=outside_of(inventory).ca,
            say=lambda text: sink(Note(text)),
            recorded=lambda name: read_record(transports[name], reference),
        )

    def find(self, engines: EngineStates) -> Origin | Unknown:
        """Return the origin. Raises StepFailed, RequirementsNotMet, UsageError if there is none."""
        return self.place(self.chosen, engines) if self.chosen else self._nearest(engines)

    def place(self, chosen: str, engines: EngineStates) -> Origin:
        """Return the origin at a value of --from. Raises as `find` does."""
        if chosen == "registry":
            return self._from_registry(engines)
        if chosen == "docker":
            return self._from_docker()
        if not chosen.startswith(HOST):
            return self._from_archive(Path(chosen).expanduser(), engines, self.reference)
        name = chosen.removeprefix(HOST)
        if name not in self.drivers:
            known = ", ".join(self.drivers)
            raise UsageError(f"--from host:{name}: no such host", hint=f"hosts: {known}")
        engine = engines.get(name) or inspect_engine(self.drivers[name])
        held = engine.tagged(tagged(self.reference)) or self._missing(name, "docker images")
        return self._from_host(name, engine, held)

    def _nearest(self, engines: EngineStates) -> Origin | Unknown:
        """Return the nearest origin. An archive in the inventory decides which image it is; a host
        that has the same image still comes first, since it is nearer to the others."""
        archived = self._from_archive(self.archive, engines, None) if self.archive else None
        return (
            self._from_any_host(engines, archived)
            or archived
            or self._from_docker_if_there()
            or self._pulled_by_a_host(engines)
            or self._from_registry_or_by_its_login(engines)
        )

    def _from_any_host(self, engines: EngineStates, archived: Origin | None) -> Origin | None:
        """Return the first host that has the image: the one of `archived`, if there is one."""
        layers = archived.wanted.layers if archived else None
        wanted = parse(self.reference).digest
        for name in self.order:
            engine = engines.get(name)
            held = engine.tagged(tagged(self.reference)) if engine else None
            if engine and held and engine.python and layers in (None, held.layers):
                found = self._from_host(name, engine, held)
                if found.digest is None or wanted in (None, found.digest):
                    return found
        return None

    def _pulled_by_a_host(self, engines: EngineStates) -> PulledFirst | None:
        """Return the first host whose engine gets the image's digest from its registry. The bytes
        then do not cross the uplink of this machine, which may be at home."""
        if self._pulls:
            return self._pulls[0]
        asked = [name for name in self.pullers if name in engines and engines[name].python][:ASKED]
        digests = values(
            fan_out(
                {name: name for name in asked},
                lambda name: self.drivers[name].published(self.reference),
            )
        )
        for name in filter(digests.__contains__, asked):
            why = f"{name} pulls it first, as {digests[name]}: its engine reaches the registry"
            self._pulls.append(PulledFirst(why, name))
            return self._pulls[0]
        return None

    def _from_registry_or_by_its_login(self, engines: EngineStates) -> Origin | PulledFirst:
        """Return the registry as read by this machine; or a host, whose engine may have a login not
        tried so far."""
        try:
            return self._from_registry(engines)
        except NoSuchImage:
            raise
        except ClusterctlError as error:
            host = (*self.pullers, *self.order)[0]
            self._pulls.append(
                PulledFirst(f"{host} pulls it first: from here, {error.summary}", host)
            )
            return self._pulls[0]

    def _from_host(self, name: str, engine: EngineState, held: HeldImage) -> Origin:
        record = self.recorded(name)
        found = host_origin(self.drivers[name], engine, held, tagged(self.reference), self.saved)
        return replace(found, digest=record.of(held.layers) if record else None)

    def _missing(self, where: str, hint: str) -> NoReturn:
        raise StepFailed(f"{where} has no {self.reference}", hint=f"{hint} {self.reference}")

    def _from_archive(self, path: Path, engines: EngineStates, reference: str | None) -> Origin:
        image = archive_image(
            path,
            self.store,
            reference=reference,
            platform=_platform(engines) or self.platform,
            say=self.say,
        )
        return local_origin(path.name, image, self.reference)

    def _from_docker_if_there(self) -> Origin | None:
        """Return Docker's image on this machine; None without Docker, its daemon or the image."""
        try:
            return self._from_docker()
        except (EngineUnavailable, StepFailed):
            return None

    def _from_docker(self) -> Origin:
        driver = self.operator
        if driver is None:
            raise StepFailed("this machine has no Docker", hint="use --from registry")
        where = "Docker on this machine"
        held = inspect_engine(driver).tagged(tagged(self.reference))
        if held is None:
            self._missing(where, "docker pull")

        def supply(_lacking: Collection[str], say: Say) -> ImageSource:
            image = driver.image(self.reference) or self._missing(where, "docker pull")
            return engine_image(driver, image, self.reference, self.store, say=say)

        return Origin(where, _wanted_held(held, self.reference), supply, unpacked=held.size)

    def _from_registry(self, engines: EngineStates) -> Origin:
        from clusterctl.transfer.registry_image import registry_image  # an HTTP client, 30 ms

        platform = _platform(engines) or self.platform or USUAL_PLATFORM
        image = registry_image(
            self.reference, platform, self.store, say=self.say, ask=self.ask, ca=self.ca
        )
        return local_origin("its registry", image, self.reference, image.digest)


def _platform(engines: EngineStates) -> str | None:
    """Return the platform of all hosts; None if they differ or it is unknown."""
    platforms = {engine.platform for engine in engines.values()}
    return platforms.pop() if len(platforms) == 1 else None


def operators_engine() -> ContainerDriver | None:
    """Return the driver of Docker here, running or not; None without a `docker` client."""
    if shutil.which("docker") is None:
        return None
    here = Host(name="operator", address="localhost")
    return driver_for(LocalTransport(here), sudo=False)
