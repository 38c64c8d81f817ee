"""The four laws of steps, over every step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.engine.step import Change
from clusterctl.errors import ClusterctlError
from clusterctl.node.documents import KeysDocument, to_json
from clusterctl.steps.node_container import NodeContainer
from tests.unit.steps.stage import CASES, ETC, SERVICE, Case
from tests.unit.steps.stage_install import INSTALL_CASES

EVERY = (*CASES, *INSTALL_CASES)
every_step = pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)


def pending(case: Case) -> tuple[Case, Change]:
    _, step, view, _ = case.set_up()
    change = step.check(view)
    assert isinstance(change, Change), f"the case has nothing to do: {change}"
    return case, change


@every_step
def test_check_never_writes(case: Case) -> None:
    made, step, view, host = case.set_up()
    before, changes = (made.head.picture(), made.worker.picture()), host.changes
    step.check(view)
    assert (made.head.picture(), made.worker.picture()) == before
    assert host.changes == changes


@every_step
def test_after_apply_there_is_nothing_to_do(case: Case) -> None:
    _, change = pending(case)
    _, step, view, _ = case.set_up()
    step.apply(view, change)
    assert step.check(view) is None


@every_step
def test_applying_twice_equals_once(case: Case) -> None:
    _, change = pending(case)
    _, step, view, host = case.set_up()
    step.apply(view, change)
    once, changes = host.picture(), host.changes
    step.apply(view, change)
    assert host.picture() == once
    if isinstance(step, NodeContainer):
        assert host.changes == changes, "a container that runs was touched"


@every_step
def test_an_apply_cut_short_anywhere_converges(case: Case) -> None:
    """The connection is lost before the first change, the second, and so on to the last."""
    _, change = pending(case)
    for cut_at in range(1, 30):
        _, step, view, host = case.set_up()
        host.cut_at = host.changes + cut_at
        try:
            step.apply(view, change)
        except ClusterctlError:
            again = step.check(view)
            if isinstance(again, Change):
                step.apply(view, again)
            assert step.check(view) is None, f"cut before change {cut_at}"
        else:
            assert cut_at > 1, "nothing was changed"
            return
    pytest.fail("more than 30 changes: raise the limit")


@every_step
def test_a_step_names_what_it_would_do(case: Case) -> None:
    _, change = pending(case)
    assert change.summary
    assert "0123" not in f"{change}", "a secret in a plan"


def test_services_are_mended_with_what_was_read_last_or_removed() -> None:
    case = next(case for case in EVERY if case.name == "services that cannot be read")
    _, step, view, host = case.set_up()
    change = step.check(view)
    assert isinstance(change, Change)
    assert change.summary == (
        "restore services/tiny.json, which cannot be read; "
        "remove services/other.json, which cannot be read; "
        "restore keys.json, which cannot be read"
    )
    other = (to_json(replace(SERVICE, name="other")).encode(), 0o600)
    host.files[f"{ETC}/services/other.json"] = other
    step.apply(view, change)
    kept = (to_json(SERVICE).encode(), 0o600)
    assert host.files[f"{ETC}/services/tiny.json"] == kept
    assert host.files[f"{ETC}/keys.json"][0] == to_json(KeysDocument()).encode()
    assert host.files[f"{ETC}/services/other.json"] == other, "written anew meanwhile"
