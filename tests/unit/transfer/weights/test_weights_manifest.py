"""A manifest reads back as it was written, and is believed only when it is whole."""

from __future__ import annotations

import hashlib
import json

import pytest

from clusterctl.transfer.chain_link import PIECE
from clusterctl.transfer.weights.manifest import (
    Manifest,
    WeightFile,
    WeightLink,
    dump,
    in_order,
    parse,
)

SMALL = WeightFile("config.json", 10, 0o644, "a" * 64, ("a" * 64,))
LARGE = WeightFile("a.safetensors", PIECE + 1, 0o644, "b" * 64, ("c" * 64, "d" * 64))
BLOB = WeightFile("blobs/x", 10, 0o755, "f" * 64)
LINK = WeightLink("snapshots/1/x", "../../blobs/x")
MODEL = Manifest("m", (SMALL, BLOB, LARGE), (LINK,), "hf:o/m@1")


def test_it_reads_back_as_written() -> None:
    assert parse(dump(MODEL)) == MODEL
    assert parse(dump(Manifest("empty", ()))) == Manifest("empty", ())


def test_small_files_come_first_then_by_path() -> None:
    other = WeightFile("z.json", 5, 0o644, "e" * 64)
    assert [file.path for file in in_order([LARGE, other, SMALL])] == [
        "config.json",
        "z.json",
        "a.safetensors",
    ]


def test_equal_trees_have_one_identity_whatever_their_name_and_order() -> None:
    renamed = Manifest("n", (LARGE, BLOB, SMALL), MODEL.links)
    assert renamed.identity == MODEL.identity
    assert Manifest("m", (SMALL, BLOB), MODEL.links).identity != MODEL.identity


def test_equal_files_are_brought_once() -> None:
    twin = WeightFile("copy.json", 10, 0o644, SMALL.sha256, SMALL.chunks)
    model = Manifest("m", (SMALL, twin, LARGE))
    assert [blob.hex for blob in model.blobs] == [SMALL.sha256, LARGE.sha256]
    assert model.size == 10 + 10 + PIECE + 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"size": 10', '"size": 10').replace("config.json", "other.json"),
        lambda text: text.replace('"format": 1', '"format": 9'),
        lambda text: text.replace("config.json", "../../etc/passwd"),
        lambda text: text.replace("config.json", "/etc/passwd"),
        lambda text: text.replace('"name": "m"', '"name": "../m"'),
        lambda text: json.dumps(json.loads(text)["files"]),
        lambda _: "",
    ],
)
def test_another_text_is_refused(damage: object) -> None:
    assert callable(damage)
    with pytest.raises(ValueError, match=r"."):
        parse(damage(dump(MODEL)))


def test_a_hash_that_is_none_is_refused() -> None:
    for wrong in ("../" + "a" * 61, "a" * 63):
        with pytest.raises(ValueError, match="is not a sha256"):
            parse(dump(Manifest("m", (WeightFile("config.json", 10, 0o644, wrong),))))


def rewritten(**changes: object) -> str:
    """The text of a manifest whose first file, or link, a host changed, with the right identity."""
    document = json.loads(dump(MODEL))
    for name, value in changes.items():
        where, _, key = name.partition("_")
        (document if where == "model" else document[f"{where}s"][0])[key] = value
    lines = [f"{file['path']}\0{file['sha256']}\n" for file in document["files"]]
    lines += [f"{link['path']}\0-> {link['target']}\n" for link in document["links"]]
    text = "".join(sorted(lines)).encode("utf-8", "surrogatepass")
    document["identity"] = hashlib.sha256(text).hexdigest()
    return json.dumps(document)


def test_a_mode_says_no_more_than_whether_a_file_is_executable() -> None:
    modes = {0o4755: 0o755, 0o6777: 0o755, 0o600: 0o644, 0o666: 0o644, 0o1644: 0o644, -1: 0o755}
    for said, kept in modes.items():
        assert parse(rewritten(file_mode=said)).files[0].mode == kept


@pytest.mark.parametrize(
    "changes",
    [
        {"link_target": "/etc/passwd"},
        {"link_target": "../../../other/config.json"},
        {"link_target": "../../blobs/x\nlink\t/etc\tx"},
        {"link_target": ""},
        {"link_target": "."},
        {"link_target": "x"},
        {"link_target": 7},
        {"link_path": "blobs"},
        {"link_path": "blobs/x"},
        {"link_path": "config.json/x", "link_target": "../blobs/x"},
        {"file_path": "../x"},
        {"file_path": "a/../../x"},
        {"file_path": "./blobs/x"},
        {"file_path": "blobs//y"},
        {"file_path": "blobs/x"},
        {"file_path": "blobs/x.part"},
        {"file_path": "blobs/x/y"},
        {"file_path": ".clusterctl-model.json"},
        {"file_path": "a\x7fb"},
        {"file_path": "a\u2028b"},
        {"file_path": "a\ud800b"},
        {"file_path": ["config.json"]},
        {"file_size": -1},
        {"file_size": 10**4000},
        {"file_size": "9" * 5000},
        {"file_size": None},
        {"file_mode": "x"},
        {"model_name": "../other"},
        {"model_name": ".ssh"},
        {"model_name": "a/b/c/d"},
        {"model_origin": "hf:\x1b[2J"},
        {"model_origin": None},
    ],
    ids=str,
)
def test_nothing_outside_nothing_twice_nothing_hidden(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(rewritten(**changes))


def test_lists_in_lists_without_end_are_no_manifest() -> None:
    for text in ("[" * 100_000, '{"a":' * 100_000, dump(MODEL).replace("10", "[" * 100_000)):
        with pytest.raises(ValueError, match=r"."):
            parse(text)
