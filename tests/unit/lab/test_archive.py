"""Archives for `docker load`: complete, and the same bytes for the same trees."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from pathlib import Path

import pytest

from clusterctl.lab.image import write_archive, write_layer
from clusterctl.lab.paths import cached_directory, content_key, files_key, prune


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for directory in ("etc", "proc/1", "tmp", "opt/venv/bin"):
        (root / directory).mkdir(parents=True)
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    (root / "opt/venv/bin/python").write_text("#!/bin/sh\n")
    (root / "opt/venv/bin/python").chmod(0o755)
    (root / "opt/link").symlink_to("venv/bin/python")
    (root / "opt/same").hardlink_to(root / "etc/hosts")
    (root / "tmp/left").write_text("by a build")
    (root / "proc/1/status").write_text("not part of an image")
    return root


def test_a_layer_holds_the_tree_without_what_a_running_system_fills_in(
    tree: Path, tmp_path: Path
) -> None:
    layer = write_layer(tree, tmp_path / "layer.tar", "a test")
    with tarfile.open(layer.file) as tar:
        members = {member.name: member for member in tar}
    assert {"etc", "etc/hosts", "tmp", "proc", "opt/link", "opt/same"} <= members.keys()
    assert not {"tmp/left", "proc/1", "proc/1/status"} & members.keys()
    assert members["opt/venv/bin/python"].mode == 0o755
    assert members["opt/link"].linkname == "venv/bin/python"
    assert members["opt/same"].islnk()
    assert layer.digest == hashlib.sha256(layer.file.read_bytes()).hexdigest()


def test_the_same_tree_gives_the_same_layer_at_any_time(tree: Path, tmp_path: Path) -> None:
    first = write_layer(tree, tmp_path / "first.tar", "a test")
    for path in tree.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    assert write_layer(tree, tmp_path / "second.tar", "a test").digest == first.digest


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device file")
def test_a_deletion_in_an_overlay_becomes_one_in_the_layer(tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    upper.mkdir()
    os.mknod(upper / "gone", 0o020000, os.makedev(0, 0))
    layer = write_layer(upper, tmp_path / "layer.tar", "a test")
    with tarfile.open(layer.file) as tar:
        assert tar.getnames() == [".wh.gone"]


def test_an_archive_names_its_config_and_layers_by_their_digests(
    tree: Path, tmp_path: Path
) -> None:
    layer = write_layer(tree, tmp_path / "layer.tar", "a test")
    archive = tmp_path / "image.tar"
    write_archive(archive, "a/image:1", (layer,), {"PATH": "/bin"})
    with tarfile.open(archive) as tar:
        (entry,) = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
        config = tar.extractfile(entry["Config"]).read()  # type: ignore[union-attr]
        (name,) = entry["Layers"]
        packed = tar.extractfile(name).read()  # type: ignore[union-attr]
    assert entry["Config"] == f"{hashlib.sha256(config).hexdigest()}.json"
    assert json.loads(config)["rootfs"]["diff_ids"] == [f"sha256:{layer.digest}"]
    assert json.loads(config)["config"]["Env"] == ["PATH=/bin"]
    assert hashlib.sha256(packed).hexdigest() == layer.digest
    assert entry["RepoTags"] == ["a/image:1"]


def test_a_key_depends_on_every_part_and_on_their_borders(tmp_path: Path) -> None:
    assert content_key("ab", "c") != content_key("a", "bc")
    assert content_key("ab", "c") == content_key(b"ab", b"c")
    file = tmp_path / "file"
    file.write_text("text")
    before = files_key(tmp_path, [file])
    file.chmod(0o755)
    assert files_key(tmp_path, [file]) != before


def test_a_build_that_fails_leaves_nothing_that_looks_complete(tmp_path: Path) -> None:
    place = tmp_path / "kind" / "key"

    def interrupted(directory: Path) -> None:
        (directory / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_directory(place, interrupted)
    assert not place.exists()
    assert cached_directory(place, lambda directory: (directory / "whole").touch())
    assert [entry.name for entry in place.iterdir()] == ["whole"]
    assert not cached_directory(place, lambda _: pytest.fail("built twice"))


def test_pruning_keeps_what_is_current(tmp_path: Path) -> None:
    for name in ("old", "older.partial", "current"):
        (tmp_path / name).mkdir()
    (tmp_path / "old.log").touch()
    prune(tmp_path, keep="current")
    assert [entry.name for entry in tmp_path.iterdir()] == ["current"]
