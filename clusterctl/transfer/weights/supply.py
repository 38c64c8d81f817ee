"""Where a model comes from: files of this machine, a host that has it, or a hub meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from clusterctl.engine.step import HostView
from clusterctl.errors import ClusterctlError
from clusterctl.transfer.content import BlobSource
from clusterctl.transfer.weights.manifest import Manifest


class Trouble(Protocol):
    """Says why what a chain got from its source was not right; nothing when it was."""

    def __call__(self) -> Sequence[ClusterctlError]: ...


def _none() -> Sequence[ClusterctlError]:
    return ()


@dataclass(frozen=True)
class Holder:
    """A host that has the model and heads the chain."""

    view: HostView
    paths: dict[str, str]  # By digest, absolute


@dataclass(frozen=True)
class Supply:
    """A model and where its bytes are."""

    manifest: Manifest
    name: str  # Of the place, for people: `here`, `gpu1`, `hf`
    source: BlobSource | None = None  # What this machine can give
    holder: Holder | None = None
    trouble: Trouble = field(default=_none)
    # The manifest with all hashes, once every byte has come; the same where it is None.
    complete: Callable[[], Manifest] | None = None

    @property
    def final(self) -> Manifest:
        """What is written down on hosts."""
        return self.complete() if self.complete else self.manifest
