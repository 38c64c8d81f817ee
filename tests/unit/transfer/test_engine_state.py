"""What an engine says of itself, read; and how far a host is, written."""

from __future__ import annotations

import io
import json
import tarfile

from clusterctl.transfer.bundle import blob_name, documents
from clusterctl.transfer.chain_link import LinkProgress
from clusterctl.transfer.engine_state import parse_engine_state, settings
from clusterctl.transfer.image_receiver import ImageReceiver, skeleton
from tests.fakes.made_image import layer, made_image

MIB = 1024**2
ENGINE = {
    "version": "26.1.5+dfsg1", "os": "linux", "machine": "x86_64",
    "driver": [["driver-type", "io.containerd.snapshotter.v1"]],
    "security": ["name=seccomp,profile=builtin", "name=rootless"],
}  # fmt: skip
IMAGE = {
    "id": "sha256:1", "tags": ["a:1"], "layers": ["l1", "l2"], "size": 5,
    "config": {"Env": ["A=1"], "Cmd": None, "Hostname": ""},
}  # fmt: skip


def said(*lines: str) -> str:
    first = ("root\t/data/docker", f"engine\t{json.dumps(ENGINE)}")
    return "\n".join([*first, *lines, "disk\t100\t/dev/a", "disk\t50\t/dev/b", ""])


def test_all_of_it() -> None:
    image = f"image\t{json.dumps(IMAGE)}"
    found = parse_engine_state(said(image, image, "digest\tff", "python\tpython3"))
    assert (found.version, found.containerd, found.rootless) == ("26.1.5+dfsg1", True, True)
    assert (found.platform, found.root, found.python) == ("linux/amd64", "/data/docker", "python3")
    assert (found.free, found.cache_free, found.one_disk) == (100 * 1024, 50 * 1024, False)
    assert found.digests == {"sha256:ff"}
    (held,) = found.images
    assert (held.id, held.tags, held.layers) == ("sha256:1", ("a:1",), ("l1", "l2"))
    assert found.tagged("a:1") == held
    assert found.tagged("a") is None
    assert [found.common(layers) for layers in (["l1"], ["l1", "l2", "l3"], ["x", "l2"])] == [
        1,
        2,
        0,
    ]


def test_an_engine_with_nothing() -> None:
    found = parse_engine_state(said())
    assert (found.images, found.digests, found.python) == ((), frozenset(), None)


def test_settings_are_the_same_whether_what_is_empty_is_said_or_not() -> None:
    assert settings({"Env": ["A=1"], "Cmd": [], "Tty": False}) == settings({"Env": ["A=1"]})
    assert settings({"Env": ["A=1"]}) != settings({"Env": ["A=2"]})
    assert settings(None) == settings({})


def test_progress_says_how_much_how_fast_how_long_and_from_whom() -> None:
    at_work = LinkProgress("gpu2", 300 * MIB, 999, 999, 10.0 * MIB, ("gpu1", "source"))
    assert ImageReceiver.describe(at_work, 420 * MIB) == (
        "300 of its 420 MiB, 10.0 MiB/s, 12 s left, from gpu1, this machine"
    )
    assert ImageReceiver.describe(
        LinkProgress("gpu2", 0, 0, 0, 0.0, waiting="waits for gpu1"), 5 * MIB
    ) == ("0 of its 5 MiB, waits for gpu1")
    done = LinkProgress("gpu2", 500 * MIB, 0, 0, 1.0)
    assert ImageReceiver.describe(done, 420 * MIB) == "420 of its 420 MiB, the engine is unpacking"
    large = LinkProgress("gpu2", 300 * MIB, 0, 0, 10.0 * MIB, ("source",))
    assert ImageReceiver.describe(large, 2847 * MIB).startswith("0.29 of its 2.78 GiB, 10.0 MiB/s")


def test_an_archive_holds_the_layers_that_are_sent_and_names_them_all() -> None:
    image = made_image(layer("base", b"b" * 5000), layer("top", b"t"))
    top = image.content.layers[1]
    data = skeleton(image.content, image.config, {top.digest: "/var/cache/top"})
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        names = tar.getnames()
        (listed,) = json.load(tar.extractfile("manifest.json") or io.BytesIO())
    config = blob_name(image.content.config.digest)
    members = documents([image.content], named=False)
    assert names == [*members, config, f"blobs/sha256/{top.hex}"]
    assert listed["Layers"] == [f"blobs/sha256/{blob.hex}" for blob in image.content.layers]
    assert listed["RepoTags"] is None, "it gets its name once it was looked at"


def test_a_skeleton_leads_to_the_files_of_the_host() -> None:
    image = made_image(layer("base", b"b"))
    (only,) = image.content.layers
    data = skeleton(image.content, image.config, {only.digest: "/var/cache/x"})
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        link = tar.getmember(f"blobs/sha256/{only.hex}")
        assert (link.issym(), link.linkname) == (True, "/var/cache/x")
