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

import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from clusterctl.errors import ClusterctlError, CommandTimedOut, StepFailed, UsageError, raise_all
from clusterctl.transfer.chain_feed import Feed, Throttle
from clusterctl.transfer.chain_keeper import BACKOFF, Keeper
from clusterctl.transfer.chain_link import Link, Progress
from clusterctl.transfer.content import Blob, BlobSource, ImageContent
from clusterctl.transfer.relay import frames
from clusterctl.transfer.relay.upstream import SOURCE
from clusterctl.transport.fanout import fan_out

# Seconds without a byte from one upstream, in any stream, after which the next one is asked. 3 s
# are too few: over a saturated uplink bytes are sent twice then.
STALL = 15.0

REPORT_EVERY = 1.0


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
        backoff: Sequence[float] = BACKOFF,
        report: Callable[[Progress], None] = lambda _: None,
        say: Callable[[str, str], None] = lambda _host, _text: None,
    ) -> None:
        offered = (*blobs, *(image.blobs if image else ()))
        self._blobs = {blob.digest: blob for blob in offered}
        self._feed = Feed(source, self._blobs, Throttle(limit_rate))
        self._has_source = source is not None
        self._changed = threading.Condition()
        self._arranging = threading.Lock()
        self._report, self._say = report, say
        self._ended = threading.Event()
        self._name = _Name.of(image) if image else None
        token = secrets.token_hex(32)
        self._keepers = {
            link.host: Keeper(
                link,
                self._blobs,
                self._feed,
                token=token,
                stall=stall,
                backoff=backoff,
                image=self._name.offer(image) if self._name and image else None,
                say=say,
                moved=self._arrange,
                changed=self._changed,
            )
            for link in links
        }

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Start all relays at once. A host where none starts is lost from the beginning
        (`lost` has why); raises the errors of all hosts when none starts at all."""
        for keeper in self._keepers.values():
            keeper.start()
        try:
            with self._changed:
                self._changed.wait_for(lambda: all(k.is_settled for k in self._keepers.values()))
        except BaseException:
            self.close(keep=True)
            raise
        if self._keepers and len(self.lost) == len(self._keepers):
            raise_all(self.lost.values())
        self._arrange()
        threading.Thread(target=self._tell, name="chain-report", daemon=True).start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends the relays. After an error their caches stay, so that a second run resumes."""
        self.close(keep=exc is not None)

    def close(self, *, keep: bool = False, done: Collection[str] = ()) -> None:
        """End the relays; remove what is in their caches of these blobs. With `keep` only on
        the hosts of `done`, which will not come back for more."""
        self._ended.set()
        with self._changed:
            self._changed.notify_all()
        fan_out(
            self._keepers,
            lambda keeper: keeper.close(clean=not keep or keeper.link.host in done),
        )

    def pull_reference(self, host: str) -> str:
        """What the engine on `host` can pull the image as: 127.0.0.1:PORT/RANDOM/name:tag.

        To be tagged with the real name and untagged afterwards. A relay that is started again
        has the same port, unless somebody took it meanwhile. Raises the error of a lost host.
        """
        keeper = self._keepers[host]
        if keeper.lost is not None:
            raise keeper.lost
        if self._name is None:
            raise UsageError("the chain carries no image")
        return f"127.0.0.1:{keeper.ports.engine}/{self._name.repository}:{self._name.tag}"

    def fetch(self, host: str, digests: Collection[str], timeout: float) -> dict[str, str]:
        """Have these blobs complete and verified on `host`'s disk, in this order; their paths
        by digest.

        Raises StepFailed (no space, no permission there; a source that fails again and again),
        CommandTimedOut with what it waits for after `timeout` seconds, and the error of a host
        that is lost meanwhile.
        """
        keeper = self._keepers[host]
        keeper.want(digests)
        with self._changed:
            self._changed.wait_for(lambda: self._is_settled(keeper, digests), timeout)
        self._raise_failure(keeper, digests)
        if not keeper.paths.keys() >= set(digests):
            raise CommandTimedOut(
                f"its files did not arrive within {timeout:g} s",
                host=host,
                hint="run the same command again: it goes on where it stopped",
                detail=keeper.progress().waiting,
            )
        return {digest: keeper.paths[digest] for digest in digests}

    def relocate(self, host: str, paths: Mapping[str, str]) -> None:
        """What came to `host` is at `paths` now, by digest. Its relay goes on with what it has
        open; one that is started again there finds the files."""
        self._keepers[host].relocate(paths)

    def problem(self, host: str) -> ClusterctlError | None:
        """Why nothing more arrives on `host`, when that is known; for who waits for its engine."""
        keeper = self._keepers[host]
        if keeper.lost is not None:
            return keeper.lost
        for refusal in keeper.refused.values():
            return StepFailed(
                f"its disk does not take what arrives: {refusal}",
                host=host,
                hint=f"clusterctl exec --limit {host} -- df -h",
            )
        return self._feed.problem

    def progress(self) -> dict[str, Progress]:
        """By host, lost ones included."""
        return {host: keeper.progress() for host, keeper in self._keepers.items()}

    @property
    def lost(self) -> dict[str, ClusterctlError]:
        """Hosts that the chain goes on without, and why."""
        return {host: each.lost for host, each in self._keepers.items() if each.lost is not None}

    @property
    def sent(self) -> int:
        """Bytes that the source has sent so far, to all hosts together."""
        return self._feed.sent

    def _arrange(self) -> None:
        """Tell every relay who is before it; called again whenever one moved or was lost."""
        with self._arranging:
            before: list[str] = []
            for keeper in self._keepers.values():
                last = (SOURCE,) if self._has_source else ()
                keeper.set_upstreams((*before, *last))
                before = [*keeper.as_upstream, *before]

    def _is_settled(self, keeper: Keeper, digests: Collection[str]) -> bool:
        if self._ended.is_set() or keeper.paths.keys() >= set(digests):
            return True
        return self.problem(keeper.link.host) is not None

    def _raise_failure(self, keeper: Keeper, digests: Collection[str]) -> None:
        if keeper.paths.keys() >= set(digests):
            return
        problem = self.problem(keeper.link.host)
        if problem is not None:
            raise problem
        if self._ended.is_set():
            raise StepFailed("the transfer was broken off", host=keeper.link.host)

    def _tell(self) -> None:
        while not self._ended.wait(REPORT_EVERY):
            with self._changed:  # a source that fails tells nobody else
                self._changed.notify_all()
            for progress in self.progress().values():
                self._report(progress)


class _Name(NamedTuple):
    """What the relays call the image. The random word keeps it from other users of a host."""

    repository: str
    tag: str

    @classmethod
    def of(cls, image: ImageContent) -> _Name:
        path, _, _ = image.reference.partition("@")
        name, _, tag = path.rpartition("/")[2].partition(":")
        return cls(f"{secrets.token_hex(16)}/{name}", tag or "latest")

    def offer(self, image: ImageContent) -> str:
        """The command that tells a relay."""
        manifest = image.manifest.decode("utf-8", "surrogateescape")
        return frames.fields("image", self.repository, self.tag, image.media_type, manifest)
