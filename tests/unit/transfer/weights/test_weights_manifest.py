"""A manifest reads back as it was written, and is believed only when it is whole."""

from __future__ import annotations

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
MODEL = Manifest("m", (SMALL, LARGE), (WeightLink("snapshots/1/x", "../../blobs/x"),), "hf:o/m@1")


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
    renamed = Manifest("n", (LARGE, SMALL), MODEL.links)
    assert renamed.identity == MODEL.identity
    assert Manifest("m", (SMALL,), MODEL.links).identity != MODEL.identity


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
