"""Images that clusterctl brought to a host, taken away again."""

from __future__ import annotations

from clusterctl.containers.driver import ContainerDriver
from clusterctl.engine.step import Change, HostView
from clusterctl.steps.engines import Engines
from clusterctl.steps.node_image import REFERENCE_LABEL


class ImagesAbsent:
    """Neither the inventory's image nor a node image made from it is on the host."""

    title = "image"

    def __init__(self, reference: str, engines: Engines) -> None:
        self._reference = reference
        self._engines = engines

    def check(self, view: HostView) -> Change | None:
        if not view.facts.engine.installed:
            return None
        names = self._names(self._engines(view))
        return Change(f"remove {', '.join(names)}") if names else None

    def apply(self, view: HostView, change: Change) -> None:
        del change
        driver = self._engines(view)
        for name in self._names(driver):
            driver.remove_image(name)

    def _names(self, driver: ContainerDriver) -> list[str]:
        made = driver.images({REFERENCE_LABEL: self._reference})
        tags = [name for image in made for name in image.tags or (image.id,)]
        return [*tags, *([self._reference] if driver.image(self._reference) else [])]
