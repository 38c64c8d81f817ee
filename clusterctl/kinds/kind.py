"""What a kind of model is: its paths, what is asked of it, and what counts as an answer.

Each kind is one module beside this one and one entry of `known.KINDS`. The supervisor in the node
container imports them: standard library of Python 3.9.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATED_TOKENS = "vllm:generation_tokens_total"

_BOUNDARY = "clusterctl-7d41c6a0"  # In none of the sounds that we make


@dataclass(frozen=True)
class Ask:
    """A request to a model."""

    path: str
    body: Mapping[str, Any]  # Without its `model`
    sound: bytes = b""  # Makes the request a form with this file

    def encoded(self, model: str) -> Tuple[str, bytes]:
        """Return the content type and the body, addressed to `model`."""
        fields: Dict[str, Any] = {"model": model, **self.body}
        if not self.sound:
            return "application/json", json.dumps(fields).encode()
        parts = [(f'name="{name}"', str(value).encode()) for name, value in fields.items()]
        parts.append(('name="file"; filename="sound.wav"', self.sound))
        form = b"".join(
            f"--{_BOUNDARY}\r\nContent-Disposition: form-data; {name}\r\n\r\n".encode()
            + content
            + b"\r\n"
            for name, content in parts
        )
        return f"multipart/form-data; boundary={_BOUNDARY}", form + f"--{_BOUNDARY}--\r\n".encode()


@dataclass(frozen=True)
class Bench:
    """How `vllm bench serve` measures a kind; with `ask`, `node.kind_bench`, since vLLM makes
    neither sounds nor pages."""

    backend: str = ""
    endpoint: str = ""
    dataset: str = "random"
    # A request that has not been sent before, from its number and the most tokens to generate
    ask: Optional[Callable[[int, int], Ask]] = None
    units: int = 1  # Of the kind's unit, in each of those requests
    sent: str = ""  # What is in each, for users


@dataclass(frozen=True)
class ModelKind:
    """A kind of model."""

    name: str  # As catalogue, documents and states have it: `embed`
    result: str  # Plural noun for its answers: `embeddings`
    # That the gateway admits for it, with those below them; the first is shown to users.
    paths: Tuple[str, ...]
    # A small request, from a text and the most tokens to generate: the canary's, and to paste
    ask: Callable[[str, int], Ask]
    # Returns a summary of an answer, or the text that was generated. If the content is not an
    # answer, raises LookupError, TypeError, AttributeError or ValueError.
    read: Callable[[Any], str]
    # What `serve` and the supervisor ask first: its answer, as `judge` reads it, shows whether the
    # model tells meanings apart. None: the small request proves it.
    proof: Optional[Callable[[], Ask]] = None
    judge: Optional[Callable[[Any], str]] = None
    generates: bool = False
    unit: str = "texts"  # What `bench` counts
    per: str = "s"  # Or "min"
    bench: Optional[Bench] = None  # None: vLLM does not serve it
    # A path that vLLM has for each such model, where others share the path of its proof
    mark: str = ""
    architectures: Tuple[str, ...] = ()  # Patterns of config.json's names that only this kind has
    refused: str = ""  # Why vLLM does not serve it

    @property
    def counter(self) -> str:
        """The metric that grows while it works."""
        return GENERATED_TOKENS if self.generates else PROMPT_TOKENS

    @property
    def offers(self) -> str:
        """What a client is told that asked for something else."""
        return f"{self.result}: POST {', '.join(self.paths)}"

    def has(self, architecture: str) -> bool:
        return any(fnmatchcase(architecture, pattern) for pattern in self.architectures)

    def first(self, text: str, tokens: int) -> Tuple[Ask, Callable[[Any], str]]:
        """Return what proves it, and how its answer is read."""
        if self.proof and self.judge:
            return self.proof(), self.judge
        return self.ask(text, tokens), self.read

    def answer(self, content: Any, read: Optional[Callable[[Any], str]] = None) -> str:
        """Return `read` of the content. Raises ValueError if it is not a valid answer."""
        try:
            return (read or self.read)(content)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"no {self.result} in {str(content)[:200]} ({error!r})") from error


def numbers(vector: Any) -> List[float]:
    """Return a vector of finite numbers. Raises ValueError for anything else."""
    if not vector or not all(
        isinstance(number, (int, float)) and math.isfinite(number) for number in vector
    ):
        raise ValueError("not a vector of numbers")
    return list(vector)


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Raises ValueError for a vector of zeros."""
    lengths = math.hypot(*one) * math.hypot(*other)
    if len(one) != len(other) or not lengths:
        raise ValueError("vectors of zeros, or of different lengths")
    return sum(x * y for x, y in zip(one, other)) / lengths


def compared(what: str, good: float, bad: float) -> str:
    """Return a judgement in words: whether `good` is more than `bad`, as meaning would have it."""
    if good > bad:
        return f"{what} ({good:.2f} against {bad:.2f})"
    return (
        f"NOT: {what} ({good:.2f} against {bad:.2f}; random weights, or another use of the model)"
    )


# A text, one that says the same in other words, and one about something else
QUERY = "How many moons does the planet Mars have?"
PASSAGE = "Two small moons, Phobos and Deimos, orbit the planet Mars."
UNRELATED = "Knead the dough for ten minutes and let it rise in a warm place."
