"""The same work on many hosts at once, a thread each; every outcome is kept."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from clusterctl.errors import ClusterctlError, Interrupted

T = TypeVar("T")
R = TypeVar("R")

# Hosts at once. A connect costs about 2 ms of CPU and a host three threads, so that 100 are no
# load; beyond about 500 in one process the threads themselves would be.
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
    """Ctrl-C: `outcomes` has what was finished; the rest was not started."""

    def __init__(self, outcomes: dict[str, Outcome[R]], total: int) -> None:
        super().__init__(f"interrupted after {len(outcomes)} of {total} hosts")
        self.outcomes = outcomes


def fan_out(
    items: Mapping[str, T], work: Callable[[T], R], *, limit: int = LIMIT
) -> dict[str, Outcome[R]]:
    """`work(item)` for every item, at most `limit` at once; outcomes in the order of `items`.

    A ClusterctlError becomes Failed, and is given the item's name as its host when it names
    none. Any other exception is a bug: nothing new is started, and it is raised with the
    host's name as a note. On Ctrl-C nothing new is started, what runs finishes, and
    FanOutInterrupted is raised; a second Ctrl-C leaves at once.
    """
    crew = _Crew(items, work)
    interrupted = _run(crew, min(limit, len(items)))
    if crew.bug is not None:
        raise crew.bug
    outcomes = {name: crew.outcomes[name] for name in items if name in crew.outcomes}
    if interrupted:
        raise FanOutInterrupted(outcomes, len(items))
    return outcomes


def values(outcomes: Mapping[str, Outcome[R]]) -> dict[str, R]:
    """What was returned, by host, without those that failed."""
    return {name: found.value for name, found in outcomes.items() if isinstance(found, Done)}


def failures(outcomes: Mapping[str, Outcome[R]]) -> list[ClusterctlError]:
    """The errors, in the order of the hosts; for `errors.raise_all`."""
    return [found.error for found in outcomes.values() if isinstance(found, Failed)]


class _Crew(Generic[T, R]):
    """Threads that take one item after the other until none is left or all must stop."""

    def __init__(self, items: Mapping[str, T], work: Callable[[T], R]) -> None:
        self._work = work
        self._waiting = deque(items.items())
        self._running = 0
        self._changed = threading.Condition()
        self.outcomes: dict[str, Outcome[R]] = {}
        self.bug: BaseException | None = None

    def labour(self) -> None:
        while taken := self._take():
            self._do(*taken)
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def stop(self) -> None:
        """Start nothing more."""
        with self._changed:
            self._waiting.clear()

    def wait(self) -> None:
        """Until nothing waits and nothing runs."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._running)

    def _take(self) -> tuple[str, T] | None:
        with self._changed:
            if not self._waiting:
                return None
            self._running += 1
            return self._waiting.popleft()

    def _do(self, name: str, item: T) -> None:
        try:
            self.outcomes[name] = Done(self._work(item))
        except ClusterctlError as error:
            error.host = error.host or name
            self.outcomes[name] = Failed(error)
        except BaseException as bug:  # raised again by fan_out
            bug.add_note(f"while working on host {name}")
            self.bug = self.bug or bug
            self.stop()


def _run(crew: _Crew[T, R], threads: int) -> bool:
    """Work it off; True when Ctrl-C came meanwhile. A second KeyboardInterrupt passes.

    Daemon threads, so that a second Ctrl-C need not wait for them to end.
    """
    try:
        for number in range(threads):
            name = f"fan-out-{number}"
            threading.Thread(target=crew.labour, name=name, daemon=True).start()
        crew.wait()
    except KeyboardInterrupt:
        crew.stop()
        crew.wait()
        return True
    return False
