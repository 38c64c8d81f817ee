"""Ranks on several hosts load the same bytes: before they start, each host's files are compared by
hash.

What is known already, or small, is compared before anything starts. What would take minutes to
hash is said to be unproven, and hashed on the hosts once the service is up: `status`, and the next
`serve`, compare that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clusterctl.engine.events import (
    EventSink,
    Note,
    StageFinished,
    StageStarted,
    StepProgress,
    one_at_a_time,
)
from clusterctl.errors import RequirementsNotMet, raise_all
from clusterctl.transfer.amounts import gib
from clusterctl.transfer.weights.held import (
    Held,
    HeldFile,
    Unlike,
    hash_now,
    keep,
    look_at,
    unlike,
)
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import failures, fan_out, values

TITLE = "Weights are the same on all hosts"

# Bytes of a host that are hashed while the user waits: 3 to 10 s where a disk gives what loading a
# model needs. Of a host that has more to hash, only what is small is hashed at once.
INLINE = 4 << 30

# Bytes of a file that is hashed at once in any case: configuration, tokenizer, adapters
SMALL = 16 << 20

Fix = Callable[[str], str]  # The command that brings the model from a host to the others


@dataclass(frozen=True)
class Weights:
    """The model in the directory `path`, as every host of a service holds it."""

    path: str
    hosts: Mapping[str, Transport]
    held: Mapping[str, Held]

    @property
    def unproven(self) -> tuple[str, ...]:
        """What could not be compared, in sentences; none when all of it was."""
        unread = [name for name, held in self.held.items() if not held.files]
        rest = {name: _size(held.unknown) for name, held in self.held.items() if held.unknown}
        found = []
        if unread:
            found.append(f"{self.path} cannot be read on {', '.join(unread)}: not compared")
        if rest:
            found.append(
                f"not compared yet: {gib(max(rest.values()))} of {self.path} on {', '.join(rest)}, "
                "which take long to hash; done there once the service is up, and told by: "
                "clusterctl status"
            )
        return tuple(found)

    def hash_rest(self) -> None:
        """Have the hosts hash what is not known, in the background. Raises the errors of all."""

        def begin(transport: Transport) -> None:
            keep(transport, self.path, self.held[transport.host.name], hash_rest=True)

        rest = {name: self.hosts[name] for name, held in self.held.items() if held.unknown}
        raise_all(failures(fan_out(rest, begin)))


def require_same(
    path: str, hosts: Mapping[str, Transport], *, head: str, fix: Fix, sink: EventSink
) -> Weights:
    """Compare the model directory `path` of all `hosts`.

    Raises, of all hosts together, RequirementsNotMet for one whose files are others than those of
    the rest, and what keeps hosts from telling.
    """
    started, told = time.monotonic(), one_at_a_time(sink)
    told(StageStarted(TITLE, tuple(hosts)))

    def on_host(transport: Transport) -> Held:
        held = look_at(transport, path)
        now = _at_once(held)
        if not now:
            return held
        name = transport.host.name
        found = hash_now(transport, path, now, lambda far: told(StepProgress(name, "weights", far)))
        held = held.learned(found)
        keep(transport, path, held)
        return held

    outcomes = fan_out(hosts, on_host)
    raise_all(failures(outcomes))
    weights = Weights(path, hosts, values(outcomes))
    raise_all(_problem(path, one, fix) for one in unlike(weights.held, head))
    for sentence in weights.unproven:
        told(Note(sentence))
    told(StageFinished(TITLE, time.monotonic() - started))
    return weights


def told_apart(path: str, held: Mapping[str, Held], head: str) -> dict[str, tuple[str, ...]]:
    """What `status` says of hosts whose files are others than those of the rest, by host."""
    found: dict[str, tuple[str, ...]] = {}
    for one in unlike(held, head):
        found[one.host] = (*found.get(one.host, ()), _sentence(path, one))
    return found


def _at_once(held: Held) -> dict[str, HeldFile]:
    """The files to hash while the user waits."""
    if _size(held.unknown) <= INLINE:
        return held.unknown
    return {path: file for path, file in held.unknown.items() if file.size <= SMALL}


def _size(files: Mapping[str, HeldFile]) -> int:
    return sum(file.size for file in files.values())


def _problem(path: str, one: Unlike, fix: Fix) -> RequirementsNotMet:
    return RequirementsNotMet(_sentence(path, one), host=one.host, hint=fix(one.other))


def _sentence(path: str, one: Unlike) -> str:
    which = "" if one.recorded else "; which of them is right, no manifest says"
    return f"{one.path} in {path} is not the file that {one.other} has{which}"
