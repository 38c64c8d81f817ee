"""How the gate speaks with the processes on the nodes, and how long it waits for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Protocol, Sequence


@dataclass(frozen=True)
class Limits:
    """Seconds for each step. Tests shorten them."""

    arrive: float = 20.0
    """Ray's own start of a worker process takes 2 to 6 on two busy cores."""
    answer: float = 10.0
    """For an agent to answer at all (a crossing takes 3 at most), and for the 4 MiB whose sums are
    compared: an MTU black hole lets ranks join, and then nothing arrives."""
    importing: float = 120.0
    """torch with CUDA is gigabytes, read from a cold disk the first time."""
    join: float = 15.0
    measure: float = 25.0
    pairs: float = 45.0
    poll: float = 0.1


@dataclass(frozen=True)
class Answer:
    """What an agent returned, or why it did not."""

    value: Any = None
    error: str = ""


class Agents(Protocol):
    """The processes on the nodes, an `Agent` each."""

    def ask(
        self, method: str, arguments: Mapping[str, Sequence[Any]], within: float
    ) -> Dict[str, Answer]:
        """Call `method` on each host of `arguments` at the same time; the answer of each, in
        `within` seconds."""
