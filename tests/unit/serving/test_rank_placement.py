"""The proof of where a model runs."""

from __future__ import annotations

from clusterctl.node.documents import Rank
from clusterctl.serving.arguments import Layout
from clusterctl.serving.proof import describe, placement_problems

ADDRESSES = {"gpu1": "10.78.0.11", "gpu2": "10.78.0.12"}
PAIR = ("gpu1", "gpu2")
TP2 = Layout(2, 1, seats=PAIR)
STAGES = Layout(4, 2, seats=("gpu1",) * 4 + ("gpu2",) * 4)


def rank(number: int, host: str, *, ip: str | None = None, tp: int = 2) -> Rank:
    address = ip or ADDRESSES.get(host, "10.0.0.9")
    return Rank(number, number % tp, number // tp, host, address, pid=100 + number)


def test_ranks_on_both_hosts_are_proven_and_described() -> None:
    ranks = [rank(1, "gpu2"), rank(0, "gpu1")]

    assert placement_problems(TP2, ADDRESSES, ranks) == []
    assert describe(ranks) == "rank 0 gpu1 (10.78.0.11), rank 1 gpu2 (10.78.0.12)"


def test_ranks_of_one_host_are_told_together() -> None:
    ranks = [rank(n, "gpu1" if n < 4 else "gpu2", tp=4) for n in range(8)]

    assert placement_problems(STAGES, ADDRESSES, ranks) == []
    assert describe(ranks) == "ranks 0-3 gpu1 (10.78.0.11), ranks 4-7 gpu2 (10.78.0.12)"


def test_all_ranks_on_one_host_disprove_a_plan_over_two() -> None:
    problems = placement_problems(TP2, ADDRESSES, [rank(0, "gpu1"), rank(1, "gpu1")])

    assert problems == [
        "gpu1 has 2 of the ranks, and the plan puts 1 there",
        "gpu2 has 0 of the ranks, and the plan puts 1 there",
    ]


def test_a_missing_rank_is_named() -> None:
    problems = placement_problems(STAGES, ADDRESSES, [rank(n, "gpu1", tp=4) for n in range(4)])

    assert "of 8 ranks, 4, 5, 6, 7 are missing" in problems


def test_no_ranks_at_all_are_said() -> None:
    assert describe([]) == "no ranks"
    assert placement_problems(TP2, ADDRESSES, [])[0] == "of 2 ranks, 0, 1 are missing"


def test_ranks_reported_twice_or_beyond_the_plan_are_named() -> None:
    ranks = [rank(0, "gpu1"), rank(0, "gpu1"), rank(1, "gpu2"), rank(2, "gpu2")]

    problems = placement_problems(TP2, ADDRESSES, ranks)

    assert problems[:2] == [
        "of 2 ranks, 2 is beyond the plan",
        "of 2 ranks, 0 is reported twice",
    ]


def test_a_rank_elsewhere_or_on_another_address_is_named() -> None:
    problems = placement_problems(
        TP2, ADDRESSES, [rank(0, "gpu1", ip="192.168.0.1"), rank(1, "stranger")]
    )

    assert problems[:2] == [
        "rank 0 is on gpu1 at 192.168.0.1, not at its node IP 10.78.0.11",
        "rank 1 is on stranger, which is not in the inventory",
    ]


def test_a_group_that_was_to_stay_whole_and_did_not_is_named() -> None:
    ranks = [rank(n, "gpu1" if n % 2 else "gpu2", tp=4) for n in range(8)]

    problems = placement_problems(STAGES, ADDRESSES, ranks)

    assert problems[0] == "the tensor parallel ranks of group 0 are spread over gpu1 and gpu2"
