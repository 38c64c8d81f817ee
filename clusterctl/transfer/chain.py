"""A chain of relays: every byte leaves its source once, however many hosts want it.

Each host runs a relay, which is sent over the SSH session and ends with it: a registry for the
host's own engine, and a cache for the next host, which receives bytes as they arrive. The first
hop goes through the SSH connection, the others go from host to host. A relay fetches from the host
before it, from hosts further up if that one fails, and from the source as the last resort; so
losing a host delays the others only briefly.

    chain = Chain(links, blobs, source=source, image=image, report=show)
    chain.start()
    docker pull chain.pull_reference("gpu1")      # on gpu1, and on all others at once
    chain.fetch("gpu2", digests, timeout=3600)    # for blobs that no engine pulls
    chain.close()
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from clusterctl.errors import ClusterctlError, CommandTimedOut, StepFailed, raise_all
from clusterctl.transfer.chain_link import Link, LinkProgress
from clusterctl.transfer.content import Blob, BlobSource, ImageContent
from clusterctl.transfer.relay import wire
from clusterctl.transfer.relay.upstream import HUB, SOURCE
from clusterctl.transfer.relay_supervisor import BACKOFF, RelaySupervisor
from clusterctl.transfer.source_multiplexer import SharedSource, Throttle
from clusterctl.transport.fanout import fan_out

# Seconds without a byte from an upstream, in any stream, after which the next one is tried.
# With 3 s, bytes are sent twice over a saturated uplink.
STALL = 15.0

# Which of the hosts before it a relay may fetch from, in this order: the list must be short where
# there are hundreds of hosts, and not end with a rack that has failed.
DISTANCES = (1, 2, 3, 4, 6, 10, 18, 34, 66, 130, 258)

REPORT_EVERY = 1.0  # Seconds

T = TypeVar("T")


class Chain:
    """Relays on the hosts of `links`, in this order, running from `start` to `close`.

    Hosts may request `blobs` and the blobs of `image`. `limit_rate` bounds the bytes per second
    that the source sends in all; blobs with the digests `packed` are compressed on their way to the
    first host. `report` is called about once a second for each host, from threads of the chain;
    `say` gets (host, sentence) for events that a user should know about: an upstream sent wrong
    bytes, a relay was restarted, a host was lost.
    """

    def __init__(
        self,
        links: Sequence[Link],
        blobs: Sequence[Blob] = (),
        *,
        source: BlobSource | None = None,
        image: ImageContent | None = None,
        limit_rate: int | None = None,
        packed: Collection[str] = (),
        stall: float = STALL,
        backoff: Sequence[float] = BACKOFF,
        report: Callable[[LinkProgress], None] = lambda _: None,
        say: Callable[[str, str], None] = lambda _host, _text: None,
    ) -> None:
        self._blobs = {blob.digest: blob for blob in (*blobs, *(image.blobs if image else ()))}
        self._source = SharedSource(source, self._blobs, Throttle(limit_rate), packed=packed)
        self._has_source = source is not None
        self._changed = threading.Condition()
        self._ordering = threading.Lock()
        self._report, self._say = report, say
        self._started, self._ended = threading.Event(), threading.Event()
        name, offer = _offered(image) if image else ("", None)
        self._pull_name = name
        token = secrets.token_hex(32)
        self._supervisors = {
            link.host: RelaySupervisor(
                link,
                self._blobs,
                self._source,
                token=token,
                stall=stall,
                backoff=backoff,
                image=offer,
                say=say,
                moved=self._set_upstreams,
                changed=self._changed,
            )
            for link in links
        }

    def start(self) -> None:
        """Start all relays at once. A host whose relay does not start is lost (its error is in
        `lost`). If none starts, raises the errors of all hosts."""
        supervisors = self._supervisors.values()
        for supervisor in supervisors:
            supervisor.start()
        try:
            with self._changed:
                self._changed.wait_for(lambda: all(each.is_decided for each in supervisors))
        except BaseException:
            self.close(keep=True)
            raise
        if supervisors and len(self.lost) == len(supervisors):
            raise_all(self.lost.values())
        self._started.set()
        self._set_upstreams()
        threading.Thread(target=self._run_reports, name="chain-report", daemon=True).start()

    def close(self, *, keep: bool = False, done: Collection[str] = ()) -> None:
        """Stop the relays and remove these blobs from their caches; with `keep`, only on the hosts
        in `done`, which will not need them again: on the others, the next run resumes."""
        self._ended.set()
        with self._changed:
            self._changed.notify_all()
        fan_out(
            self._supervisors,
            lambda each: each.close(clean=not keep or each.link.host in done),
        )

    def pull_reference(self, host: str) -> str:
        """Return the name under which the engine on `host` pulls: 127.0.0.1:PORT/RANDOM/name:tag.

        The caller tags the pulled image with its real name and removes this one. A restarted relay
        keeps its port unless another process took it. Raises the error of a lost host.
        """
        supervisor = self._supervisors[host]
        if supervisor.lost is not None:
            raise supervisor.lost
        if not self._pull_name:
            raise AssertionError("the chain has no image to pull")
        return f"127.0.0.1:{supervisor.ports.engine}/{self._pull_name}"

    def fetch(self, host: str, digests: Collection[str], timeout: float) -> dict[str, str]:
        """Wait until these blobs, fetched in this order, are complete and verified on `host`'s
        disk; return {digest: path}.

        Raises StepFailed (no space or permission there; a source that fails again and again),
        CommandTimedOut after `timeout` seconds, with what the host waits for, and the error of a
        host that is lost meanwhile.
        """
        supervisor, wanted = self._supervisors[host], set(digests)
        supervisor.want(digests)

        def is_over() -> bool:
            arrived = supervisor.paths.keys() >= wanted
            return arrived or self._ended.is_set() or self.problem(host) is not None

        with self._changed:
            self._changed.wait_for(is_over, timeout)
        if not supervisor.paths.keys() >= wanted:
            if problem := self.problem(host):
                raise problem
            if self._ended.is_set():
                raise StepFailed("the transfer was cancelled", host=host)
            raise CommandTimedOut(
                f"its files did not arrive within {timeout:g} s",
                host=host,
                hint="run the same command again: it resumes where it stopped",
                detail=supervisor.progress().waiting,
            )
        return {digest: supervisor.paths[digest] for digest in digests}

    def relocate(self, host: str, paths: Mapping[str, str]) -> None:
        """Record that blobs on `host` were moved to `paths` (digest to path). The running relay
        keeps its open files; a restarted one uses the new paths."""
        self._supervisors[host].relocate(paths)

    def problem(self, host: str) -> ClusterctlError | None:
        """Return the error that stops the transfer to `host`; None if there is none."""
        heads = (each for each in self._supervisors.values() if each.link.web)
        for supervisor in (self._supervisors[host], *heads):
            if error := supervisor.problem:
                return error
        return self._source.problem

    def progress(self) -> dict[str, LinkProgress]:
        """Return the progress of every host, lost ones included."""
        return {host: each.progress() for host, each in self._supervisors.items()}

    @property
    def lost(self) -> dict[str, ClusterctlError]:
        """The error of each host that the chain continues without."""
        found = {host: each.lost for host, each in self._supervisors.items()}
        return {host: error for host, error in found.items() if error is not None}

    @property
    def sent(self) -> int:
        """Bytes that the source has sent so far, to all hosts together."""
        return self._source.sent

    def _set_upstreams(self) -> None:
        """Send every relay its upstreams, once all have started, and again after a relay moved or
        was lost."""
        if not self._started.is_set():
            return
        with self._ordering:
            before: list[tuple[str, ...]] = []
            for supervisor in self._supervisors.values():
                last = [HUB] if supervisor.link.web else []
                last += [SOURCE] if self._has_source else []
                supervisor.set_upstreams((*itertools.chain(*nearest(before)), *last))
                if upstream := supervisor.as_upstream:
                    before.append(upstream)

    def _run_reports(self) -> None:
        while not self._ended.wait(REPORT_EVERY):
            with self._changed:  # wakes `fetch`: a failing source does not notify it
                self._changed.notify_all()
            for each in self.progress().values():
                self._report(each)


def nearest(before: Sequence[T]) -> list[T]:
    """Return the preceding hosts that a relay may fetch from, the preferred one first."""
    return [before[-steps] for steps in DISTANCES if steps <= len(before)]


def _offered(image: ImageContent) -> tuple[str, str]:
    """Return the name (REPOSITORY:TAG) under which relays serve the image, and the command that
    announces it to them. A random part keeps other users of a host from pulling it."""
    path, _, _ = image.reference.partition("@")
    name, _, tag = path.rpartition("/")[2].partition(":")
    repository, tag = f"{secrets.token_hex(16)}/{name}", tag or "latest"
    manifest = image.manifest.decode("utf-8", "surrogateescape")
    offer = wire.fields("image", repository, tag, image.media_type, manifest)
    return f"{repository}:{tag}", offer
