"""The image that nodes run: the inventory's image, with Ray; and the steps that pull an image on a
host, if the operator's machine cannot get it from its registry, and remove what was put there.

The node image is a separate one, `clusterctl/NAME:TAG-rayVERSION`, even if the inventory's image
contains Ray: then it adds no layer, and its labels save the next run from inspecting it.
"""

from __future__ import annotations

import hashlib

from clusterctl.containers.driver import ContainerDriver, Image
from clusterctl.containers.reference import repository_and_tag, tagged
from clusterctl.engine.step import Change, HostView
from clusterctl.errors import StepFailed
from clusterctl.steps.engines import Engines
from clusterctl.steps.files import (
    IMAGES,
    beside,
    forget_installed,
    installed_by_us,
    record_installed,
)

BASE_LABEL = "clusterctl.base"  # Digest of the layers of the image it was made from

RAY_LABEL = "clusterctl.ray"  # The release of Ray in it

REFERENCE_LABEL = "clusterctl.reference"  # The inventory's reference of the image it was made from

OUR_REPOSITORY = "clusterctl/"


class NodeImage:
    """Finds the node image on hosts. The head's image determines which one is current."""

    def __init__(self, reference: str, engines: Engines, head: HostView) -> None:
        self.reference = reference
        self.head = head
        self._engines = engines
        self._known: Image | None = None

    def look(self) -> Image | None:
        """Return the head's current node image, or None. Raises EngineUnavailable."""
        self._known = made_from(self._engines(self.head), self.reference)
        return self._known

    def known(self) -> Image | None:
        """Return what `look` found last, so that workers do not each ask the head."""
        return self._known or self.look()

    def on(self, view: HostView) -> Image:
        """Return the node image in `view`'s engine. Raises StepFailed if it is missing."""
        wanted = self.known()
        found = self._engines(view).image(node_tag(wanted)) if wanted else None
        if found is None:
            raise StepFailed("the node image is not on this host yet", host=view.host.name)
        return found


def made_from(driver: ContainerDriver, reference: str) -> Image | None:
    """Return the node image made from the image that `reference` currently names there."""
    base = driver.image(reference)
    if base is None:
        return None
    made = driver.images({BASE_LABEL: content(base)})
    return next((image for image in made if _tags_of_ours(image)), None)


def content(image: Image) -> str:
    """Return one digest for all layers: equal on every host that has the image."""
    return hashlib.sha256("\n".join(image.layers).encode()).hexdigest()


def node_tag(image: Image) -> str:
    """Return the tag that a node image has on every host."""
    return _tags_of_ours(image)[0]


def tag_for(reference: str, ray: str) -> str:
    """For `vllm/vllm-openai:v0.33.0` and 2.56.1: `clusterctl/vllm-openai:v0.33.0-ray2.56.1`."""
    repository, tag = repository_and_tag(reference)
    name, digest = repository.rsplit("/", 1)[-1], reference.partition("@sha256:")[2]
    return f"{OUR_REPOSITORY}{name}:{tag or digest[:12] or 'latest'}-ray{ray}"


def _tags_of_ours(image: Image) -> list[str]:
    return sorted(tag for tag in image.tags if tag.startswith(OUR_REPOSITORY) and "-ray" in tag)


class ImagePulled:
    """Step: the host has the image, pulled from its registry, and then serves it to the others.

    `why`: why it is pulled, for progress; `marked`: record it for removal by `down --purge`.
    """

    title = "image from its registry"

    def __init__(self, reference: str, engines: Engines, why: str, *, marked: bool) -> None:
        self._reference, self._engines = reference, engines
        self._why, self._marked = why, marked

    def check(self, view: HostView) -> Change | None:
        if self._engines(view).image(tagged(self._reference)) is not None:
            return None
        return Change(f"pull {self._reference} from its registry")

    def apply(self, view: HostView, change: Change) -> None:
        del change
        view.say(self._why)
        driver = self._engines(view)
        if self._marked and driver.image(tagged(self._reference)) is None:
            record_installed(view, [self._reference], IMAGES)
        try:
            driver.pull(self._reference, view.say)
        except StepFailed as error:
            error.summary = f"{self._reference} is on no host, and {error.summary}"
            error.detail = "\n".join(filter(None, (error.detail, self._why)))
            raise


class ImagesAbsent:
    """Step: the host has neither node images made from the inventory's image, nor that image, if
    clusterctl put it there. All stay while another cluster has a directory beside `own`, this
    cluster's: it may use the same image."""

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

    def apply(self, view: HostView, change: Change) -> None:
        del change
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
