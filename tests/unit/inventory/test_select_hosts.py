"""`--limit` means the hosts it names, or says what it does not match."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.errors import UsageError
from clusterctl.inventory.model import Host, Inventory
from clusterctl.inventory.select import select

RACKS = {"gpu1": "a1", "gpu2": "a2", "gpu3": "b1", "gpu10": "b2", "n01": "", "n02": ""}


def make_inventory(names: dict[str, str]) -> Inventory:
    hosts = tuple(
        Host(
            name=name,
            address=name,
            role="head" if index == 0 else "worker",
            labels={"rack": rack} if rack else {},
        )
        for index, (name, rack) in enumerate(names.items())
    )
    return Inventory(cluster="demo", image="a", hosts=hosts)


INVENTORY = make_inventory(RACKS)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("gpu1", "gpu1"),
        ("gpu3,gpu1", "gpu1 gpu3"),
        ("gpu1, gpu1", "gpu1"),
        ("gpu*", "gpu1 gpu2 gpu3 gpu10"),
        ("gpu?", "gpu1 gpu2 gpu3"),
        ("*1*", "gpu1 gpu10 n01"),
        ("gpu[2-3]", "gpu2 gpu3"),
        ("gpu[2-999999999]", "gpu2 gpu3 gpu10"),
        ("gpu[1,10]", "gpu1 gpu10"),
        ("gpu[1-2,10],n01", "gpu1 gpu2 gpu10 n01"),
        ("n[01-02]", "n01 n02"),
        ("[a-z]*", None),
        ("n[1-2]", None),
        ("role=head", "gpu1"),
        ("role=worker,!n*", "gpu2 gpu3 gpu10"),
        ("rack=a1", "gpu1"),
        ("rack=b*", "gpu3 gpu10"),
        ("!gpu*", "n01 n02"),
        ("*,!role=head,!n01", "gpu2 gpu3 gpu10 n02"),
        ("gpu1,!gpu1", None),
        ("!*", None),
        ("gpu4", None),
        ("gpu1,gpu4", None),
        ("gpu1,!gpu4", None),
        ("role=boss", None),
        ("row=1", None),
        ("", None),
        (",", None),
        ("gpu1,", None),
        ("gpu1,,gpu2", None),
        ("!", None),
        ("gpu[", None),
        ("gpu[]", None),
        ("gpu[3-1]", None),
        ("gpu[a-c]", None),
        ("gpu1]", None),
    ],
)
def test_a_limit_means_these_hosts(limit: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(UsageError) as caught:
            select(INVENTORY, limit)
        assert caught.value.hint
    else:
        assert " ".join(host.name for host in select(INVENTORY, limit)) == expected


def test_a_misspelt_name_gets_the_nearest_and_all_that_exist() -> None:
    with pytest.raises(UsageError) as caught:
        select(INVENTORY, "gpu1,gpo2")
    assert str(caught.value) == "--limit gpo2 matches no host; did you mean gpu2?"
    assert caught.value.hint == "hosts of demo: gpu1, gpu2, gpu3, gpu10, n01, n02"


def test_a_long_list_of_hosts_is_shortened() -> None:
    with pytest.raises(UsageError) as caught:
        select(make_inventory({f"n{i}": "" for i in range(100)}), "x")
    assert str(caught.value.hint).endswith("n19 and 80 more")


@given(st.text(alphabet="gpun0123456789[]-,*?!= role\\^$(", max_size=30))
def test_any_text_selects_hosts_or_is_a_usage_error(limit: str) -> None:
    with contextlib.suppress(UsageError):
        assert select(INVENTORY, limit)


@given(st.integers(0, 20), st.integers(0, 20))
def test_a_range_is_the_names_it_lists(first: int, last: int) -> None:
    inventory = make_inventory({f"n{i}": "" for i in range(21)})
    if first > last:
        first, last = last, first
    listed = ",".join(f"n{i}" for i in range(first, last + 1))
    assert select(inventory, f"n[{first}-{last}]") == select(inventory, listed)
