"""Compare the model files of hosts by hash, so that ranks on several hosts load the same bytes.

Files that are small or have a known hash are compared before the service starts. Those that would
take minutes to hash are reported as unproven, and hashed on the hosts once the service is up:
`status` and the next `serve` compare them then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clusterctl.containers.meter import gib
from clusterctl.engine.events import (
    EventSink,
    Note,
    StageFinished,
    StageStarted,
    StepProgress,
    one_at_a_time,
)
from clusterctl.errors import RequirementsNotMet, raise_all
from clusterctl.transfer.weights.held import (
    DifferingFile,
    HeldFile,
    HeldModel,
    differing_files,
    hash_now,
    keep,
    look_at,
)
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import failures, fan_out, values

TITLE = "Weights are the same on all hosts"

# Bytes per host that are hashed while the user waits: 3 to 10 s on a disk fast enough to load a
# model from. On a host that has more to hash, only small files are hashed at once.
INLINE = 4 << 30

# Largest file, in bytes, that is always hashed at once: configuration, tokenizer, adapters
SMALL = 16 << 20

Fix = Callable[[str], str]  # host: the command that copies the model from it to the others


@dataclass(frozen=True)
class ComparedWeights:
    """The model directory `path`, with its files on every host of a service."""

    path: str
    hosts: Mapping[str, Transport]
    held: Mapping[str, HeldModel]

    @property
    def unproven(self) -> tuple[str, ...]:
        """Sentences about files that could not be compared."""
        unread = [name for name, held in self.held.items() if not held.files]
        rest = {name: _size(held.unknown) for name, held in self.held.items() if held.unknown}
        found = []
        if unread:
            found.append(f"{self.path} cannot be read on {', '.join(unread)}: not compared")
        if rest:
            found.append(
                f"not compared yet: {gib(max(rest.values()))} of {self.path} on {', '.join(rest)}, "
                "which take long to hash; hosts do it once the service is up, and "
                "clusterctl status reports the result"
            )
        return tuple(found)

    def hash_rest(self) -> None:
        """Have the hosts hash the remaining files in the background. Raises the errors of all
        hosts."""

        def begin(transport: Transport) -> None:
            keep(transport, self.path, self.held[transport.host.name], hash_rest=True)

        rest = {name: self.hosts[name] for name, held in self.held.items() if held.unknown}
        raise_all(failures(fan_out(rest, begin)))


def require_same(
    path: str, hosts: Mapping[str, Transport], *, head: str, fix: Fix, sink: EventSink
) -> ComparedWeights:
    """Compare the model directory `path` of all `hosts`.

    Raises, for all hosts together, RequirementsNotMet for each file that differs from the other
    hosts', and the errors of hosts that could not be compared.
    """
    started, told = time.monotonic(), one_at_a_time(sink)
    told(StageStarted(TITLE, tuple(hosts)))

    def on_host(transport: Transport) -> HeldModel:
        held = look_at(transport, path)
        now = held.unknown
        if _size(now) > INLINE:
            now = {name: file for name, file in now.items() if file.size <= SMALL}
        if not now:
            return held
        name = transport.host.name
        found = hash_now(transport, path, now, lambda far: told(StepProgress(name, "weights", far)))
        held = held.learned(found)
        keep(transport, path, held)
        return held

    outcomes = fan_out(hosts, on_host)
    raise_all(failures(outcomes))
    weights = ComparedWeights(path, hosts, values(outcomes))
    raise_all(
        RequirementsNotMet(_sentence(path, one), host=one.host, hint=fix(one.other))
        for one in differing_files(weights.held, head)
    )
    for sentence in weights.unproven:
        told(Note(sentence))
    told(StageFinished(TITLE, time.monotonic() - started))
    return weights


def told_apart(path: str, held: Mapping[str, HeldModel], head: str) -> dict[str, tuple[str, ...]]:
    """Return sentences for `status`, by host, about files that differ from the other hosts'."""
    found: dict[str, tuple[str, ...]] = {}
    for one in differing_files(held, head):
        found[one.host] = (*found.get(one.host, ()), _sentence(path, one))
    return found


def _size(files: Mapping[str, HeldFile]) -> int:
    return sum(file.size for file in files.values())


def _sentence(path: str, one: DifferingFile) -> str:
    which = "" if one.recorded else "; no manifest says which of them is right"
    return f"{one.path} in {path} differs from the one on {one.other}{which}"
