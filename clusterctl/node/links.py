"""Which NICs of this node carry nothing now: the cable is out, or it was renamed or taken down.

Ray's connections on another interface stay, so that nothing else would tell.
"""

from __future__ import annotations

from typing import Callable, List, Sequence

from clusterctl.node.documents import BrokenNic, NodeDocument
from clusterctl.node.fabric_nics import Interface, interfaces, places
from clusterctl.node.timing import Timing


class Links:
    """Looks at the NICs that the node's environment chooses, now and then."""

    def __init__(
        self, timing: Timing, look: Callable[[], Sequence[Interface]] = interfaces
    ) -> None:
        self._timing = timing
        self._look = look
        self._due = 0.0
        self.broken: List[BrokenNic] = []

    def tick(self, now: float, document: NodeDocument) -> None:
        """`now` is monotonic."""
        if now < self._due:
            return
        self._due = now + self._timing.nics_every
        try:
            found = self._look()
        except OSError:
            return  # the kernel answers the next time
        self.broken = [
            BrokenNic(place.nic, place.purpose, place.problem)
            for place in places(document.env, document.node_ip, found)
            if place.problem
        ]
