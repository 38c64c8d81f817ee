"""What `serve` makes of the files that hosts hold of one model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.engine.events import Event, Note
from clusterctl.errors import RequirementsNotMet
from clusterctl.inventory.model import Host
from clusterctl.transfer.weights.comparison import INLINE, require_same
from tests.contract.transfer.hosts_here import HostHere
from tests.fakes.transport import FakeTransport

PATH = "/data/models/tiny"


def host(name: str, *files: tuple[str, int, str]) -> FakeTransport:
    """Holds files (path, size, sha256)."""
    lines = [f"tree\t{PATH}"] if files else []
    lines += [f"file\tstamp-{path}\t2026\t2026\t{size}\t{path}" for path, size, _ in files]
    lines += [f"kept\t{sha * 64}\tstamp-{path}\t{path}" for path, _, sha in files]
    lines += ["end"]
    transport = FakeTransport(Host(name=name, address="192.0.2.1"))
    transport.on(lambda argv: argv[3:4] == ("held",), stdout="\n".join(lines))
    return transport


def compare(*hosts: FakeTransport | HostHere, path: str = PATH) -> list[str]:
    """The notes that the user gets."""
    told: list[Event] = []
    require_same(
        path,
        {each.host.name: each for each in hosts},
        head="gpu1",
        fix=lambda source: f"clusterctl model push tiny --from host:{source}",
        sink=told.append,
    )
    return [event.text for event in told if isinstance(event, Note)]


def test_hosts_with_the_same_bytes_are_let_through_without_a_word() -> None:
    assert compare(*(host(name, ("model.safetensors", 9, "a")) for name in ("gpu1", "gpu2"))) == []


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


def test_a_directory_that_root_may_not_read_is_told() -> None:
    """A file server that trusts no root."""
    assert compare(host("gpu1", ("model.safetensors", 9, "a")), host("gpu2")) == [
        "/data/models/tiny cannot be read on gpu2: not compared"
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts directories")
def test_what_takes_minutes_to_hash_is_compared_by_samples(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    hosts = []
    for name in ("gpu1", "gpu2"):
        model = tmp_path / name / "tiny"
        model.mkdir(parents=True)
        with (model / "model.safetensors").open("wb") as file:
            file.write(b"header")
            file.truncate(INLINE + 1)  # a hole, which takes no disk
        hosts.append(HostHere(name, tmp_path / name, models))
    path = str(models / "tiny")
    (note,) = compare(*hosts, path=path)
    assert note.startswith(f"4.0 GiB of {path} were compared by samples of 16 MiB per file")
    assert note.endswith("clusterctl model push tiny --from host:gpu1")
    with (tmp_path / "gpu2" / "tiny" / "model.safetensors").open("r+b") as file:
        file.seek(INLINE)
        file.write(b"x")
    with pytest.raises(RequirementsNotMet, match=r"model\.safetensors in .* differs") as caught:
        compare(*hosts, path=path)
    assert caught.value.host == "gpu2"
