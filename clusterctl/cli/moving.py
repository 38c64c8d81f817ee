"""`image push`, `model push`, `model pull`: how each shows its plan, or moves and tells of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from clusterctl.cli.session import Session
    from clusterctl.engine.events import EventSink
    from clusterctl.engine.plan import Plan
    from clusterctl.transport.credentials import Credentials

Done = TypeVar("Done")
_Moved = TypeVar("_Moved", covariant=True)


class Runs(Protocol[_Moved]):
    """A command, given all that it moves."""

    def __call__(
        self, credentials: Credentials, /, *, agree: Callable[[Plan], None], sink: EventSink
    ) -> _Moved: ...


@dataclass(frozen=True)
class Move(Generic[Done]):
    """A command's two ways to go."""

    make_plan: Callable[[Credentials], Plan]  # Shows what would move; changes nothing
    run: Runs[Done]


@dataclass(frozen=True)
class Words(Generic[Done]):
    """What is said at the end."""

    nothing: str  # Of a plan in which nothing moves
    sentence: Callable[[Done], str]
    document: Callable[[Done], dict[str, object]]  # With --json


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The options that all of these commands take, and none reads itself."""

    inventory: Path | None
    limit: str | None
    dry_run: bool
    yes: bool
    as_json: bool


def move(
    command: str,
    prepare: Callable[[Session], Move[Done]],
    words: Words[Done],
    flags: Flags,
) -> None:
    """Open a session for `command` and go through with what `prepare` makes of it. In a dry
    run the plan is printed, and raised is the exit that it ends with."""
    from clusterctl.cli.agreement import agreement, show_plan
    from clusterctl.cli.session import session

    as_json = flags.as_json
    with session(command, flags.inventory, limit=flags.limit, quiet=as_json) as opened:
        wanted = prepare(opened)
        if flags.dry_run:
            plan = wanted.make_plan(opened.credentials)
            raise show_plan(plan, as_json=as_json, nothing=words.nothing)
        agree = agreement(opened.progress, yes=flags.yes, as_json=as_json)
        done = wanted.run(opened.credentials, agree=agree, sink=opened.progress)
    print(json.dumps(words.document(done), indent=2) if as_json else words.sentence(done))
