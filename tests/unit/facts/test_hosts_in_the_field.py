"""What is said of hosts that people reported: the cause that their evidence shows, a fix for it."""

from __future__ import annotations

import pytest

from clusterctl.errors import RequirementsNotMet
from clusterctl.units import GIB
from tests.unit.facts.field.composed import Case, cases
from tests.unit.facts.judged import notes, problems


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_what_is_said_of_a_host(case: Case) -> None:
    facts = {"a": case.probe().facts}
    size = case.image_gib and case.image_gib * GIB
    found = problems(case.inventory, facts, image_env=case.image, image_size=size)
    noted = "\n".join(notes(case.inventory, facts))

    _expect(case, found)
    assert case.note in noted
    said = "\n".join([noted, *(f"{error} {error.hint}" for error in found)]).lower()
    assert not [words for words in case.never if words.lower() in said]


def _expect(case: Case, found: tuple[RequirementsNotMet, ...]) -> None:
    if not case.problem:
        assert not found
        return
    (problem,) = found
    assert case.problem in problem.summary
    assert problem.hint
    assert not [words for words in case.fix if words not in problem.hint]
