"""Run the same work on many hosts at once, one thread each, and collect every outcome."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from clusterctl.errors import ClusterctlError, Interrupted

T = TypeVar("T")
R = TypeVar("R")

# Hosts at once. A connect costs about 2 ms of CPU and a host three threads, so 100 are a small
# load; beyond about 500 in one process the threads themselves would be a large one.
LIMIT = 100


@dataclass(frozen=True)
class Done(Generic[R]):
    """The work returned `value`."""

    value: R


@dataclass(frozen=True)
class Failed:
    """The work raised `error`, which names its host."""

    error: ClusterctlError


Outcome: TypeAlias = Done[R] | Failed


class FanOutInterrupted(Interrupted, Generic[R]):
    """Ctrl-C: `outcomes` holds the finished items; the others were not started."""

    def __init__(self, outcomes: dict[str, Outcome[R]], total: int) -> None:
        super().__init__(f"interrupted after {len(outcomes)} of {total} hosts")
        self.outcomes = outcomes


def fan_out(
    items: Mapping[str, T], work: Callable[[T], R], *, limit: int = LIMIT
) -> dict[str, Outcome[R]]:
    """Run `work(item)` for every item, at most `limit` at once; outcomes in the order of `items`.

    A ClusterctlError becomes Failed, with the item's name as its host if it has none. Any other
    exception is a bug: no more items are started, and it is raised with the host's name as a note.
    On Ctrl-C no more items are started, running ones finish, and FanOutInterrupted is raised; a
    second Ctrl-C returns at once.
    """
    crew = _Crew(items, work)
    interrupted = False
    try:
        for number in range(min(limit, len(items))):
            # A daemon, so that a second Ctrl-C need not wait for it to end.
            name = f"fan-out-{number}"
            threading.Thread(target=crew.labour, name=name, daemon=True).start()
        crew.wait()
    except KeyboardInterrupt:
        interrupted = True
        crew.stop()
        crew.wait()
    if crew.bug is not None:
        raise crew.bug
    outcomes = {name: crew.outcomes[name] for name in items if name in crew.outcomes}
    if interrupted:
        raise FanOutInterrupted(outcomes, len(items))
    return outcomes


def values(outcomes: Mapping[str, Outcome[R]]) -> dict[str, R]:
    """Return the values by host, without the hosts that failed."""
    return {name: found.value for name, found in outcomes.items() if isinstance(found, Done)}


def failures(outcomes: Mapping[str, Outcome[R]]) -> list[ClusterctlError]:
    """Return the errors, in the order of the hosts; for `errors.raise_all`."""
    return [found.error for found in outcomes.values() if isinstance(found, Failed)]


class _Crew(Generic[T, R]):
    """Threads that process items one by one until none is left or `stop` is called."""

    def __init__(self, items: Mapping[str, T], work: Callable[[T], R]) -> None:
        self._work = work
        self._waiting = deque(items.items())
        self._running = 0
        self._changed = threading.Condition()
        self.outcomes: dict[str, Outcome[R]] = {}
        self.bug: BaseException | None = None

    def labour(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    return
                self._running += 1
                name, item = self._waiting.popleft()
            try:
                self.outcomes[name] = Done(self._work(item))
            except ClusterctlError as error:
                error.host = error.host or name
                self.outcomes[name] = Failed(error)
            except BaseException as bug:  # raised again by fan_out
                bug.add_note(f"while working on host {name}")
                self.bug = self.bug or bug
                self.stop()
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def stop(self) -> None:
        """Start no more items."""
        with self._changed:
            self._waiting.clear()

    def wait(self) -> None:
        """Wait until no item is waiting or running."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._running)
