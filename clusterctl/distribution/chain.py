"""A chain of relays: every byte leaves its source once, however many hosts want it.

On each host a relay, sent over the SSH session and gone with it, is a registry for the host's
own engine and a cache for the next host, which gets bytes as they arrive. The first hop goes
through the SSH connection, the others go from host to host. A relay takes what it needs from
the host before it, from those further up when that one fails, and from the source as the last
resort; so a host that is lost costs the others a moment.

    with Chain(links, blobs, source=source, image=image, report=show) as chain:
        docker pull chain.pull_reference("gpu1")      # on gpu1, and on all others at once
        chain.fetch("gpu2", digests, timeout=3600)    # where no engine asks for them
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Self

from clusterctl.distribution.chain_link import Link, Progress
from clusterctl.distribution.content import Blob, BlobSource, ImageContent
from clusterctl.errors import ClusterctlError

STALL = 15.0
"""Seconds without a byte from one upstream, in any stream, after which the next one is asked.
Under a saturated uplink 3 s was too nervous and sent bytes twice."""


class Chain:
    """Relays on the hosts of `links`, in this order, while entered.

    `blobs` are what they may be asked for; those of `image` are added. `limit_rate` in bytes a
    second bounds what the source sends in all. `report` is called about once a second for each
    host, from threads of the chain; `say` gets a sentence (host, text) for what a user should
    know: an upstream that sent wrong bytes, a relay that was started again, a host that was lost.
    """

    def __init__(
        self,
        links: Sequence[Link],
        blobs: Sequence[Blob] = (),
        *,
        source: BlobSource | None = None,
        image: ImageContent | None = None,
        limit_rate: int | None = None,
        stall: float = STALL,
        report: Callable[[Progress], None] = lambda _: None,
        say: Callable[[str, str], None] = lambda _host, _text: None,
    ) -> None: ...

    def __enter__(self) -> Self:
        """Start all relays at once. A host where none starts is lost from the beginning
        (`lost` has why); raises the errors of all hosts when none starts at all."""
        raise NotImplementedError

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends the relays. After an error their caches stay, so that a second run resumes."""
        self.close(keep=exc is not None)

    def close(self, *, keep: bool = False) -> None:
        """End the relays; remove what is in their caches of these blobs, unless `keep`."""

    def pull_reference(self, host: str) -> str:
        """What the engine on `host` can pull the image as: 127.0.0.1:PORT/RANDOM/name:tag.

        To be tagged with the real name and untagged afterwards. Raises the error of a lost host.
        """
        raise NotImplementedError

    def fetch(self, host: str, digests: Collection[str], timeout: float) -> dict[str, str]:
        """Have these blobs complete and verified on `host`'s disk; their paths by digest.

        Raises StepFailed (no space, no permission there), CommandTimedOut with what it waits
        for after `timeout` seconds, and the error of a host that is lost meanwhile.
        """
        raise NotImplementedError

    def progress(self) -> dict[str, Progress]:
        """By host, lost ones included."""
        raise NotImplementedError

    @property
    def lost(self) -> Mapping[str, ClusterctlError]:
        """Hosts that the chain goes on without, and why."""
        raise NotImplementedError

    @property
    def sent(self) -> int:
        """Bytes that the source has sent so far, to all hosts together."""
        raise NotImplementedError
