"""A chain in memory: what hosts pull from it is there at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterctl.errors import ClusterctlError
from clusterctl.transfer.chain_link import Link, LinkProgress
from clusterctl.transfer.content import Blob, BlobSource, ImageContent
from tests.fakes.container_engine import FakeEngine
from tests.fakes.loaded_image import image_of

RELAY = f"127.0.0.1:4711/{'ab' * 16}"


@dataclass
class FakeChains:
    """Makes chains over `engines`, and remembers what each was asked."""

    engines: Mapping[str, FakeEngine]
    links: list[tuple[str, ...]] = field(default_factory=list)
    """Hosts of each chain, in order."""
    fetched: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    kept: list[bool] = field(default_factory=list)
    """Whether each chain's caches stayed at its end."""
    problem: ClusterctlError | None = None
    broken: bool = False
    """Engines find nothing at their relays."""

    def __call__(
        self, links: Sequence[Link], blobs: Sequence[Blob] = (), **options: Any
    ) -> FakeChain:
        self.links.append(tuple(link.host for link in links))
        return FakeChain(self, options["image"], options["source"], options["report"])


class FakeChain:
    """One chain: every engine finds the image under the relay's name."""

    def __init__(
        self,
        chains: FakeChains,
        image: ImageContent,
        source: BlobSource | None,
        report: Callable[[LinkProgress], None],
    ) -> None:
        self._chains, self._image, self._source, self._report = chains, image, source, report
        self.sent = 0

    def start(self) -> None:
        if self._source and not self._chains.broken:
            config = b"".join(self._source.open(self._image.config))
            name = self.pull_reference("")
            offered = image_of(config, self._image.config.digest, name)
            for engine in self._chains.engines.values():
                engine.registry[name] = offered

    def pull_reference(self, host: str) -> str:
        return f"{RELAY}/image:1"

    def fetch(self, host: str, digests: Collection[str], timeout: float) -> dict[str, str]:
        self._chains.fetched.append((host, tuple(digests)))
        self._report(LinkProgress(host, 1, 1, 1, 1.0, ("source",)))
        return {digest: f"/cache/{digest}" for digest in digests}

    def problem(self, host: str) -> ClusterctlError | None:
        return self._chains.problem

    def progress(self) -> dict[str, LinkProgress]:
        return {name: LinkProgress(name, 0, 0, 0, 0.0) for name in self._chains.engines}

    def close(self, *, keep: bool = False, done: Collection[str] = ()) -> None:
        self._chains.kept.append(keep)
