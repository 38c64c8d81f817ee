"""Common flow of `image push`, `model push` and `model pull`: show the plan, or run and report."""

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
    """The `run` of a command, with its arguments bound."""

    def __call__(
        self, credentials: Credentials, /, *, agree: Callable[[Plan], None], sink: EventSink
    ) -> _Moved: ...


@dataclass(frozen=True)
class Move(Generic[Done]):
    """A command's `make_plan` (for --dry-run) and `run`."""

    make_plan: Callable[[Credentials], Plan]  # Returns what would move; changes nothing
    run: Runs[Done]


@dataclass(frozen=True)
class Words(Generic[Done]):
    """Texts for the end of a run."""

    nothing: str  # For a plan in which nothing moves
    sentence: Callable[[Done], str]
    document: Callable[[Done], dict[str, object]]  # With --json


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Options that these commands share and pass on unread."""

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
    """Open a session for `command`, and run what `prepare` returns. In a dry run, print the plan
    and raise its exit."""
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
