"""What `serve` makes of the files that hosts hold of one model."""

from __future__ import annotations

import pytest

from clusterctl.engine.events import Event, Note
from clusterctl.errors import RequirementsNotMet
from clusterctl.inventory.model import Host
from clusterctl.transfer.weights.comparison import INLINE, ComparedWeights, require_same
from tests.fakes.transport import FakeTransport

PATH = "/data/models/tiny"


def host(name: str, *files: tuple[str, int, str]) -> FakeTransport:
    """Holds files (path, size, sha256); "" for one whose hash nobody knows."""
    lines = [f"tree\t{PATH}"] if files else []
    lines += [f"file\tstamp-{path}\t2026\t2026\t{size}\t{path}" for path, size, _ in files]
    lines += [f"kept\t{sha * 64}\tstamp-{path}\t{path}" for path, _, sha in files if sha]
    lines += ["end"]
    transport = FakeTransport(Host(name=name, address="192.0.2.1"))
    transport.on(lambda argv: argv[3:4] == ("held",), stdout="\n".join(lines))
    transport.on(lambda argv: argv[3:4] == ("keep",))
    return transport


def compare(*hosts: FakeTransport) -> tuple[ComparedWeights, list[Event]]:
    told: list[Event] = []
    weights = require_same(
        PATH,
        {each.host.name: each for each in hosts},
        head="gpu1",
        fix=lambda source: f"clusterctl model push tiny --from host:{source}",
        sink=told.append,
    )
    return weights, told


def kept_on(transport: FakeTransport) -> list[str]:
    return [call.stdin.decode() for call in transport.calls if call.argv[3] == "keep"]


def test_hosts_with_the_same_bytes_are_let_through_without_a_word() -> None:
    hosts = [host(name, ("model.safetensors", 9, "a")) for name in ("gpu1", "gpu2")]
    weights, told = compare(*hosts)
    assert weights.unverified == ()
    assert not any(isinstance(event, Note) for event in told)
    weights.hash_rest()
    assert [kept_on(each) for each in hosts] == [[], []]


def test_other_bytes_are_refused_with_host_file_and_fix() -> None:
    with pytest.raises(RequirementsNotMet) as caught:
        compare(
            host("gpu1", ("config.json", 2, "c"), ("model.safetensors", 9, "a")),
            host("gpu2", ("config.json", 2, "c"), ("model.safetensors", 9, "b")),
        )
    error = caught.value
    assert error.host == "gpu2"
    assert error.summary == (
        "model.safetensors in /data/models/tiny differs from the one on gpu1; no manifest "
        "says which of them is right"
    )
    assert error.hint == "clusterctl model push tiny --from host:gpu1"


def test_what_takes_minutes_to_hash_is_told_and_hashed_once_the_service_is_up() -> None:
    gpu1 = host("gpu1", ("model.safetensors", INLINE + 1, "a"))
    gpu2 = host("gpu2", ("model.safetensors", INLINE + 1, ""))
    weights, told = compare(gpu1, gpu2)
    notes = [event.text for event in told if isinstance(event, Note)]
    assert len(notes) == 1
    assert notes[0].startswith("not compared yet: 4.0 GiB of /data/models/tiny on gpu2")
    assert kept_on(gpu2) == []
    weights.hash_rest()
    assert kept_on(gpu1) == []
    assert kept_on(gpu2) == ["hash\tstamp-model.safetensors\tmodel.safetensors\n"]


def test_a_directory_that_root_may_not_read_is_told() -> None:
    """A file server that trusts no root."""
    weights, _ = compare(host("gpu1", ("model.safetensors", 9, "a")), host("gpu2"))
    assert weights.unverified == ("/data/models/tiny cannot be read on gpu2: not compared",)
