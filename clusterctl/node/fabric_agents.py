"""How the gate speaks with the processes on the nodes, and how long it waits for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Protocol, Sequence


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
