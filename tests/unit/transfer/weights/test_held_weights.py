"""What a host is known to hold of a model, by its own files on this machine's disk."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from clusterctl.transfer.weights.comparison import (
    SAMPLES,
    DifferingFile,
    HeldModel,
    differing_files,
    hash_now,
    keep,
    kept_file,
    look_at,
)
from clusterctl.transfer.weights.manifest import Manifest, WeightFile, WeightLink, dump
from clusterctl.transfer.weights.on_host import HostFile, look_at_models, run_as_root, script
from clusterctl.transfer.weights.staging import need
from clusterctl.transport.local import LocalTransport
from clusterctl.units import MIB
from tests.unit.transfer.weights.conftest import MakeModel, deliver, hashed

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="hosts are worked on as root")

SHARD = "model-2.safetensors"


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def flip(file: Path) -> None:
    """Another byte in the middle, and a time of the last write that tells nothing of it."""
    before = file.stat()
    with file.open("r+b") as opened:
        opened.seek(before.st_size // 2)
        byte = opened.read(1)
        opened.seek(before.st_size // 2)
        opened.write(bytes([byte[0] ^ 1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def kept(tmp_path: Path) -> str:
    return str(tmp_path / "kept" / "weights")


@pytest.fixture
def pushed(make_model: MakeModel, here: LocalTransport, models: str, tmp_path: Path) -> Path:
    """A model that was brought here with its manifest."""
    tree, manifest = hashed(make_model(), tmp_path)
    deliver(tree, manifest, here, models)
    return Path(models) / "Tiny-1B"


def test_all_of_a_pushed_model_is_known_and_nothing_of_a_copied_one(
    pushed: Path, here: LocalTransport, kept: str
) -> None:
    held = look_at(here, str(pushed), kept=kept)
    assert held.known[SHARD] == sha(pushed / SHARD)
    assert held.unknown == {}
    (pushed / ".clusterctl-model.json").unlink()
    copied = look_at(here, str(pushed), kept=kept)
    assert copied.known == copied.in_manifest == {}
    assert set(copied.unknown) == set(held.known)


def test_a_file_that_was_written_to_is_not_known_whatever_its_time_says(
    pushed: Path, here: LocalTransport, kept: str
) -> None:
    before = look_at(here, str(pushed), kept=kept)
    flip(pushed / SHARD)
    after = look_at(here, str(pushed), kept=kept)
    assert set(after.unknown) == {SHARD}
    found = hash_now(here, str(pushed), after.unknown, lambda _: None)
    assert found == {SHARD: sha(pushed / SHARD)}
    both = {"gpu1": before, "gpu2": after.learned(found)}
    assert differing_files(both, "gpu1") == [DifferingFile("gpu2", SHARD, "gpu1", recorded=True)]
    assert differing_files({"gpu1": both["gpu2"], "gpu2": both["gpu1"]}, "gpu1") == [
        DifferingFile("gpu1", SHARD, "gpu2", recorded=True)
    ]


def test_what_is_kept_holds_until_the_file_changes(
    pushed: Path, here: LocalTransport, kept: str
) -> None:
    (pushed / ".clusterctl-model.json").unlink()
    path = str(pushed)
    held = look_at(here, path, kept=kept)
    keep(here, path, held.learned(hash_now(here, path, held.unknown, lambda _: None)), kept=kept)
    again = look_at(here, path, kept=kept)
    assert again.unknown == {}
    assert again.known[SHARD] == sha(pushed / SHARD)
    file = Path(kept_file(path, kept))
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    flip(pushed / SHARD)
    assert set(look_at(here, path, kept=kept).unknown) == {SHARD}


def test_samples_are_of_the_whole_file(here: LocalTransport, tmp_path: Path) -> None:
    data = bytearray(os.urandom(MIB) * 40)
    file = tmp_path / "model.safetensors"
    files = {file.name: HostFile(len(data))}

    def sampled() -> dict[str, str]:
        file.write_bytes(data)
        return hash_now(here, str(tmp_path), files, lambda _: None, samples=SAMPLES)

    before = sampled()
    assert set(before) == {file.name}
    assert sampled() == before
    for place in (0, len(data) - 1, len(data) // 2):
        hole = min(len(data) - 3 * MIB, max(0, place - MIB))
        was = bytes(data[hole : hole + 3 * MIB])
        data[hole : hole + 3 * MIB] = bytes(3 * MIB)
        assert sampled() != before, f"3 MiB around {place} were never written"
        data[hole : hole + 3 * MIB] = was
    assert sampled() == before


def test_directories_of_checkpoints_below_a_model_are_not_listed(
    pushed: Path, here: LocalTransport, kept: str
) -> None:
    deep = pushed / "adapters" / "checkpoint-1"
    deep.mkdir(parents=True)
    (deep / "model.safetensors").write_bytes(b"far below")
    (deep.parent / "adapter.safetensors").write_bytes(b"below")
    argv = (*script("look", "held"), str(pushed), str(pushed), kept_file(str(pushed), kept))
    answer = run_as_root(here, argv, doing="reading", timeout=60)
    assert "checkpoint-1" not in answer
    assert "adapters/adapter.safetensors" in look_at(here, str(pushed), kept=kept).files
    found = look_at_models(here, str(pushed.parent), kept=kept).tree(pushed.name)
    assert found is not None
    assert "adapters/checkpoint-1/model.safetensors" in found.files


def test_a_push_mends_a_file_that_was_found_to_be_another(
    make_model: MakeModel, here: LocalTransport, models: str, kept: str, tmp_path: Path
) -> None:
    tree, manifest = hashed(make_model(), tmp_path)
    deliver(tree, manifest, here, models)
    path = Path(models) / "Tiny-1B"
    right = sha(path / SHARD)
    flip(path / SHARD)
    assert need(manifest, look_at_models(here, models, kept=kept)).complete
    held = look_at(here, str(path), kept=kept)
    found = hash_now(here, str(path), held.unknown, lambda _: None)
    keep(here, str(path), held.learned(found), kept=kept)
    wanted = need(manifest, look_at_models(here, models, kept=kept))
    assert wanted.state == "partial"
    assert [blob.hex for blob in wanted.brought] == [right]


def test_a_snapshot_of_a_cache_is_known_by_the_manifest_of_its_entry(
    here: LocalTransport, kept: str, tmp_path: Path
) -> None:
    cache = tmp_path / "cache" / "models--org--Tiny"
    (cache / "blobs").mkdir(parents=True)
    snapshot = cache / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        data = name.encode() * 1000
        blob = cache / "blobs" / hashlib.sha256(data).hexdigest()
        blob.write_bytes(data)
        (snapshot / name).symlink_to(f"../../blobs/{blob.name}")
    blobs = tuple(
        WeightFile(f"blobs/{blob.name}", blob.stat().st_size, 0o644, blob.name)
        for blob in (cache / "blobs").iterdir()
    )
    links = tuple(
        WeightLink(f"snapshots/abc/{link.name}", str(link.readlink()))
        for link in snapshot.iterdir()
    )
    (cache / ".clusterctl-model.json").write_text(dump(Manifest("models--org--Tiny", blobs, links)))
    held = look_at(here, str(snapshot), kept=kept)
    assert held.known == {
        name: sha(snapshot / name) for name in ("config.json", "model.safetensors")
    }


def holding(known: str | None, *, size: int = 10, in_manifest: str | None = None) -> HeldModel:
    """A host with one file."""
    return HeldModel(
        {SHARD: HostFile(size, "stamp")},
        {SHARD: known} if known else {},
        {SHARD: in_manifest} if in_manifest else {},
    )


@pytest.mark.parametrize(
    ("hosts", "told"),
    [
        ({"gpu1": holding("a"), "gpu2": holding("a")}, []),
        ({"gpu1": holding("a"), "gpu2": holding("b")}, [("gpu2", "gpu1", False)]),
        (
            {"gpu1": holding("b"), "gpu2": holding("a"), "gpu3": holding("a")},
            [("gpu1", "gpu2", False)],
        ),
        (
            {"gpu1": holding("b"), "gpu2": holding("a", in_manifest="a"), "gpu3": holding("b")},
            [("gpu1", "gpu2", True), ("gpu3", "gpu2", True)],
        ),
        ({"gpu1": holding("a"), "gpu2": holding(None)}, []),
        ({"gpu1": holding("a"), "gpu2": holding(None, size=11)}, [("gpu2", "gpu1", False)]),
        (
            {
                "gpu1": holding(None),
                "gpu2": holding(None),
                "gpu3": holding("a"),
                "gpu4": holding("b"),
            },
            [("gpu4", "gpu3", False)],
        ),
        # All hosts were given another file than the manifest's: they are the same.
        ({"gpu1": holding("b", in_manifest="a"), "gpu2": holding("b", in_manifest="a")}, []),
    ],
)
def test_whose_file_is_wrong(
    hosts: dict[str, HeldModel], told: list[tuple[str, str, bool]]
) -> None:
    assert [(one.host, one.other, one.recorded) for one in differing_files(hosts, "gpu1")] == told
