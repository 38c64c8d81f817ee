"""`image ls`: one image is one row, whatever it is called on which host."""

from __future__ import annotations

from dataclasses import replace

from clusterctl.cli.image import _list_lines
from clusterctl.commands.image_list import ImageList, held
from clusterctl.errors import Unreachable
from tests.fakes.container_engine import foreign, image

DIGEST = f"sha256:{'a' * 64}"


def test_an_image_is_one_row_with_its_hosts_names_and_use() -> None:
    vllm = replace(image("a", "vllm:1", layers=("x", "y")), digests=(f"vllm@{DIGEST}",), size=25)
    other_id = replace(vllm, id="b", tags=("vllm:1", "vllm:latest"), digests=())
    old = replace(image("old", "old:1"), size=99)
    running = replace(foreign("clusterctl-demo", cluster="demo"), image="b")
    found = held({"gpu1": ([vllm], []), "gpu2": ([other_id, old], [running])})
    assert [(sorted(one.names), one.hosts, one.used) for one in found] == [
        (["vllm:1", "vllm:latest"], ["gpu1", "gpu2"], ["gpu2"]),
        (["old:1"], ["gpu2"], []),
    ]
    assert found[0].digests == {f"vllm@{DIGEST}"}

    lines = _list_lines(ImageList(found, ()), 2)
    assert lines == [
        *("vllm:1", "vllm:latest", "  size    25 B unpacked", "  on      all 2 hosts"),
        *("  in use  gpu2", f"  {DIGEST}", "old:1", "  size  99 B unpacked", "  on    gpu2"),
    ]
    assert max(map(len, lines)) <= 80


def test_a_host_that_does_not_answer_is_not_one_without_images() -> None:
    assert _list_lines(ImageList((), ()), 1) == ["no host has an image"]
    assert _list_lines(ImageList((), (Unreachable("no answer"),)), 1) == []
