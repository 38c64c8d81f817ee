"""The node image on a worker, as the head has it."""

from __future__ import annotations

from collections.abc import Callable

from clusterctl.containers.driver import EngineUnavailable
from clusterctl.containers.image_copy import copy
from clusterctl.containers.meter import MIB
from clusterctl.engine.step import Change, HostView, Unknown
from clusterctl.steps.engines import Engines
from clusterctl.steps.image_holders import ImageHolders
from clusterctl.steps.node_image import NodeImage, node_tag

NodeIp = Callable[[HostView], str]
"""The address of a host that the others reach it at."""


class ImageCopied:
    """The worker has the image that the head has for nodes, layer for layer.

    It comes straight from a host that has it already: the head, or a worker served before.
    """

    title = "image"

    def __init__(
        self,
        node_image: NodeImage,
        engines: Engines,
        node_ip: NodeIp,
        holders: ImageHolders | None = None,
    ) -> None:
        self._node_image = node_image
        self._engines = engines
        self._node_ip = node_ip
        self._holders = holders or ImageHolders(node_image.head)

    def check(self, view: HostView) -> Change | Unknown | None:
        head = self._node_image.head.host.name
        try:
            wanted = self._node_image.known()
        except EngineUnavailable as error:
            return Unknown(f"{head} gets the image first: {error.summary}")
        if wanted is None:
            return Unknown(f"{head} gets the image first")
        here = self._engines(view).image(node_tag(wanted))
        if here is None:
            return Change(f"copy {node_tag(wanted)} from {head}")
        if here.layers != wanted.layers:
            return Change(f"replace {node_tag(wanted)}, whose layers differ from those on {head}")
        self._holders.add(view)
        return None

    def apply(self, view: HostView, change: Change) -> None:
        del change
        tag = node_tag(self._node_image.on(self._node_image.head))
        with self._holders.lend(view) as holder:
            image = self._node_image.on(holder)
            view.say(f"from {holder.host.name}, {image.size / MIB:.0f} MiB")
            source, receiver = self._engines(holder), self._engines(view)
            copy(source, receiver, image, tag, self._node_ip(holder), view.say)
