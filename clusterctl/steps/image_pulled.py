"""An image that only a host can get from its registry: the operator's machine cannot."""

from __future__ import annotations

from clusterctl.containers.reference import tagged
from clusterctl.engine.step import Change, HostView
from clusterctl.errors import StepFailed
from clusterctl.steps.engines import Engines
from clusterctl.steps.installed import IMAGES, record_installed


class ImagePulled:
    """The host has the image by its reference. It heads the chain then.

    `why` says why it is not taken from elsewhere; `marked`: it is bootstrap that brings it.
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
