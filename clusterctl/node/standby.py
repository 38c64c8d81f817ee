"""Two engines of a replica on the same GPUs: one serves, its standby sleeps until that one fails.

There is memory for the weights and the cache of one. So at most one is awake or starts: an engine
starts only while the other sleeps or has no process, and after some time without a request. A
request comes first: it ends a start that it would have to wait for.

Ray counts _SHARES of each GPU. Two shares of the first engine do not fit on one GPU, so its ranks
have different ones; the standby starts while the first one has these, and its ranks get the rest.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import List, Optional, Tuple

from clusterctl.node.documents import IN_TURN, ServiceDocument, standby_name
from clusterctl.node.files import Journal
from clusterctl.node.rank_placement import PER_WORKER
from clusterctl.node.service import SupervisedService
from clusterctl.node.sleeping import REFUSE, SLEEP, WAKE
from clusterctl.node.timing import Backoff, Timing
from clusterctl.node.turns import END, START, Turn, next_step

_SHARES = ("0.75", "0.25")


def engines_of(document: ServiceDocument) -> List[ServiceDocument]:
    """Return the document of each engine of a replica: its own, and its standby's if it has one."""
    if not document.standby_port:
        return [document]
    first, second = ({**document.env, PER_WORKER: share} for share in _SHARES)
    standby = replace(
        document,
        name=standby_name(document.name),
        port=document.standby_port,
        argv=_on_port(document.argv, document.standby_port),
        env=second,
    )
    return [replace(document, env=first), standby]


def _on_port(argv: List[str], port: int) -> List[str]:
    """Return the command line with this port in place of its own."""
    words = "\0".join(argv)
    return re.sub(r"(\0--port[\0=])\d+", rf"\g<1>{port}", words).split("\0")


class EnginePair:
    """Has the two engines of a replica take turns."""

    def __init__(self, timing: Timing, journal: Journal) -> None:
        self._timing = timing
        self._journal = journal
        self._backoff = Backoff(timing.quiet_first, timing.quiet_longest)
        self._needed = self._backoff.failed()  # Seconds without a request before one starts
        self._used = 0.0
        self._asked: Optional[float] = None  # Since when requests wait for the standby in vain

    def tick(
        self, now: float, first: SupervisedService, standby: SupervisedService
    ) -> Tuple[Turn, Turn]:
        """Order what is due, and return whose turn it is to start."""
        engines = first.engine(), standby.engine()
        self._used = max(self._used, first.used, standby.used)
        step = next_step(*engines, quiet=now - self._used >= self._needed)
        chosen, other = (standby, first) if step.standby else (first, standby)

        if (engines[0].phase, engines[1].phase) == ("awake", "asleep"):
            self._backoff.succeeded()
            self._needed = self._backoff.failed()
        if step.word == END:
            self._needed = self._backoff.failed()
            chosen.give_way(f"its start ended: {other.name} was asked, or has ended")
        elif step.word in (SLEEP, WAKE):
            if step.word == WAKE and step.standby:
                self._journal.write(standby.name, "takes over", f"{first.name} {first.detail}")
            chosen.order(step.word, now)
        self._refuse(now, standby, due=step.word == REFUSE)

        starts = chosen if step.word == START else None
        serves = "its standby serves" if engines[1].phase == "awake" else ""
        return (
            Turn(self._why_wait(first, starts, serves), beside=not standby.stopped),
            Turn(self._why_wait(standby, starts, ""), beside=True),
        )

    def _refuse(self, now: float, standby: SupervisedService, *, due: bool) -> None:
        """Refuse what the gateway sent to the standby of an engine that works, such as requests
        that fail there. One that fails itself is known to have by then."""
        if not due:
            self._asked = None
        elif self._asked is None:
            self._asked = now
        elif now - self._asked >= self._timing.standby_refuses:
            self._asked = None
            standby.order(REFUSE, now)

    def _why_wait(
        self, service: SupervisedService, starts: Optional[SupervisedService], serves: str
    ) -> str:
        if service is starts:
            return ""
        until = f"it starts after {self._needed:g} s without requests"
        return f"{IN_TURN}: {'; '.join(filter(None, (serves, until)))}"
