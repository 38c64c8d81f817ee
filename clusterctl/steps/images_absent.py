"""Step that removes the images that clusterctl put on a host."""

from __future__ import annotations

from clusterctl.containers.driver import ContainerDriver
from clusterctl.containers.reference import tagged
from clusterctl.engine.step import Change, HostView
from clusterctl.steps.engines import Engines
from clusterctl.steps.installed import IMAGES, forget_installed, installed_by_us
from clusterctl.steps.node_image import REFERENCE_LABEL
from clusterctl.steps.paths_absent import beside


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
