"""The images of a cluster's hosts: the inventory's image, and the node image, built from it on the
head. Both are sent through a chain: every byte leaves its source once."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from clusterctl.containers.driver import EngineUnavailable
from clusterctl.engine.events import EventSink
from clusterctl.engine.plan import Stage
from clusterctl.engine.step import Unknown
from clusterctl.errors import raise_all
from clusterctl.inventory.outside import outside_of
from clusterctl.steps.engines import Engines
from clusterctl.steps.files import IMAGES, record_installed
from clusterctl.steps.node_image import NodeImage, RayInImage, node_tag
from clusterctl.survey.cluster import Cluster, image_problems
from clusterctl.transfer.engine_state import environment
from clusterctl.transfer.image_receiver import ImageReceiver
from clusterctl.transfer.image_sources import (
    EngineStates,
    ImageFinder,
    Origin,
    PulledFirst,
    host_origin,
)
from clusterctl.transfer.transfer import Route, Transfer
from clusterctl.transport.base import Closing


class ClusterImages(Closing):
    """Stages that deliver images to the hosts `names`. Leaving the context stops transfers.

    `engines`: this run's, each with an open channel to its host; `sink` gets notes for the user.
    """

    def __init__(
        self,
        cluster: Cluster,
        names: tuple[str, ...],
        engines: Engines,
        sink: EventSink = lambda _: None,
    ) -> None:
        inventory, topology = cluster.inventory, cluster.topology
        self._outside = outside_of(inventory)
        held = (name for name in cluster.held if name in cluster.views)
        self._facts = {name: cluster.views[name].facts for name in held}
        self._inventory, self.engines = inventory, engines
        self._head = inventory.head.name
        # The node image is made on the head, and every host's comes from there.
        self._heads = (self._head,)
        self._workers = tuple(name for name in names if name != self._head)
        self.names = (*self._heads, *self._workers)
        self._drivers = {name: engines(view) for name, view in cluster.views.items()}
        self.node = NodeImage(inventory.image, engines, cluster.head, inventory.packages.pip_index)
        transports = {name: view.transport for name, view in cluster.views.items()}
        route = Route.over(transports, topology.node, sink)
        others = (name for name in self._drivers if name != self._head)
        finder = ImageFinder.of(
            inventory, inventory.image, self._drivers, transports, (self._head, *others), sink
        )
        finder = replace(finder, pullers=(*self._heads, *self._workers))
        self._base = ImageReceiver(
            finder.find,
            self._drivers,
            self.names,
            route,
            before=lambda view: record_installed(view, [inventory.image], IMAGES),
        )
        made = ImageReceiver(self._find_made, self._drivers, self._workers, route)
        self._transfers = Transfer(self._base, route), Transfer(made, route)

    def close(self) -> None:
        with ExitStack() as stack:
            for transfer in self._transfers:
                stack.callback(transfer.close)

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages in order. Raises what `ImageFinder.find` raises, and
        RequirementsNotMet, before anything is sent, if GPUs or drivers cannot run the image.
        """
        inventory, (base, made) = self._inventory, self._transfers
        pulled: tuple[Stage, ...] = ()
        origin = self._base.origin()
        if isinstance(origin, PulledFirst):
            pulled = (origin.stage(inventory.image, self.engines, marked=True),)
        elif isinstance(origin, Origin):
            env = environment(origin.wanted.settings)
            raise_all(image_problems(inventory, self._facts, env))
        with_ray = RayInImage(
            self.node,
            self.engines,
            outside=self._outside,
            allow_unauthenticated=inventory.allow_unauthenticated_ray,
        )
        return (
            *pulled,
            Stage("Image", self.names, (base,)),
            Stage("Node image", self._heads, (with_ray,)),
            Stage("Node image on workers", self._workers, (made,)),
        )

    def _find_made(self, stocks: EngineStates) -> Origin | Unknown:
        """Return the head's node image as the origin; Unknown until the head has it."""
        try:
            made = self.node.known()
        except EngineUnavailable as error:
            return Unknown(f"{self._head} gets the image first: {error.summary}")
        tag = node_tag(made) if made else ""
        held = stocks[self._head].tagged(tag) if self._head in stocks else None
        if made is None or held is None or self.node.why_again(made):
            return Unknown(f"{self._head} gets the image first")
        return host_origin(self._drivers[self._head], stocks[self._head], held, tag)
