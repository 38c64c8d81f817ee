"""Hosts and containers that answer with anything: at most an error of that host, never an
exception, and never a value of another type than the code relies on."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import MALFORMED
from clusterctl.facts.claims import checked, finite, is_dns_name, plain_ip
from clusterctl.facts.docker_report import parse_containers, parse_engine, parse_image
from clusterctl.facts.model import HostFacts
from clusterctl.facts.nics import parse_nics
from clusterctl.facts.parse import Probe
from clusterctl.facts.sections import Answer, Section
from clusterctl.network.pairs.orders import read_rates
from clusterctl.node.documents import NodeState, from_json, is_service_name, service_of, to_json
from clusterctl.survey.declared_documents import read_state
from clusterctl.survey.status import assess
from tests.fakes.surveys import survey_of
from tests.unit.survey.test_cluster_status import INVENTORY, facts, healthy

__all__ = ["facts"]

ANYTHING: list[Any] = [
    None, True, 0, -1, 5, 2**70, 1.5, -0.0, "", "x", "x;id", "a\nb", "\x1b[2J", "\u2028", "../x",
    "fe80::1%x\n10.0.0.2 y", "::ffff:1.2.3.4", "x" * 5000, "NaN", [], [1], [[]], {}, {"a": 1},
    float("nan"), float("inf"), ["x", None], "@", "x@-1", "10.0.0.1", "\ud800",
]  # fmt: skip


def damaged(value: Any, chance: random.Random, *, rate: float) -> Any:
    """The value with parts of it replaced, left out or repeated."""
    if chance.random() < rate:
        return chance.choice(ANYTHING)
    if isinstance(value, dict):
        kept = {key: damaged(each, chance, rate=rate) for key, each in value.items()}
        if kept and chance.random() < rate:
            kept.pop(chance.choice(list(kept)))
        return kept
    if isinstance(value, list):
        many = [damaged(each, chance, rate=rate) for each in value]
        return many * chance.choice([1, 1, 1, 2, 50]) if chance.random() < rate else many
    return value


LINKS = [
    {"ifname": "eth0", "mtu": 1500, "operstate": "UP", "address": "02:00:00:00:00:01",
     "addr_info": [{"family": "inet", "local": "10.0.0.1", "prefixlen": 24, "scope": "global"},
                   {"family": "inet6", "local": "fd00::1", "prefixlen": 64, "scope": "global"}]},
    {"ifname": "lo", "mtu": 65536, "addr_info": []},
]  # fmt: skip
CONTAINER = {
    "id": "1", "name": "/clusterctl-demo", "image": "i", "labels": {"clusterctl.cluster": "demo"},
    "state": {"Status": "running", "ExitCode": 0, "StartedAt": "x", "Error": ""}, "restarts": 0,
}  # fmt: skip
IMAGE = {
    "id": "i", "tags": ["a"], "digests": ["b"], "layers": ["c"], "size": 5, "architecture": "amd64",
    "labels": {}, "cuda": ["NVIDIA_REQUIRE_CUDA=cuda>=12"],
}  # fmt: skip
ENGINE = {
    "ServerVersion": "28.1", "DockerRootDir": "/x", "CDISpecDirs": ["/etc/cdi"],
    "Runtimes": {"a": {}},
    "SecurityOptions": ["name=rootless"], "DriverStatus": [["a", "b"]], "DefaultRuntime": "runc",
    "OperatingSystem": "Linux",
}  # fmt: skip


def section(argument: str, *lines: Any) -> Section:
    return Section("x", argument, "\n".join(json.dumps(line) for line in lines))


PARSED: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "ip": (LINKS, lambda it: parse_nics({}, section("", it), ())),
    "containers": (CONTAINER, lambda it: parse_containers(section("0", it))),
    "image": (IMAGE, lambda it: parse_image(section("0", it))),
    "engine": (ENGINE, lambda it: parse_engine(section("0", "Docker 28", it))),
    "rates": (
        [[[0, 1], 1e9], [[1, 0], 2e9]],
        lambda it: read_rates("", json.loads(json.dumps(it))),
    ),
}


def answers(many: int) -> Iterator[tuple[str, Any]]:
    chance = random.Random(34)  # noqa: S311 - the same ones in each run
    names = list(PARSED)
    for number in range(many):
        name = names[number % len(names)]
        yield name, damaged(PARSED[name][0], chance, rate=chance.choice([0.02, 0.1, 0.4]))


def read_all(many: int) -> dict[str, int]:
    """Read hostile answers; return how many of each kind were taken."""
    taken = dict.fromkeys(PARSED, 0)
    for name, hostile in answers(many):
        answer = Answer(())
        refused = object()
        found: Any = answer.read(name, refused, PARSED[name][1], hostile)
        if found is refused:
            assert answer.unknown
            continue
        taken[name] += 1
        checked(found)
        assert all(math.isfinite(rate) for rate in (found.values() if name == "rates" else ()))
    return taken


def states(facts: HostFacts, many: int) -> int:
    """Show the status with hostile reports; return how many of them were taken."""
    chance, taken = random.Random(43), 0  # noqa: S311
    reports = healthy(facts)
    good = reports["gpu1"].state
    assert good
    for _ in range(many):
        hostile = damaged(json.loads(to_json(good)), chance, rate=chance.choice([0.01, 0.05, 0.2]))
        try:
            data = json.dumps(hostile).encode()
        except UnicodeEncodeError:
            continue
        state = read_state(data)
        if state is None:
            continue
        taken += 1
        assert all(is_service_name(service_of(each.name)) for each in state.services)
        for node in state.nodes:
            assert not node.node_ip or plain_ip(node.node_ip)
            assert ";" not in node.name
        if taken % 10 == 0:
            shown = {**reports, "gpu1": dataclasses.replace(reports["gpu1"], state=state)}
            assess(survey_of(INVENTORY, shown))
    return taken


def test_thousands_of_hostile_answers_end_nothing(facts: HostFacts) -> None:
    assert all(read_all(4000).values()), "some are only strange, and are taken"
    assert states(facts, 1000) > 20


@pytest.mark.long
def test_a_hundred_thousand_hostile_answers_end_nothing(facts: HostFacts) -> None:
    assert all(read_all(90_000).values())
    assert states(facts, 10_000) > 200


@pytest.mark.parametrize(
    "text",
    ["fd00::4%x\n10.0.0.2 huggingface.co", "fe80::1%eth0", "10.0.0.1/24", "x", "", "10.0.0.1 x"],
)
def test_an_address_is_nothing_but_an_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"zone|address"):
        plain_ip(text)


def test_numbers_and_names() -> None:
    for value in (float("nan"), float("inf"), True, "5", None, [5]):
        with pytest.raises(MALFORMED):
            finite(value)
    assert finite(5) == 5.0
    names = ["gpu1", "gpu1.example.org", "a-b"]
    assert all(map(is_dns_name, names))
    assert not any(map(is_dns_name, ["", "a b", "a\nb", "-a", "a..b", "a;b", "a_b", "x" * 64]))


def test_a_field_of_another_type_names_itself() -> None:
    @dataclasses.dataclass(frozen=True)
    class Inner:
        names: tuple[str, ...]
        size: int | None = None
        by: dict[str, float] = dataclasses.field(default_factory=dict)

    checked([Inner(("a",), 1, {"x": 1})])
    for wrong in (Inner((5,)), Inner(("a",), "5"), Inner(("a",), 1, {"x": float("nan")})):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"names|size|by"):
            checked((wrong,))


def test_what_hosts_of_the_field_say_is_taken(captured: Callable[[str], Probe]) -> None:
    for file in sorted((Path(__file__).parent / "captures").iterdir()):
        probe = captured(file.stem)
        assert not [each for each in probe.facts.unknown if "is not a" in each]


def test_a_state_without_anything_strange_stays_as_it_is(facts: HostFacts) -> None:
    for report in healthy(facts).values():
        assert report.state
        text = to_json(report.state)
        assert read_state(text.encode()) == from_json(NodeState, text)
