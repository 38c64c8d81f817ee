"""Whether the ranks sit where the plan said: the proof after a launch.

A model that answers proves nothing about where it runs: vLLM stays on one host whenever that has
GPUs enough, and answers just as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterctl.node.documents import Rank
from clusterctl.serving.layout import Layout


@dataclass(frozen=True)
class PlacementProof:
    """What the ranks show."""

    sentence: str  # `rank 0 gpu1 (10.78.0.11), rank 1 gpu2 (10.78.0.12)`
    problems: tuple[str, ...]  # What differs from the plan, a sentence each

    @property
    def proven(self) -> bool:
        return not self.problems


def check_placement(
    layout: Layout, addresses: Mapping[str, str], ranks: Sequence[Rank]
) -> PlacementProof:
    """Compare the ranks that Ray reports with the layout.

    `addresses`: the node IP of every inventory host, by name.
    """
    ordered = sorted(ranks, key=lambda rank: rank.rank)
    problems = [
        *_count_problems(layout, ordered),
        *_address_problems(addresses, ordered),
        *_spread_problems(layout, ordered),
        *_group_problems(layout, ordered),
    ]
    return PlacementProof(describe(ordered), tuple(problems))


def describe(ranks: Sequence[Rank]) -> str:
    """The ranks in words; runs of ranks on one host are told together."""
    runs: list[list[Rank]] = []
    for rank in ranks:
        if runs and (runs[-1][-1].host, runs[-1][-1].rank + 1) == (rank.host, rank.rank):
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(_run(run) for run in runs) or "no ranks"


def _run(run: Sequence[Rank]) -> str:
    first, last = run[0], run[-1]
    which = f"rank {first.rank}" if first is last else f"ranks {first.rank}-{last.rank}"
    return f"{which} {first.host} ({first.node_ip})"


def _count_problems(layout: Layout, ranks: Sequence[Rank]) -> list[str]:
    numbers = Counter(rank.rank for rank in ranks)
    expected = set(range(layout.ranks))
    missing = sorted(expected - numbers.keys())
    strange = sorted(numbers.keys() - expected)
    twice = sorted(number for number, count in numbers.items() if count > 1)
    lines = [
        ("missing", missing),
        ("beyond the plan", strange),
        ("reported twice", twice),
    ]
    return [f"of {layout.ranks} ranks, {_listed(found)} {what}" for what, found in lines if found]


def _listed(numbers: Sequence[int]) -> str:
    verb = "is" if len(numbers) == 1 else "are"
    return f"{', '.join(str(number) for number in numbers)} {verb}"


def _address_problems(addresses: Mapping[str, str], ranks: Sequence[Rank]) -> list[str]:
    problems = []
    for rank in ranks:
        expected = addresses.get(rank.host)
        if expected is None:
            problems.append(
                f"rank {rank.rank} is on {rank.host or rank.node_ip}, no inventory host"
            )
        elif expected != rank.node_ip:
            problems.append(
                f"rank {rank.rank} is on {rank.host} at {rank.node_ip}, "
                f"not at its node IP {expected}"
            )
    return problems


def _spread_problems(layout: Layout, ranks: Sequence[Rank]) -> list[str]:
    hosts = sorted({rank.host for rank in ranks})
    if not ranks or len(hosts) >= layout.least_hosts:
        return []
    return [
        f"all ranks are on {' and '.join(hosts)}, and {layout.ranks} ranks need "
        f"{layout.least_hosts} of {', '.join(layout.hosts)}: GPUs are shared by several ranks"
    ]


def _group_problems(layout: Layout, ranks: Sequence[Rank]) -> list[str]:
    """Tensor parallel groups that were to stay inside a host and do not.

    A group is a run of TP ranks: vLLM counts TP fastest, then PP, then DP.
    """
    if not layout.keeps_tp_in_host:
        return []
    groups: dict[int, set[str]] = {}
    for rank in ranks:
        groups.setdefault(rank.rank // layout.tensor_parallel, set()).add(rank.host)
    return [
        f"the tensor parallel ranks of group {number} are spread over {' and '.join(sorted(hosts))}"
        for number, hosts in sorted(groups.items())
        if len(hosts) > 1
    ]
