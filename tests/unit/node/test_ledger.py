"""The ledger of versions: a line when something differs, none otherwise."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.node import ledger
from clusterctl.node.ledger import Ledger, node_versions, service_versions
from clusterctl.serving.service import build_service
from clusterctl.transfer.weights.manifest import FILE_NAME
from tests.unit.serving.launches import launch


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_is_written_when_a_version_differs_also_across_restarts(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    for versions in ({"vllm": "1"}, {"vllm": "1"}, {"vllm": "2"}, {"vllm": "1"}):
        Ledger(path, "gpu1").record("node", versions)

    assert [line["versions"] for line in lines(path)] == [
        {"vllm": "1"}, {"vllm": "2"}, {"vllm": "1"},
    ]  # fmt: skip
    assert {line["host"] for line in lines(path)} == {"gpu1"}


def test_it_stays_bounded_and_keeps_what_is_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "_LIMIT", 10_000)
    path = tmp_path / "ledger.jsonl"
    written = Ledger(path, "gpu1")
    for number in range(1000):
        written.record("node", {"vllm": str(number)})

    assert path.stat().st_size < 11_000
    assert lines(path)[-1]["versions"] == {"vllm": "999"}


def test_damage_and_a_missing_directory_stop_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(
        b'\xff\n[]\n{"subject": "node"}\n{"subject": "node", "versions": {"a": "1"}}\n'
    )
    Ledger(path, "gpu1").record("node", {"a": "1"})
    assert len(path.read_bytes().splitlines()) == 4
    Ledger(tmp_path / "away" / "ledger.jsonl", "gpu1").record("node", {})


def test_a_pipe_in_place_of_a_file_stops_nothing(tmp_path: Path) -> None:
    for name in ("ledger.jsonl", FILE_NAME, "config.json"):
        os.mkfifo(tmp_path / name)
    path, document = tmp_path / "ledger.jsonl", build_service(launch())
    Ledger(path, "gpu1").record("node", {"a": "1"})
    document = replace(document, argv=["vllm", "serve", str(tmp_path)])
    assert service_versions(document) == {"model": str(tmp_path), "flags": ""}


def test_a_node_says_what_it_has() -> None:
    found = node_versions("sha256:abc")
    assert found["image"] == "sha256:abc"
    assert {"clusterctl", "kernel", "python"} <= found.keys()
    assert all(found.values())


@pytest.mark.parametrize(
    ("name", "manifest", "revision"),
    [
        ("m", {"origin": "hf:Qwen/Qwen3-8B@0123abc"}, "hf:Qwen/Qwen3-8B@0123abc"),
        ("m", {"origin": ""}, "config.json 44136fa355b3"),
        ("m", None, "config.json 44136fa355b3"),
        (f"models--a--b/snapshots/{'0a' * 20}", None, "0a" * 20),
    ],
)
def test_a_service_says_which_revision_of_its_model_it_has(
    tmp_path: Path, name: str, manifest: dict[str, str] | None, revision: str
) -> None:
    directory = tmp_path / name
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    if manifest is not None:
        (directory / FILE_NAME).write_text(json.dumps(manifest))
    document = build_service(launch("--max-model-len", "512"))
    document = replace(document, argv=[*document.argv[:2], str(directory), *document.argv[3:]])

    found = service_versions(document)

    assert (found["model"], found["revision"]) == (str(directory), revision)
    assert "--max-model-len 512" in found["flags"]
