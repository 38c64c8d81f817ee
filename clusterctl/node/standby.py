"""Two engines of a replica on the same GPUs: one serves, its standby sleeps until that one fails.

There is memory for the weights and the cache of one. So at most one is awake or starts: an engine
starts only while the other sleeps or has no process, and after some time without a request. A
request comes first: it ends a start that it would have to wait for.

Ray counts SHARES of each GPU. Two shares of the first engine do not fit on one GPU, so its ranks
have different ones; the standby starts while the first one has these, and its ranks get the rest.

Two services that swap are two such engines, each with its own document, port and requests: that one
is awake that has requests. Those of the other wait at its API server. Once the one that is awake
works on nothing, it is put to sleep for them. If it has no such pause, it keeps the GPUs for a
while, and then lets no new request in: those that run end, and it is the other one's turn.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Iterable, List, Optional, Tuple

from clusterctl.node.documents import IN_TURN, ServiceDocument, standby_name
from clusterctl.node.files import Journal
from clusterctl.node.rank_placement import PER_WORKER, SHARES
from clusterctl.node.service import SupervisedService
from clusterctl.node.sleeping import HOLD, REFUSE, SLEEP, WAKE
from clusterctl.node.timing import Backoff, Timing
from clusterctl.node.turns import END, START, Engine, Turn, next_step, next_swap


def engines_of(document: ServiceDocument) -> List[ServiceDocument]:
    """Return the document of each engine of a replica: its own, and its standby's if it has one."""
    if not document.standby_port:
        return [document]
    first, second = ({**document.env, PER_WORKER: share} for share in SHARES)
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


def first_of(
    second: ServiceDocument, services: Iterable[SupervisedService]
) -> Optional[SupervisedService]:
    """Return the engine whose GPUs this one is to have, too; None if there is none."""
    for each in services:
        swaps = each.document.swap and each.document.service == second.swap_with
        if swaps or (second.is_standby and standby_name(each.name) == second.name):
            return each
    return None


class EnginePair:
    """Has two engines take turns: that of a replica and its standby's, or those that swap."""

    def __init__(self, timing: Timing, journal: Journal) -> None:
        self._timing = timing
        self._journal = journal
        self._backoff = Backoff(timing.quiet_first, timing.quiet_longest)
        self._needed = self._backoff.failed()  # Seconds without a request before one starts
        self._used = [0.0, 0.0]  # When each last had a request
        self._since: List[Optional[float]] = [None, None]  # When each became awake, if it is
        self._last = 1  # Which one did so last
        self._asked: Optional[float] = None  # Since when requests wait for the standby in vain

    def tick(
        self, now: float, first: SupervisedService, second: SupervisedService
    ) -> Tuple[Turn, Turn]:
        """Order what is due, and return whose turn it is to start."""
        both = first, second
        engines = [self._engine(number, each, now) for number, each in enumerate(both)]
        if second.document.swap_with:
            step = next_swap(*engines, second_next=self._last == 0)
        else:
            step = next_step(*engines, quiet=all(each.quiet for each in engines))
        chosen, other = (second, first) if step.second else (first, second)

        if {each.phase for each in engines} == {"awake", "asleep"}:
            self._backoff.succeeded()
            self._needed = self._backoff.failed()
        if step.word == END:
            self._needed = self._backoff.failed()
            chosen.give_way(f"its start ended: {other.name} was asked, or has ended")
        elif step.word in (SLEEP, WAKE, HOLD):
            if step.word == WAKE and chosen.is_standby:
                self._journal.write(chosen.name, "takes over", f"{first.name} {first.detail}")
            chosen.order(step.word, now)
        self._refuse(now, second, due=step.word == REFUSE)

        whys = [f"{IN_TURN}: {self._until(*pair)}" for pair in (both, both[::-1])]
        if step.word == START:
            whys[step.second] = ""
        return (
            Turn(whys[0], beside=not second.stopped, paired=True),
            Turn(whys[1], beside=True, paired=True),
        )

    def _engine(self, number: int, service: SupervisedService, now: float) -> Engine:
        engine, since = service.engine(), self._since[number]
        if engine.phase == "awake" and since is None:
            since, self._last = now, number
        elif engine.phase not in ("awake", "moving"):
            since = None
        self._since[number] = since
        self._used[number] = max(self._used[number], service.used)
        quiet = now - self._used[number] >= self._needed
        kept = since is not None and now - since < self._timing.swap_least
        return replace(engine, quiet=quiet, kept=kept)

    def _until(self, service: SupervisedService, other: SupervisedService) -> str:
        """Return what a service waits for that has no process."""
        if service.document.swap_with and other.stopped:
            return f"{other.name}, with which it swaps, starts first"
        serves = "its standby serves; " if other.is_standby and other.is_awake else ""
        whose = f" for {other.name}" if not (service.is_standby or other.is_standby) else ""
        return f"{serves}it starts after {self._needed:g} s without requests{whose}"

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
