"""The kinds of failures, by what an exception says wherever it was raised: `kinds.yaml` as typed
data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

import yaml


@dataclass(frozen=True)
class FailureKind:
    """A kind of failure; the fields are explained in kinds.yaml."""

    id: str
    cause: str
    fix: str
    words: tuple[str, ...]
    level: str = "raised"
    reads: bool = False

    @property
    def of_values(self) -> bool:
        """Whether it is about what was asked for, so that a setting with that value is meant."""
        return self.id in {"name-unknown", "unsupported", "kernel-missing"}

    @cached_property
    def said_in(self) -> re.Pattern[str]:
        """What a failure of this kind says, in small letters."""
        return re.compile("|".join(self.words))


def kind_of(said: str) -> FailureKind | None:
    """Return the kind of failure that an exception with its message, or a line, tells of."""
    small = said.lower()
    return next((kind for kind in kinds() if kind.said_in.search(small)), None)


@cache
def kinds() -> tuple[FailureKind, ...]:
    """Return all kinds in the order in which a failure is compared with them."""
    text = files("clusterctl.diagnosis").joinpath("kinds.yaml").read_text(encoding="utf-8")
    return tuple(
        FailureKind(**{**entry, "words": tuple(entry["words"])}) for entry in yaml.safe_load(text)
    )
