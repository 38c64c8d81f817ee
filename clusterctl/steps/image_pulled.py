"""Step that pulls an image on a host, if the operator's machine cannot get it from its registry."""

from __future__ import annotations

from clusterctl.containers.reference import tagged
from clusterctl.engine.step import Change, HostView
from clusterctl.errors import StepFailed
from clusterctl.steps.engines import Engines
from clusterctl.steps.installed import IMAGES, record_installed


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
