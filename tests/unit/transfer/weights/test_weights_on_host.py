"""The scripts that look at, begin and finish a model on a host, on this machine's own disk."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.errors import CommandFailed, CommandTimedOut
from clusterctl.transfer.weights import staging
from clusterctl.transfer.weights.hashing import hash_file, hashes
from clusterctl.transfer.weights.on_host import (
    INCOMING,
    SHARED_FROM,
    look_at_models,
)
from clusterctl.transfer.weights.staging import need, no_room, staging_path
from clusterctl.transport.local import LocalTransport
from tests.fakes.transport import FakeTransport
from tests.unit.transfer.weights.conftest import (
    MakeModel,
    bring,
    deliver,
    hashed,
    safetensors,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="hosts are worked on as root")


def test_a_model_arrives_and_is_known_at_the_next_look(
    make_model: MakeModel, here: LocalTransport, models: str, tmp_path: Path
) -> None:
    tree, manifest = hashed(make_model(), tmp_path)
    before = look_at_models(here, models)
    assert before.trees == ()
    assert before.free > 0
    assert need(manifest, before).state == "absent"
    after = deliver(tree, manifest, here, models)
    assert need(manifest, after).complete
    assert after.incoming == {}
    assert (Path(models) / "Tiny-1B" / "model-2.safetensors").read_bytes() == (
        tmp_path / "here" / "Tiny-1B" / "model-2.safetensors"
    ).read_bytes()


MV = """\
#!{python}
# As mv of coreutils 9.5 does, or refuses --exchange as those before; says where the model was gone.
import ctypes, os, subprocess, sys
words = sys.argv[1:]
if words[0] == "--exchange":
    paths = [os.fsencode(path) for path in words[2:]]
    libc = ctypes.CDLL(None)
    status = {knows} and libc.renameat2(-100, paths[0], -100, paths[1], 2) == 0
    status = 0 if status else 1
else:
    status = subprocess.call(["/bin/mv", *words], close_fds=False)
if not os.path.exists("{model}"):
    open("{gone}", "a").close()
sys.exit(status)
"""


@pytest.mark.parametrize("knows_exchange", [True, False])
def test_a_model_that_is_replaced_is_there_all_the_time(
    knows_exchange: bool,
    make_model: MakeModel,
    here: LocalTransport,
    models: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or all but an instant, where `mv` cannot exchange two directories."""
    deliver(*hashed(make_model(), tmp_path), here, models)
    (tmp_path / "here" / "Tiny-1B" / "tokenizer.json").write_text("{1: 1}")
    tree, manifest = hashed(tmp_path / "here" / "Tiny-1B", tmp_path)
    (tmp_path / "bin").mkdir()
    program, gone = tmp_path / "bin" / "mv", tmp_path / "gone"
    text = MV.format(
        python=sys.executable, knows=knows_exchange, model=f"{models}/Tiny-1B", gone=gone
    )
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    after = deliver(tree, manifest, here, models)
    assert gone.exists() is not knows_exchange
    assert need(manifest, after).complete
    assert (Path(models) / "Tiny-1B" / "tokenizer.json").read_text() == "{1: 1}"
    assert list(Path(models, INCOMING).iterdir()) == []


def test_an_unfinished_tree_is_never_in_its_place(
    make_model: MakeModel, here: LocalTransport, models: str, tmp_path: Path
) -> None:
    tree, manifest = hashed(make_model(), tmp_path)
    found = need(manifest, look_at_models(here, models))
    staging.prepare(here, manifest, found, models)
    with pytest.raises(CommandFailed, match=r"is incomplete: it has"):
        staging.settle(here, manifest, models)
    assert not (Path(models) / manifest.name).exists()
    assert list(look_at_models(here, models).incoming) == [staging_path(manifest, "").split("/")[2]]
    assert need(manifest, deliver(tree, manifest, here, models)).complete


def test_a_file_that_was_written_to_or_is_gone_is_missed(
    make_model: MakeModel, here: LocalTransport, models: str, tmp_path: Path
) -> None:
    tree, manifest = hashed(make_model(), tmp_path)
    deliver(tree, manifest, here, models)
    shard = Path(models) / "Tiny-1B" / "model-1.safetensors"
    shard.write_bytes(b"short")
    (Path(models) / "Tiny-1B" / "tokenizer.json").unlink()
    found = need(manifest, look_at_models(here, models))
    assert found.state == "partial"
    wanted = {file.blob for file in manifest.files if file.path in {shard.name, "tokenizer.json"}}
    assert set(found.brought) == wanted
    same_size = (tmp_path / "here" / "Tiny-1B" / "model-1.safetensors").read_bytes()[::-1]
    deliver(tree, manifest, here, models)
    shard.write_bytes(same_size)
    later = (Path(models) / "Tiny-1B").stat().st_mtime + 5
    os.utime(shard, (later, later))
    assert need(manifest, look_at_models(here, models)).state == "partial"


def test_equal_large_files_of_another_version_are_hard_links(
    make_model: MakeModel, here: LocalTransport, models: str, tmp_path: Path
) -> None:
    large = {"model-2.safetensors": safetensors(SHARED_FROM)}
    deliver(*hashed(make_model("Tiny-1B", **large), tmp_path), here, models)
    new = {"tokenizer.json": b'{"new": 1}', **large}
    tree, second = hashed(make_model("Tiny-1B-v2", **new), tmp_path)
    found = need(second, look_at_models(here, models))
    small = sum(file.size for file in second.files if file.path != "model-2.safetensors")
    assert found.bytes == small
    after = deliver(tree, second, here, models)
    first, other = (Path(models) / name / "model-2.safetensors" for name in (
        "Tiny-1B", "Tiny-1B-v2"
    ))  # fmt: skip
    assert first.samefile(other)
    assert not first.with_name("config.json").samefile(other.with_name("config.json"))
    assert after.tree("Tiny-1B") is not None
    assert all(tree.manifest and not tree.lacking for tree in after.trees)


def test_equal_files_within_a_model_are_brought_once(
    make_model: MakeModel, here: LocalTransport, models: str, tmp_path: Path
) -> None:
    tree, manifest = hashed(make_model(**{"generation_config.json": b"{}"}), tmp_path)
    after = deliver(tree, manifest, here, models)
    assert need(manifest, after).complete
    assert (Path(models) / "Tiny-1B" / "generation_config.json").read_bytes() == b"{}"


def test_what_someone_else_copied_is_hashed_there_and_not_sent(
    make_model: MakeModel, here: LocalTransport, models: str, tmp_path: Path
) -> None:
    tree, manifest = hashed(make_model(), tmp_path)
    copied = Path(models) / "Tiny-1B"
    shutil.copytree(tmp_path / "here" / "Tiny-1B", copied)
    shard = copied / "model-1.safetensors"
    shard.write_bytes(bytes(reversed(shard.read_bytes())))
    found = need(manifest, look_at_models(here, models))
    assert found.state == "unverified"
    assert found.least == 0
    told = hashes(here, list(found.unverified), manifest.size)
    settled = found.proven(told)
    assert [blob.size for blob in settled.brought] == [shard.stat().st_size]
    staging.prepare(here, manifest, settled, models)
    bring(tree, manifest, settled, models)
    staging.settle(here, manifest, models)
    assert need(manifest, look_at_models(here, models)).complete


def test_of_a_directory_of_links_the_files_are_taken(
    make_model: MakeModel, here: LocalTransport, models: str, tmp_path: Path
) -> None:
    large = {"model-2.safetensors": safetensors(SHARED_FROM)}
    tree, manifest = hashed(make_model(**large), tmp_path)
    linked = Path(models) / "Tiny-1B"
    linked.mkdir(parents=True)
    for file in tree.files:
        (linked / file.path).symlink_to(file.source)
    found = need(manifest, look_at_models(here, models))
    settled = found.proven(hashes(here, list(found.unverified), manifest.size))
    assert settled.brought == ()
    staging.prepare(here, manifest, settled, models)
    staging.settle(here, manifest, models)
    assert not any(path.is_symlink() for path in linked.iterdir())
    assert need(manifest, look_at_models(here, models)).complete


def test_pieces_are_hashed_on_the_host_as_here(here: LocalTransport, tmp_path: Path) -> None:
    file = tmp_path / "it's $HOME; a file"
    file.write_bytes(os.urandom(2500))
    told = hashes(here, [str(file), f"{tmp_path}/none"], 2500, piece_size=1000)
    assert told == {str(file): hash_file(file, piece_size=1000)}


def test_how_far_hashing_is_is_said_within_a_file_too(here: LocalTransport, tmp_path: Path) -> None:
    file, said = tmp_path / "large", list[str]()
    with file.open("wb") as made:
        made.truncate(1 << 30)
    told = hashes(here, [str(file)], 1 << 30, say=said.append, every=0.05)
    assert told.keys() == {str(file)}
    far = [re.fullmatch(r"(\d+) of about 1024 MiB, \d+ MiB/s hashed", text) for text in said]
    assert any(found and 0 < int(found[1]) < 1024 for found in far), said


def test_a_disk_that_gives_nothing_more_is_named(here: LocalTransport, tmp_path: Path) -> None:
    with (tmp_path / "stuck").open("wb") as made:
        made.truncate(1 << 40)
    with pytest.raises(CommandTimedOut, match="hashing files hangs") as raised:
        hashes(here, [str(tmp_path / "stuck")], 1, stalled=0.5)
    assert raised.value.host == "gpu1"
    talking = FakeTransport()
    talking.on(lambda argv: argv[3:4] == ("clusterctl",), stdout='{"at": 5}\n' * 3)
    with pytest.raises(CommandTimedOut) as again:
        hashes(talking, ["/x"], 9, stalled=0.0)
    assert "no byte was read" in str(again.value.detail)


def test_a_cache_entry_gets_a_second_snapshot_and_keeps_the_first(
    here: LocalTransport, models: str, tmp_path: Path
) -> None:
    entry = tmp_path / "models--Org--Tiny"
    for commit, text in (("one", "first"), ("two", "second")):
        for part in ("blobs", f"snapshots/{commit}", "refs"):
            (entry / part).mkdir(parents=True, exist_ok=True)
        (entry / "blobs" / text).write_text(text)
        link = entry / "snapshots" / commit / "config.json"
        link.symlink_to(f"../../blobs/{text}")
        (entry / "refs" / "main").write_text(commit)
        tree, manifest = hashed(entry, tmp_path)
        assert need(manifest, deliver(tree, manifest, here, models)).complete
    there = Path(models) / entry.name
    assert (there / "snapshots" / "one" / "config.json").read_text() == "first"
    assert (there / "snapshots" / "two" / "config.json").read_text() == "second"
    assert (there / "refs" / "main").read_text() == "two"


def test_space_and_permission_are_said_before_anything_is_sent(
    make_model: MakeModel, here: LocalTransport, models: str, tmp_path: Path
) -> None:
    _, manifest = hashed(make_model(), tmp_path)
    host = look_at_models(here, models)
    found = need(manifest, host)
    assert no_room(manifest, found, host) is None
    full = no_room(manifest, found, replace(host, free=1000))
    assert full is not None
    assert "0.0 GiB are free" in full.summary
    assert str(full.hint).startswith("make room")
    locked = no_room(manifest, found, replace(host, read_only="/data"))
    assert locked is not None
    assert locked.summary == "/data cannot be written to"
