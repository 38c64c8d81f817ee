"""Whatever happens to an archive, a user gets words, or the right bytes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterctl.errors import ClusterctlError, RequirementsNotMet
from clusterctl.transfer.archive_image import archive_image
from clusterctl.transfer.blob_store import BlobStore
from tests.fakes.image_archives import MadeImage, layer_tar, nested_layout, sha256, tar_of

SMALL = MadeImage("acme/vllm:1", (layer_tar("base", 700), layer_tar("ray", 30)))
FORMS = (
    SMALL.legacy(),
    SMALL.layout(),
    nested_layout("acme/vllm:1", SMALL),
    gzip.compress(SMALL.legacy(), mtime=0),
)


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    form=st.sampled_from(FORMS),
    at=st.floats(0, 1, exclude_max=True),
    junk=st.binary(max_size=6),
    cut=st.booleans(),
)
def test_damage_is_said_or_does_no_harm(
    tmp_path_factory: pytest.TempPathFactory, form: bytes, at: float, junk: bytes, cut: bool
) -> None:
    where = int(at * len(form))
    rest = b"" if cut else form[where + len(junk) :]
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "image.tar").write_bytes(form[:where] + junk + rest)
    read_or_fail(folder)


def read_or_fail(folder: Path) -> None:
    held: dict[str, bytes] = {}
    with suppress(ClusterctlError):
        store = BlobStore(folder / "cache")
        found = archive_image(
            folder / "image.tar", store, reference=None, platform="linux/amd64", say=lambda _: None
        )
        held = {blob.digest: b"".join(found.open(blob)) for blob in found.content.blobs}
    assert all(sha256(data) == digest for digest, data in held.items())


def changed(document: Any) -> Iterator[Any]:
    """The document with each of its values in turn replaced by each of REPLACEMENTS."""
    yield from REPLACEMENTS
    if not isinstance(document, dict | list):
        return
    for key in document if isinstance(document, dict) else range(len(document)):
        for other in changed(document[key]):
            copied = document.copy()
            copied[key] = other
            yield copied


REPLACEMENTS: tuple[Any, ...] = (None, -1, "x", [1], {"a": 1})


@pytest.mark.parametrize("name", ["index.json", "manifest.json", "manifest", "config"])
def test_documents_with_other_values_than_they_should_have(tmp_path: Path, name: str) -> None:
    """Digests are right, as if somebody's program had written it so."""
    for files in documents(name):
        (tmp_path / "image.tar").write_bytes(tar_of(files))
        read_or_fail(tmp_path)


def test_a_layer_that_would_become_another_file_is_refused(tmp_path: Path) -> None:
    """A docker archive's layers are named by its config alone."""
    config = json.loads(SMALL.config)
    config["rootfs"]["diff_ids"][1] = "sha256:../../../../etc/cron.d/x"
    layers = {f"blobs/sha256/{sha256(one)[7:]}": one for one in SMALL.layers}
    listed = {"Config": "config", "RepoTags": [SMALL.name], "Layers": list(layers)}
    files = {"manifest.json": packed([listed]), "config": packed(config), **layers}
    (tmp_path / "image.tar").write_bytes(tar_of(files))
    with pytest.raises(RequirementsNotMet, match="is not a sha256 digest"):
        archive_image(
            tmp_path / "image.tar",
            BlobStore(tmp_path / "cache"),
            reference=None,
            platform=None,
            say=lambda _: None,
        )


def documents(name: str) -> Iterator[dict[str, bytes]]:
    layers = {f"blobs/sha256/{sha256(one)[7:]}": one for one in SMALL.layers}
    listed = {"Config": "config", "RepoTags": [SMALL.name], "Layers": list(layers)}
    if name == "manifest.json":
        for other in changed([listed]):
            yield {"manifest.json": packed(other), "config": SMALL.config, **layers}
        return
    if name == "config":
        for other in changed(json.loads(SMALL.config)):
            yield {"manifest.json": packed([listed]), "config": packed(other), **layers}
    elif name == "manifest":
        for other in changed(json.loads(SMALL.manifest)):
            yield with_manifest(packed(other), layers)
    else:
        for other in changed({"schemaVersion": 2, "manifests": [SMALL.entry]}):
            yield {**SMALL.blobs, "index.json": packed(other)}


def with_manifest(data: bytes, layers: dict[str, bytes]) -> dict[str, bytes]:
    entry = {**SMALL.entry, "digest": sha256(data), "size": len(data)}
    index = packed({"schemaVersion": 2, "manifests": [entry]})
    return {**SMALL.blobs, **layers, "index.json": index, f"blobs/sha256/{sha256(data)[7:]}": data}


def packed(value: object) -> bytes:
    return json.dumps(value).encode()
