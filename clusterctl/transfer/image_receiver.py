"""Receive images: hosts pull from the relay next to their engine, or `docker load` only the missing
layers; then the image is tagged, and a container is started from it."""

from __future__ import annotations

import io
import re
import tarfile
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from clusterctl import deadlines
from clusterctl.containers.driver import ContainerDriver, Say
from clusterctl.containers.failures import engine_error, in_time
from clusterctl.containers.image_stream import silence_limit
from clusterctl.containers.meter import gib
from clusterctl.containers.reference import pinned
from clusterctl.engine.step import Change, HostView, Unknown
from clusterctl.errors import ClusterctlError, CommandTimedOut, StepFailed, raise_all
from clusterctl.steps.image_digest import DigestRecord, read_record, write_record
from clusterctl.transfer.bundle import blob_name, documents
from clusterctl.transfer.chain import Chain
from clusterctl.transfer.chain_link import LinkProgress, fetch_limit
from clusterctl.transfer.content import ImageContent, ImageSource, digest_of
from clusterctl.transfer.engine_image import HostImage
from clusterctl.transfer.engine_state import (
    EngineState,
    HeldImage,
    ImageDelivery,
    Method,
    choose_delivery,
    inspect_engine,
    problems,
    same_image,
    uncompressed,
)
from clusterctl.transfer.image_sources import EngineStates, Origin
from clusterctl.transfer.transfer import Route, Sending
from clusterctl.transport.fanout import fan_out, values
from clusterctl.transport.python import PythonMissing
from clusterctl.units import GIB, MIB

# Seconds that a host's engine state is cached: a plan, its confirmation and its first stage share
# one query. After a change the host is queried again at once.
FRESH = 15.0

# Chooses the origin of the image from the engine states of the hosts that answered.
Find = Callable[[EngineStates], Origin | Unknown]


class _Prepared(NamedTuple):
    """The decisions of `prepare` for one host."""

    image: ImageSource
    engine: EngineState
    delivery: ImageDelivery


class ImageReceiver:
    """Delivers an image to the hosts of `targets`, tags it, and checks that a container starts from
    it. `drivers`: of all hosts that may already have it. `before` is called with each host that has
    no image of that name, before it receives it."""

    what = "image"

    def __init__(
        self,
        find: Find,
        drivers: Mapping[str, ContainerDriver],
        targets: tuple[str, ...],
        route: Route,
        *,
        before: Callable[[HostView], None] = lambda _: None,
    ) -> None:
        self._find, self._drivers, self._targets = find, drivers, targets
        self._route, self._before = route, before
        self._lock = threading.RLock()
        self._origin: Origin | None = None
        self._seen: dict[str, tuple[float, EngineState]] = {}  # By host: monotonic seconds, state
        self._prepared: dict[str, _Prepared] = {}

    def origin(self) -> Origin | Unknown:
        """Return the origin, found once; Unknown until a host has it. Raises what `find` raises."""
        with self._lock:
            if self._origin is None:
                found = self._find(self._look())
                if isinstance(found, Unknown):
                    self._seen.clear()  # stale once a host has the image
                    return found
                self._origin = found
            return self._origin

    def is_done(self) -> bool:
        """Return whether no target needs a change; False if one does not answer."""
        engines, origin = self._look(), self.origin()
        if isinstance(origin, Unknown) or not engines.keys() >= set(self._targets):
            return False
        for name in self._targets:
            here = same_image(self._engine(name, origin), origin.wanted)
            if here is None or _naming(here, origin.wanted.reference) is not None:
                return False
        if origin.registry is None:
            return True
        records = fan_out(
            {name: name for name in self._targets}, lambda name: self._recorded(name, origin)
        )
        return list(values(records).values()) == [_record(origin)] * len(self._targets)

    def check(self, view: HostView) -> Change | Unknown | None:
        """See Step. Raises RequirementsNotMet if the host cannot take the image, as far as is known
        before the image is read, StepFailed if it has no Python for a relay."""
        self._look()
        self._engine(view.host.name)
        origin = self.origin()
        if isinstance(origin, Unknown):
            return origin
        engine, reference = self._engine(view.host.name, origin), origin.wanted.reference
        here = same_image(engine, origin.wanted)
        record = self._recorded(view.host.name, origin) if origin.registry else None
        if here is not None:
            unrecorded = origin.registry and record != _record(origin)
            recording = Change(f"record that {reference} is {origin.digest} in its registry")
            return _naming(here, reference) or (recording if unrecorded else None)
        if engine.python is None:  # A StepFailed: bootstrap's plan installs Python first.
            missing = PythonMissing(view.host.name, "\n".join(engine.unusable) or None)
            raise StepFailed(
                missing.summary, host=missing.host, hint=missing.hint, detail=missing.detail
            )
        verb = "replace" if engine.tagged(reference) else "get"
        if origin.content is None:
            common, count = engine.common(origin.wanted.layers), len(origin.wanted.layers)
            some = f"{count - common} of its {count} layers"
            size = some if common else f"{origin.unpacked / GIB:.2f} GiB, unpacked,"
            return Change(f"{verb} {reference}: {size} from {origin.name}")
        raise_all(problems(view.host.name, engine, origin.content))
        delivery = choose_delivery(engine, origin.content)
        size = f"{origin.content.size / GIB:.2f} GiB"
        if len(delivery.layers) < len(origin.content.layers):
            size = f"{delivery.size / GIB:.2f} of its {size}"
        came = f" ({origin.digest})" if origin.digest else ""
        return Change(
            f"{verb} {reference}: {size} from {origin.name}{came}, by {delivery.method}"
            f"{_moved(origin, record)}"
        )

    def settle(self, view: HostView) -> bool:
        """Tag the image and remove its temporary tags; return False if the host lacks it."""
        origin, name = self._require_origin(view.host.name), view.host.name
        engine, reference = self._engine(name, origin), origin.wanted.reference
        if engine.tagged(reference) is None:
            self._before(view)
        here = same_image(engine, origin.wanted)
        if here is None:
            return False
        driver = self._drivers[name]
        try:
            insist_on_start(driver, here.id, reference)
            self._keep_digest(view, origin)
            driver.tag(here.id, reference)
            for tag in filter(is_relay_name, here.tags):
                driver.remove_image(tag)
        finally:
            self._seen.pop(name, None)
        return True

    def prepare(self, first: HostView, _say_on: Callable[[str], Say]) -> Sending:
        origin = self._require_origin(first.host.name)
        engines = values(fan_out({name: name for name in self._targets}, self._engine))
        lacking = {
            name: engine
            for name, engine in engines.items()
            if not same_image(engine, origin.wanted)
        }
        layers = origin.wanted.layers
        missing = {each for engine in lacking.values() for each in layers[engine.common(layers) :]}
        image = origin.supply(missing, first.say)
        raise_all(
            problem
            for name, engine in lacking.items()
            for problem in problems(name, engine, image.content)
        )
        self._prepared = {
            name: _Prepared(image, engine, choose_delivery(engine, image.content))
            for name, engine in lacking.items()
        }
        holder = None
        if isinstance(image, HostImage):
            holder = self._route.link(image.driver.host, image.paths)
        return Sending(
            expected={name: found.delivery.size for name, found in self._prepared.items()},
            links=[self._route.link(name) for name in self._prepared],
            holder=holder,
            source=None if holder else image,
            image=image.content,
            packed=() if holder else self._packed(image.content, missing, first.host.name),
        )

    def _packed(self, content: ImageContent, lacking: Collection[str], host: str) -> list[str]:
        """Return the digests of the layers to compress for sending."""
        layers, route = uncompressed(content, lacking), self._route
        if route.compresses:
            return [layer.digest for layer in layers]
        if layers and route.compress is None:
            size = gib(sum(layer.size for layer in layers))
            route.say(
                host,
                f"sending {size} of uncompressed layers; over a link of less than 500 Mbit/s, "
                "this is faster: clusterctl image push --compress",
            )
        return []

    def receive(self, view: HostView, chain: Chain) -> None:
        """Deliver the image to this host, verify it, and tag it."""
        name, origin = view.host.name, self._require_origin(view.host.name)
        reference = origin.wanted.reference
        image, engine, delivery = self._prepared[name]
        driver, content = self._drivers[name], image.content
        pulled_as = None
        try:
            if delivery.method is Method.PULL:
                pulled_as = pull(driver, chain, view.say)
            else:
                wanted = [layer.digest for layer in delivery.layers]
                limit = fetch_limit(delivery.size)
                paths = chain.fetch(name, wanted, timeout=limit) if wanted else {}
                config = b"".join(image.open(content.config))
                view.say("loading the missing layers")
                load_from_cache(driver, content, config, paths)
            view.say("starting a container from it")
            identifier = image_id(content, containerd=engine.containerd)
            prove(driver, content, identifier)
            self._keep_digest(view, origin)
            driver.tag(identifier, reference)
            if pulled_as:
                driver.remove_image(pulled_as)
        finally:
            self._seen.pop(name, None)

    @staticmethod
    def describe(progress: LinkProgress, expected: int) -> str:
        """Return progress such as `0.31 of its 2.78 GiB, 11.8 MiB/s, 9 s left, from gpu1`."""
        done, digits = min(progress.done, expected), 2 if expected >= GIB else 0
        unit, name = (GIB, "GiB") if expected >= GIB else (MIB, "MiB")
        amount = f"{done / unit:.{digits}f} of its {max(expected, 1) / unit:.{digits}f} {name}"
        if done >= expected:
            return f"{amount}, the engine is unpacking"
        return ", ".join((amount, *progress.movement(expected - done)))

    def clear(self) -> None:
        if self._origin is not None:
            self._origin.clear()

    def _require_origin(self, host: str) -> Origin:
        origin = self.origin()
        if isinstance(origin, Unknown):
            raise StepFailed(origin.reason, host=host)
        return origin

    def _recorded(self, name: str, origin: Origin) -> DigestRecord | None:
        return read_record(self._route.transports[name], origin.wanted.reference)

    def _keep_digest(self, view: HostView, origin: Origin) -> None:
        record = _record(origin)
        if record:
            write_record(view, origin.wanted.reference, record)

    def _look(self) -> dict[str, EngineState]:
        """Return the engine states of the hosts that answer."""
        with self._lock:
            if not self._seen:
                values(fan_out({name: name for name in self._drivers}, self._engine))
            return {name: engine for name, (_, engine) in self._seen.items()}

    def _engine(self, name: str, origin: Origin | None = None) -> EngineState:
        """Return the host's state, looking up the name of `origin` if the engine may not list
        it."""
        when, engine = self._seen.get(name, (0.0, None))
        if engine and time.monotonic() - when < FRESH:
            wanted = origin.wanted.reference if origin and engine.containerd else None
            if wanted is None or engine.tagged(wanted):
                return engine
        reference = self._origin.wanted.reference if self._origin else ""
        engine = inspect_engine(self._drivers[name], self._route.cache(name), reference)
        self._seen[name] = (time.monotonic(), engine)
        return engine


def _record(origin: Origin) -> DigestRecord | None:
    """Return what a host records with the image; None if no registry is known to have it."""
    return DigestRecord(origin.digest, origin.wanted.layers) if origin.digest else None


def _moved(origin: Origin, record: DigestRecord | None) -> str:
    """Return a hint to pin the previous image if its tag has moved, else ""."""
    image = origin.registry
    if image is None or record is None or "@" in image.reference or record.digest == origin.digest:
        return ""
    keep = pinned(image.reference, record.digest)
    return (
        f"; the tag has moved, from {record.digest} to {origin.digest}: to keep the first, "
        f"`image: {keep}`"
    )


def _naming(here: HeldImage, reference: str) -> Change | None:
    """Return the tag change that an interrupted run left undone, or None."""
    if reference not in here.tags:
        return Change(f"tag the existing image as {reference}")
    if any(map(is_relay_name, here.tags)):
        return Change(f"remove temporary names of {reference}")
    return None


# The engine's own init, which it mounts into the container. It is static, so that it starts in any
# image, even without a shell, but only if all layers were unpacked.
START = ("/sbin/docker-init", "--version")


def image_id(content: ImageContent, *, containerd: bool) -> str:
    """Return the ID that the engine gives the image: the manifest's digest with containerd's image
    store, else the config's."""
    return digest_of(content.manifest) if containerd else content.config.digest


def prove(driver: ContainerDriver, content: ImageContent, identifier: str) -> None:
    """Raise StepFailed unless the engine has the image `identifier` with the layers of `content`,
    and a container starts from it."""
    found = driver.image(identifier)
    if found is None:
        raise StepFailed(
            f"{content.reference} arrived with a different ID than {identifier}",
            host=driver.host,
            hint="run the same command again",
        )
    if found.layers != content.diff_ids:
        raise StepFailed(
            f"{content.reference} arrived with different layers than were sent",
            host=driver.host,
            hint=f"docker image rm {identifier} on it, then run the same command again",
        )
    insist_on_start(driver, identifier, content.reference)


def insist_on_start(driver: ContainerDriver, identifier: str, reference: str) -> None:
    """Raise StepFailed unless a container starts from the image `identifier`."""
    started = driver.run_once(identifier, START, timeout=deadlines.FIRST_CONTAINER, init=True)
    if not started.ok:
        words = started.last_lines() or f"status {started.status}"
        error = engine_error(words, driver.host)
        error.summary = f"no container starts from {reference}: {error.summary}"
        raise error


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
    """Pull the chain's image on the driver's host; return its temporary name there.

    A restarted relay breaks the engine's connections, so failed pulls are repeated. Raises
    StepFailed with the engine's message, the chain's own problem if that is the cause,
    CommandTimedOut.
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
                        hint="check the engine on it: journalctl -u docker -n 50",
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
    """Return a small tar: an archive with a symbolic link for each layer of `paths` (digest to file
    on the host), and without a tag, since a loaded image is tagged only after a check. `tar
    --dereference` on the host turns it into the archive."""
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
