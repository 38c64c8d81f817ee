"""Builds whose downloads fail: tried again, from nothing, and not for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from clusterctl.errors import StepFailed
from clusterctl.lab import base
from clusterctl.lab.base import AptSource
from clusterctl.lab.requirements import LabUnavailable
from tests.fakes.ports import port_of, reserved


@pytest.fixture
def source() -> Iterator[AptSource]:
    """A server that answers, though it has nothing."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield AptSource(f"http://127.0.0.1:{server.server_port}/debian", "bookworm", ("main",))
    server.shutdown()
    server.server_close()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Two builds that leave half a tree, and one that works: what each found there."""
    found: list[list[str]] = []

    def build(argv: Sequence[str], *, log: Path) -> None:
        tree = Path(argv[-2])
        found.append([path.name for path in tree.iterdir()] if tree.exists() else [])
        tree.mkdir(exist_ok=True)
        (tree / "half").touch()
        if len(found) < 3:
            raise StepFailed("`debootstrap` ended with status 1")

    monkeypatch.setattr(base, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(base, "run_build", build)
    return found


def test_a_tree_whose_download_failed_is_made_anew(
    failing: list[list[str]], source: AptSource, tmp_path: Path
) -> None:
    base.debootstrap(tmp_path / "tree", source, ("sudo",))
    assert failing == [[], [], []], "each try begins with nothing"


def test_a_source_out_of_reach_is_told_at_once(failing: list[list[str]], tmp_path: Path) -> None:
    with reserved() as nobody:
        silent = AptSource(f"http://127.0.0.1:{port_of(nobody)}/debian", "bookworm", ("main",))
        with pytest.raises(LabUnavailable) as caught:
            base.debootstrap(tmp_path / "tree", silent, ("sudo",))
    assert "does not answer: Connection refused" in caught.value.summary
    assert len(failing) == 1


def test_the_proxy_that_does_not_answer_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with reserved() as nobody:
        port = port_of(nobody)
        monkeypatch.setenv("http_proxy", f"http://user:secret@127.0.0.1:{port}")
        why = base.out_of_reach("http://deb.example/debian")
    assert why is not None
    assert why.startswith(f"deb.example does not answer through the proxy 127.0.0.1:{port}: ")
    assert "secret" not in why


def test_a_server_that_has_nothing_is_in_reach(source: AptSource) -> None:
    assert base.out_of_reach(source.uri) is None


def test_three_failures_are_enough(failing: list[list[str]], tmp_path: Path) -> None:
    tries = 0

    def build() -> None:
        nonlocal tries
        tries += 1
        raise StepFailed("no such server")

    with pytest.raises(StepFailed, match="no such server"):
        base.persistently(build)
    assert tries == 3
