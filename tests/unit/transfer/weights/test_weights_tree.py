"""What a directory on this machine holds, and what keeps it from being a model."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from clusterctl.errors import ClusterctlError, Problems, StepFailed, UsageError
from clusterctl.transfer.weights.directory import faults, manifest_of, read_tree, unhashed
from clusterctl.transfer.weights.hashing import HashCache, Stamp, hash_file
from tests.unit.transfer.weights.conftest import MakeModel, safetensors


def words(directory: Path) -> str:
    return "\n".join(str(fault) for fault in faults(read_tree(directory)))


def test_a_whole_model_has_no_faults_and_leaves_litter_behind(make_model: MakeModel) -> None:
    directory = make_model(**{"x.safetensors.part": b"1"})
    (directory / ".git").mkdir()
    (directory / ".git" / "config").write_text("x")
    tree = read_tree(directory)
    assert faults(tree) == []
    assert tree.name == "Tiny-1B"
    assert sorted(file.path for file in tree.files) == [
        "config.json",
        "model-1.safetensors",
        "model-2.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]


def test_all_that_is_wrong_is_said_at_once(make_model: MakeModel) -> None:
    directory = make_model(**{"b.bin": b"version https://git-lfs.github.com/spec/v1\n"})
    (directory / "config.json").unlink()
    (directory / "model-2.safetensors").unlink()
    shard = directory / "model-1.safetensors"
    shard.write_bytes(shard.read_bytes()[:-7])
    said = words(directory)
    assert "has no config.json" in said
    assert "lacks 1 of its weight files: model-2.safetensors" in said
    assert "model-1.safetensors that lacks its last 7 bytes" in said
    assert "git-lfs pointer in place of b.bin" in said


def test_a_directory_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "has no weights" in words(tmp_path)
    (tmp_path / "RANDOM_WEIGHTS").write_text("")
    assert words(tmp_path) == ""


@pytest.mark.parametrize(
    ("name", "hub_id"), [("Qwen3-8B", "Qwen/Qwen3-8B"), ("awq", "ORGANIZATION/NAME")]
)
def test_the_fix_names_a_model_that_can_be_pulled(tmp_path: Path, name: str, hub_id: str) -> None:
    directory = tmp_path / name
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (fault,) = faults(read_tree(directory))
    assert f"clusterctl model pull {hub_id}" in str(fault.hint)


def test_no_directory_and_what_cannot_be_sent(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read_tree(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is not a directory"):
        read_tree(tmp_path / "file")
    model = tmp_path / "model"
    model.mkdir()
    (model / "gone.safetensors").symlink_to("nowhere")
    with pytest.raises(UsageError, match=r"gone\.safetensors cannot be read"):
        read_tree(model)
    (model / "gone.safetensors").unlink()
    (model / "two\nlines").write_text("")
    with pytest.raises(UsageError, match="control character"):
        read_tree(model)


def test_a_link_out_of_the_model_brings_in_weights_alone(
    make_model: MakeModel, tmp_path: Path
) -> None:
    directory, away = make_model(), tmp_path / "away"
    (away / ".ssh").mkdir(parents=True)
    for name in ("pooled.safetensors", ".ssh/id_ed25519"):
        (away / name).write_bytes(b"data")
    (directory / "model-2.safetensors").unlink()
    (directory / "model-2.safetensors").symlink_to(away / "pooled.safetensors")
    assert len(read_tree(directory).files) == 5
    (directory / "merges.txt").symlink_to(away / ".ssh/id_ed25519")
    (directory / "more").symlink_to(away / ".ssh")
    (directory / "w.bin").symlink_to(away / ".ssh/id_ed25519")
    with pytest.raises(Problems) as raised:
        read_tree(directory)
    assert [str(error).partition(",")[0] for error in raised.value.errors] == [
        f"{path} is a link to {away}/.ssh/id_ed25519"
        for path in ("merges.txt", "more/id_ed25519", "w.bin")
    ]


def test_the_copy_that_is_proposed_for_a_link_goes_where_the_link_is(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--Acme--Tiny" / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    secret = tmp_path / "my key"
    secret.write_text("private")
    (snapshot / "config.json").symlink_to(secret)
    with pytest.raises(UsageError) as raised:
        read_tree(snapshot)
    copy = f"cp --remove-destination '{secret}' {snapshot}/config.json"
    assert copy in str(raised.value.hint)


def test_links_that_lead_in_a_circle_are_named(make_model: MakeModel) -> None:
    directory = make_model()
    (directory / "more").mkdir()
    (directory / "more" / "again").symlink_to("..")
    with pytest.raises(UsageError, match=r"more/again links back to a directory that contains it"):
        read_tree(directory)
    (directory / "more" / "again").unlink()
    (directory / "twice").symlink_to("more")
    assert faults(read_tree(directory)) == []


def cache_entry(tmp_path: Path, content: bytes, name: str) -> Path:
    """As huggingface_hub lays it out: a large file by its sha256, a small one by git's sha1."""
    entry = tmp_path / "models--Org--Tiny"
    for part in ("blobs", "snapshots/c0ffee", "refs"):
        (entry / part).mkdir(parents=True)
    (entry / "refs" / "main").write_text("c0ffee")
    (entry / "blobs" / name).write_bytes(content)
    (entry / "blobs" / ("1" * 40)).write_text("{}")
    snapshot = entry / "snapshots" / "c0ffee"
    (snapshot / "model.safetensors").symlink_to(f"../../blobs/{name}")
    (snapshot / "config.json").symlink_to(f"../../blobs/{'1' * 40}")
    return entry


def test_a_cache_entry_keeps_its_layout(tmp_path: Path) -> None:
    content = safetensors(100)
    digest = hashlib.sha256(content).hexdigest()
    entry = cache_entry(tmp_path, content, digest)
    tree = read_tree(entry)
    assert faults(tree) == []
    manifest = manifest_of(tree, cache=HashCache(tmp_path / "hashes"))
    assert {file.path for file in manifest.files} == {
        f"blobs/{digest}",
        f"blobs/{'1' * 40}",
        "refs/main",
    }
    assert {(link.path, link.target) for link in manifest.links} == {
        ("snapshots/c0ffee/model.safetensors", f"../../blobs/{digest}"),
        ("snapshots/c0ffee/config.json", f"../../blobs/{'1' * 40}"),
    }
    assert (manifest.name, manifest.origin) == ("models--Org--Tiny", "hf:Org/Tiny@c0ffee")
    plain = read_tree(entry / "snapshots" / "c0ffee")
    assert (plain.name, plain.links) == ("Tiny", ())


def test_links_of_a_cache_entry_lead_to_its_blobs_on_any_host(tmp_path: Path) -> None:
    content = safetensors(100)
    digest = hashlib.sha256(content).hexdigest()
    entry = cache_entry(tmp_path, content, digest)
    snapshot = entry / "snapshots" / "c0ffee"
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(entry / "blobs" / digest)
    (snapshot / "config.json").rename(snapshot / "other.json")
    (snapshot / "config.json").symlink_to("other.json")
    tree = read_tree(entry)
    assert faults(tree) == []
    assert {link.target for link in tree.links} == {
        f"../../blobs/{digest}",
        f"../../blobs/{'1' * 40}",
    }


def test_a_blob_that_is_not_what_its_name_says_is_damaged(tmp_path: Path) -> None:
    entry = cache_entry(tmp_path, b"other bytes", "f" * 64)
    with pytest.raises(StepFailed, match="its sha256 does not match its name"):
        manifest_of(read_tree(entry), cache=HashCache(tmp_path / "hashes"))


def test_pieces_have_hashes_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"0123456789abcdefghij!")
    found = hash_file(file, piece_size=10)
    assert found.sha256 == hashlib.sha256(b"0123456789abcdefghij!").hexdigest()
    assert found.chunks == tuple(
        hashlib.sha256(piece).hexdigest() for piece in (b"0123456789", b"abcdefghij", b"!")
    )
    file.write_bytes(b"")
    assert hash_file(file).chunks == ()


def test_a_file_is_hashed_once_until_it_changes(make_model: MakeModel, tmp_path: Path) -> None:
    directory, cache = make_model(), HashCache(tmp_path / "hashes")
    tree = read_tree(directory)
    size, read = unhashed(tree, cache), list[int]()
    first = manifest_of(tree, cache=cache, say=read.append)
    assert size == read[-1] == sum(file.size for file in first.files)
    assert unhashed(tree, cache) == 0
    weights = directory / "model-1.safetensors"
    kept = cache.get(Stamp.of(weights))
    assert kept is not None
    assert kept.sha256 in {file.sha256 for file in first.files}
    assert manifest_of(tree, cache=cache) == first
    weights.write_bytes(weights.read_bytes()[::-1])
    assert cache.get(Stamp.of(weights)) is None
    assert manifest_of(read_tree(directory), cache=cache).identity != first.identity


def test_a_file_that_is_gone_by_the_time_it_is_hashed(make_model: MakeModel) -> None:
    directory = make_model()
    tree = read_tree(directory)
    for shard in directory.glob("*.safetensors"):
        shard.unlink()
    with pytest.raises(ClusterctlError) as raised:
        manifest_of(tree)
    assert raised.value.exit_code == StepFailed.exit_code
