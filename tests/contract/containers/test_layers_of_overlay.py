"""Layers read out of a real overlay2 engine: what they were, byte for byte, and no others."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from clusterctl.transfer.engine_image import overlay_image
from clusterctl.transfer.engine_state import inspect_engine
from tests.contract.containers.dockerd import Engine
from tests.contract.containers.newer_engine import WITH_NEWER_ENGINE
from tests.fakes.made_image import REFERENCE, MadeImage, layer, made_image

pytestmark = [pytest.mark.dockerd, WITH_NEWER_ENGINE]

NAMES = ("plain", 'quo"te', "umläut", "tab\tand <angle> & more", "back\\slash", "x" * 180)


def awkward() -> bytes:
    """A layer with all that tars have: odd names, links, modes, an empty file, a whiteout."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number, name in enumerate(NAMES):
            entry = tarfile.TarInfo(f"etc/{name}")
            entry.size, entry.mode, entry.uid = 700 * number, 0o4751, 1000 + number
            tar.addfile(entry, io.BytesIO(os.urandom(entry.size)))
        hard, soft = tarfile.TarInfo("etc/hard"), tarfile.TarInfo("etc/soft")
        hard.type, hard.linkname = tarfile.LNKTYPE, "etc/plain"
        soft.type, soft.linkname = tarfile.SYMTYPE, "/etc/shadow"
        for entry in (hard, soft, tarfile.TarInfo(".wh.base")):
            tar.addfile(entry)
    return buffer.getvalue()


@pytest.fixture
def image(engine: Engine) -> MadeImage:
    made = made_image(layer("base", os.urandom(300_000)), awkward())
    engine.docker("load", stdin=made.archive())
    engine.driver().tag(made.content.config.digest, REFERENCE)
    return made


def test_a_layer_comes_out_as_it_went_in(engine: Engine, image: MadeImage, tmp_path: Path) -> None:
    driver, top = engine.driver(), image.content.diff_ids[1]
    stock = inspect_engine(driver)
    held = stock.tagged(REFERENCE)
    assert held is not None
    found = overlay_image(driver, stock, held, REFERENCE, str(tmp_path), [top], lambda _: None)
    assert found is not None
    assert found.content.diff_ids == image.content.diff_ids
    assert found.content.config.digest == image.content.config.digest
    assert [blob.size for blob in found.content.layers] == [
        len(image.blobs[blob.digest]) for blob in image.content.layers
    ]
    assert Path(found.paths[top]).read_bytes() == image.blobs[top]
    assert found.paths.keys() == {top, image.content.config.digest}
    config = Path(found.paths[image.content.config.digest]).read_bytes()
    assert f"sha256:{hashlib.sha256(config).hexdigest()}" == image.content.config.digest


def test_a_layer_whose_files_were_changed_is_left_to_docker_save(
    engine: Engine, image: MadeImage, tmp_path: Path
) -> None:
    driver = engine.driver()
    stock = inspect_engine(driver)
    held = stock.tagged(REFERENCE)
    assert held is not None
    files = Path(stock.root).glob("overlay2/*/diff/etc/back*")
    newest = max(files, key=lambda path: path.stat().st_ctime)
    newest.write_bytes(bytes(newest.stat().st_size))
    told = overlay_image(
        driver, stock, held, REFERENCE, str(tmp_path), image.content.diff_ids, lambda _: None
    )
    assert told is None
    engine.docker("rmi", "-f", held.id)


def test_another_store_is_left_to_docker_save(newer_engine: Engine, tmp_path: Path) -> None:
    made = made_image(layer("base", b"1"))
    driver = newer_engine.driver()
    newer_engine.docker("load", stdin=made.archive())
    stock = inspect_engine(driver)
    told = overlay_image(
        driver, stock, stock.images[0], REFERENCE, str(tmp_path), [], lambda _: None
    )
    assert told is None
