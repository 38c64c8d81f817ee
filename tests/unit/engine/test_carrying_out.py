"""Look, ask, lock, look again, act: in this order, and never a question under the lock."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from clusterctl.engine.carry_out import ROUNDS, carry_out
from clusterctl.errors import StepFailed, UsageError

PACKAGE = Path(__file__).parents[3] / "clusterctl"


@dataclass(frozen=True)
class Lines:
    """A plan of lines."""

    shown: frozenset[str]


@dataclass
class World:
    """What each look finds; the last one is found from then on."""

    plans: list[Lines]
    story: list[str] = field(default_factory=list)
    locked: bool = False

    def look(self) -> Lines:
        self.story.append("look")
        return self.plans.pop(0) if len(self.plans) > 1 else self.plans[0]

    def ask(self, plan: Lines) -> None:
        assert not self.locked, "a person is asked while others wait for the lock"
        self.story.append(f"ask {' '.join(sorted(plan.shown))}".rstrip())

    @contextmanager
    def lock(self) -> Iterator[World]:
        self.story.append("lock")
        self.locked = True
        yield self
        self.locked = False
        self.story.append("unlock")

    def ensure_held(self) -> None:
        assert self.locked

    def act(self, plan: Lines, lock: World | None) -> str:
        if lock:
            lock.ensure_held()
        self.story.append("act")
        return " ".join(sorted(plan.shown))

    def carry_out(self) -> str:
        return carry_out(self.look, self.ask, self.lock, self.act, lambda plan: plan.shown)


def world(*plans: str) -> World:
    return World([Lines(frozenset(text.split())) for text in plans])


def test_the_user_is_asked_before_the_lock_is_taken() -> None:
    run = world("a b")
    assert run.carry_out() == "a b"
    assert run.story == ["look", "ask a b", "lock", "look", "act", "unlock"]


def test_nothing_to_change_takes_no_lock() -> None:
    run = world("")
    assert run.carry_out() == ""
    assert run.story == ["look", "ask", "act"]


def test_less_than_was_shown_is_done_without_another_question() -> None:
    run = world("a b", "b")
    assert run.carry_out() == "b"
    assert run.story == ["look", "ask a b", "lock", "look", "act", "unlock"]


def test_more_than_was_shown_is_asked_about_once_the_lock_is_given_back() -> None:
    run = world("a", "a b")
    assert run.carry_out() == "a b"
    assert run.story == [
        "look", "ask a", "lock", "look", "unlock", "ask a b", "lock", "look", "act", "unlock",
    ]  # fmt: skip


def test_a_cluster_that_never_rests_ends_the_run() -> None:
    run = world(*(f"change{n}" for n in range(ROUNDS + 2)))
    with pytest.raises(StepFailed, match=f"changed {ROUNDS} times"):
        run.carry_out()
    assert "act" not in run.story


def test_nothing_is_done_when_the_user_declines() -> None:
    run = world("a")

    def declined(plan: Lines) -> None:
        raise UsageError("not confirmed")

    with pytest.raises(UsageError):
        carry_out(run.look, declined, run.lock, run.act, lambda plan: plan.shown)
    assert run.story == ["look"]


# Commands that hold the lock without asking anybody, and why
UNASKED = {
    "commands/drain.py": "undrain asks nothing",
    "commands/bootstrap.py": "its last proof, once nothing is left to change",
    "commands/key.py": "what a key does is on its command line",
    "commands/model_pull.py": "a download by a host, which no other run may start",
    "commands/stop.py": "stop asks nothing",
}


def locks(tree: ast.AST) -> Iterator[ast.With]:
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            for item in node.items:
                if "ClusterLock" in ast.dump(item.context_expr):
                    yield node


def calls_of(node: ast.AST, names: set[str]) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in names:
            yield each.func.id


def sources(check: Callable[[Path], bool]) -> Iterator[Path]:
    yield from (path for path in sorted(PACKAGE.rglob("*.py")) if check(path))


def test_no_command_takes_the_lock_by_itself_to_ask_under_it() -> None:
    """All the others go through `carry_out`, which asks before."""
    found = []
    for path in sources(lambda path: path.parts[-2] in {"commands", "operations", "weights"}):
        name = str(path.relative_to(PACKAGE))
        found += [
            f"{name}:{node.lineno}"
            for node in locks(ast.parse(path.read_text()))
            if name not in UNASKED or list(calls_of(node, {"agree", "ask", "confirm"}))
        ]
    assert not found


def test_what_changes_services_takes_one_way() -> None:
    """`change` hands the head's new documents out to the hosts that keep copies."""
    ways = {"Rollout", "bring_up", "drain_host", "move"}
    for path in sources(lambda path: path.parts[-2] == "commands"):
        tree = ast.parse(path.read_text())
        if set(calls_of(tree, ways)):
            assert set(calls_of(tree, {"change"})), f"{path.name} has its own way"
