"""Images between two real Docker engines: straight, through this machine, from an archive."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.containers import direct_transfer
from clusterctl.containers.archive import open_archive
from clusterctl.containers.driver import Image
from clusterctl.containers.image_copy import copy, insist_on_room, settle
from clusterctl.containers.image_stream import load
from clusterctl.containers.meter import Meter
from clusterctl.errors import RequirementsNotMet, StepFailed
from tests.contract.containers.conftest import Engine

pytestmark = pytest.mark.dockerd

LOCAL = "127.0.0.1"


def nothing(_: str) -> None:
    return None


@pytest.fixture
def image(
    engine: Engine, second_engine: Engine, import_busybox: Callable[[Engine, str], str]
) -> Image:
    """On the first engine only."""
    import_busybox(engine, "clusterctl-test/copied:1")
    for name in ("clusterctl-test/copied:1", "clusterctl-test/copied:2"):
        second_engine.driver().remove_image(name)
    found = engine.driver().image("clusterctl-test/copied:1")
    assert found is not None
    return found


def test_straight_from_host_to_host(engine: Engine, second_engine: Engine, image: Image) -> None:
    said: list[str] = []
    reference = "clusterctl-test/copied:2"
    copy(engine.driver(), second_engine.driver(), image, reference, LOCAL, said.append)
    arrived = second_engine.driver().image(reference)
    assert arrived is not None
    assert arrived.layers == image.layers
    assert arrived.id == image.id
    assert not any("this machine" in line for line in said)


def test_through_this_machine_when_the_source_cannot_be_reached(
    engine: Engine, second_engine: Engine, image: Image
) -> None:
    """203.0.113.1 is nobody's address (RFC 5737): the sender cannot even listen on it."""
    said: list[str] = []
    reference = "clusterctl-test/copied:2"
    copy(engine.driver(), second_engine.driver(), image, reference, "203.0.113.1", said.append)
    arrived = second_engine.driver().image(reference)
    assert arrived is not None
    assert arrived.layers == image.layers
    assert any("through this machine" in line for line in said)


@pytest.fixture
def no_python(tmp_path: Path) -> str:
    """A PATH with what hosts have, and no python3."""
    for program in ("sh", "bash", "cat", "docker", "timeout", "env"):
        found = shutil.which(program)
        assert found
        (tmp_path / program).symlink_to(found)
    return f"PATH={tmp_path}"


def test_a_source_without_python_uses_the_images_own(
    engine: Engine,
    second_engine: Engine,
    import_python: Callable[[Engine, str], str],
    no_python: str,
) -> None:
    identifier = import_python(engine, "clusterctl-test/python:1")
    second_engine.driver().remove_image(identifier)
    image = engine.driver().image(identifier)
    assert image is not None
    loaded = direct_transfer.transfer(
        engine.driver(no_python), second_engine.driver(), image, LOCAL, Meter(nothing, None)
    )
    arrived = second_engine.driver().image(loaded)
    assert arrived is not None
    assert arrived.layers == image.layers
    assert engine.docker("ps", "-q") == "", "the sender's container is gone"


def test_a_receiver_without_python_uses_bash(
    engine: Engine, second_engine: Engine, image: Image, no_python: str
) -> None:
    receiver = second_engine.driver(no_python)
    loaded = direct_transfer.transfer(engine.driver(), receiver, image, LOCAL, Meter(nothing, None))
    assert second_engine.driver().image(loaded) is not None


def test_an_image_that_vanished_is_the_sources_fault(
    engine: Engine, second_engine: Engine, image: Image
) -> None:
    gone = Image("sha256:" + "0" * 64, image.layers, image.size)
    with pytest.raises(StepFailed, match="gpu1") as raised:
        direct_transfer.transfer(
            engine.driver(), second_engine.driver(), gone, LOCAL, Meter(nothing, None)
        )
    assert gone.id in str(raised.value.detail)


def test_an_archive_is_described_and_loaded(
    engine: Engine, second_engine: Engine, image: Image, tmp_path: Path
) -> None:
    path = tmp_path / "image.tar"
    engine.docker("save", "-o", str(path), "clusterctl-test/copied:1")
    archive = open_archive(path)
    assert archive.layers == image.layers
    assert archive.tags == ("clusterctl-test/copied:1",)
    receiver = second_engine.driver()
    name = load(receiver, archive.chunks(), archive.unpacked, Meter(nothing, archive.size))
    settle(receiver, name, "clusterctl-test/copied:2", archive.layers)
    assert second_engine.docker("images", "-q", "clusterctl-test/copied:2")


def test_a_compressed_archive_is_loaded_as_it_is(
    engine: Engine, second_engine: Engine, image: Image, tmp_path: Path
) -> None:
    path = tmp_path / "image.tar"
    engine.docker("save", "-o", str(path), image.id)
    subprocess.run(["gzip", str(path)], check=True)
    archive = open_archive(tmp_path / "image.tar.gz")
    assert archive.layers is None
    receiver = second_engine.driver()
    name = load(receiver, archive.chunks(), archive.unpacked, Meter(nothing, archive.size))
    assert name == image.id, "saved by ID, it arrives without a name"
    settle(receiver, name, "clusterctl-test/copied:2", None)
    assert receiver.image("clusterctl-test/copied:2") is not None


def test_what_is_no_image_is_refused_by_the_engine(second_engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match="gpu2"):
        load(second_engine.driver(), [b"x" * 4096] * 64, 1, Meter(nothing, None))


def test_a_disk_that_is_too_small_is_told_with_sizes(second_engine: Engine) -> None:
    with pytest.raises(RequirementsNotMet, match=r"931\.3 GiB needs .* GiB free"):
        insist_on_room(second_engine.driver(), 10**12)


@pytest.mark.parametrize("content", [b"", b"not a tar", b"\0" * 10240])
def test_a_file_that_is_no_archive_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    path.write_bytes(content)
    with pytest.raises(RequirementsNotMet, match=r"is not a docker archive: .*image\.tar"):
        open_archive(path)


def test_an_archive_of_two_images_is_refused(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps([{"Config": "a"}, {"Config": "b"}]))
    with tarfile.open(tmp_path / "two.tar", "w") as tar:
        tar.add(manifest, "manifest.json")
    with pytest.raises(RequirementsNotMet, match="not a docker archive"):
        open_archive(tmp_path / "two.tar")


def test_an_archive_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequirementsNotMet, match="No such file"):
        open_archive(tmp_path / "none.tar")
