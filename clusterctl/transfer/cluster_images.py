"""The images of a cluster's hosts: the inventory's image on all of them, and the node image, built
from it on the head. Both are sent through a chain: every byte leaves its source once."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Self

from clusterctl.containers.driver import EngineUnavailable
from clusterctl.engine.events import EventSink, Note
from clusterctl.engine.plan import Stage
from clusterctl.engine.step import Unknown
from clusterctl.steps.derived_image import RayInImage
from clusterctl.steps.engines import Engines
from clusterctl.steps.image_pulled import ImagePulled
from clusterctl.steps.installed import IMAGES, record_installed
from clusterctl.steps.node_image import NodeImage, node_tag
from clusterctl.survey.cluster import Cluster
from clusterctl.transfer.image_receiver import ImageReceiver
from clusterctl.transfer.image_sources import (
    EngineStates,
    ImageFinder,
    Origin,
    host_origin,
    operators_engine,
)
from clusterctl.transfer.transfer import Route, Transfer
from clusterctl.transport.base import Closing


def _silent(_: object) -> None:
    return None


class ClusterImages(Closing):
    """Stages that give the hosts `names` their images. Leaving the context stops transfers.

    `engines` are those of the run, each with an open channel to its host; `sink` gets notes for the
    user.
    """

    def __init__(
        self,
        cluster: Cluster,
        names: tuple[str, ...],
        engines: Engines,
        sink: EventSink = _silent,
    ) -> None:
        self._cluster, self._sink = cluster, sink
        self.names, self.engines = names, engines
        self._head = cluster.inventory.head.name
        self._workers = tuple(name for name in names if name != self._head)
        self._drivers = {name: engines(view) for name, view in cluster.views.items()}
        self.node = NodeImage(cluster.inventory.image, self.engines, cluster.head)
        route = self._route()
        self._base = ImageReceiver(
            self._finder().find,
            self._drivers,
            names,
            route,
            before=lambda view: record_installed(view, [cluster.inventory.image], IMAGES),
        )
        made = ImageReceiver(self._find_made, self._drivers, self._workers, route)
        self._transfers = Transfer(self._base, route), Transfer(made, route)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        for transfer in self._transfers:
            self._open.enter_context(transfer)
        return self

    def close(self) -> None:
        self._open.close()

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages in order. Raises what `ImageFinder.find` raises."""
        heads = (self._head,) if self._head in self.names else ()
        base, made = self._transfers
        return (
            *self._pulled(),
            Stage("Image", self.names, (base,)),
            Stage("Node image", heads, (self._with_ray(),)),
            Stage("Node image on workers", self._workers, (made,)),
        )

    def _pulled(self) -> tuple[Stage, ...]:
        """Return the stage that pulls the image on one host, if only a host can get it."""
        origin, reference = self._base.origin(), self._cluster.inventory.image
        if not isinstance(origin, Unknown):
            return ()
        step = ImagePulled(reference, self.engines, origin.reason, marked=True)
        return (Stage("Image from its registry", self.names[:1], (step,)),)

    def _finder(self) -> ImageFinder:
        inventory = self._cluster.inventory
        others = (name for name in self._drivers if name != self._head)
        return ImageFinder(
            inventory.image,
            self._drivers,
            (self._head, *others),
            archive=inventory.image_archive,
            operator=operators_engine(),
            say=lambda text: self._sink(Note(text)),
        )

    def _route(self) -> Route:
        views, topology = self._cluster.views, self._cluster.topology
        return Route(
            {name: view.transport for name, view in views.items()},
            lambda name: topology.node(name).node_ip,
            speed=lambda name: topology.node(name).speed,
            say=lambda host, text: self._sink(Note(text, host)),
        )

    def _find_made(self, stocks: EngineStates) -> Origin | Unknown:
        """Return the head's node image as the origin; Unknown until the head has it."""
        try:
            made = self.node.known()
        except EngineUnavailable as error:
            return Unknown(f"{self._head} gets the image first: {error.summary}")
        tag = node_tag(made) if made else ""
        held = stocks[self._head].tagged(tag) if self._head in stocks else None
        if held is None:
            return Unknown(f"{self._head} gets the image first")
        return host_origin(self._drivers[self._head], stocks[self._head], held, tag)

    def _with_ray(self) -> RayInImage:
        inventory = self._cluster.inventory
        return RayInImage(
            self.node,
            self.engines,
            pip_index=inventory.packages.pip_index,
            allow_unauthenticated=inventory.allow_unauthenticated_ray,
        )
