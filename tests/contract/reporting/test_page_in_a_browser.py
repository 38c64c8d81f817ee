"""The page of `report` in a real Chromium: it draws what its JSON says, runs nothing that a host
says, and loads nothing."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from clusterctl.reporting.page import page

EVIL = (
    "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
    "<a href='javascript:alert(3)'>a</a>"
)


def percentiles(p50: float) -> dict[str, float]:
    return {"p50": p50, "p95": 2 * p50, "p99": 3 * p50}


def measured(concurrency: int, tokens: float) -> dict[str, Any]:
    latencies = {name: percentiles(5.0 * concurrency) for name in ("ttft_ms", "tpot_ms", "itl_ms")}
    return {
        "service": "chat", "versions": {"vllm": "0.32.0"}, "fingerprint": "f",
        "load": {"concurrency": concurrency, "rate": None, "prompt": 256, "output": 128},
        "figures": {"tokens_per_s": tokens, **latencies},
    }  # fmt: skip


TOKENS = [90.5, 310.0, 920.25, 2600.0]
PAGES = {
    **measured(8, 60.0),
    "service": "ocr",
    "figures": {"unit": "pages", "per": "min", "units_per_s": 0.5, "e2el_ms": percentiles(900.0)},
}
REPORT: dict[str, Any] = {
    "cluster": "demo", "time": 1.8e9, "healthy": False, "problems": [f"gpu2: {EVIL}"],
    "versions": {"Ray": "2.60.0", "vLLM": "0.32.0"}, "image": "i", "fabric": None,
    "hosts": [
        {"name": name, "role": "worker", "address": "10.0.0.1", "ray": "up", "gpus": [EVIL],
         "control": "eth0", "nccl": ["eth1"], "gloo": "eth1", "rdma": [], "mbit_s": None}
        for name in ("gpu1", "gpu2")
    ],
    "pairs": [
        {"lane": "control", "from": "gpu1", "to": "gpu2", "mbit_s": 9412.0, "ms": 0.21},
        {"lane": "control", "from": "gpu2", "to": "gpu1", "mbit_s": 941.0, "ms": 0.35},
    ],
    "pairs_note": "",
    "memory": [
        {"service": "chat", "rank": 0, "host": "gpu1", "gpu": "H200", "memory_gib": 139.8,
         "predicted": {"weights": 70.5, "KV cache": 40.2},
         "reported": {"weights": 71.5, "KV cache": None}},
    ],
    "bench": [
        *(measured(at, tokens) for at, tokens in zip((1, 4, 16, 64), TOKENS, strict=True)), PAGES
    ],
    "timeline": [
        {"time": 1.8e9 + 60 * at, "host": "gpu1", "subject": EVIL, "kind": kind, "text": EVIL}
        for at, kind in enumerate(("phase", "recovered", "fault", "fault", "version"))
    ],
}  # fmt: skip


@dataclass
class Drawn:
    """What the SVGs of one chart show."""

    labels: list[str] = field(default_factory=list)  # Of cells and bars
    points: list[tuple[float, float]] = field(default_factory=list)  # Pixels, from top left


class Charts(HTMLParser):
    """The charts of a page as the browser had drawn it, by their ids, and all its elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: dict[str, Drawn] = {}
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.elements.append((tag, given))
        style = given.get("class") or ""
        if style.startswith("chart"):
            self.found[given.get("id") or ""] = Drawn()
        if not self.found:
            return
        chart = self.found[list(self.found)[-1]]
        self._in_cell = style == "heatmap-label" or (self._in_cell and tag == "text")
        if tag == "text" and (self._in_cell or style.startswith("bartext")):
            chart.labels.append(given.get("data-unformatted") or "")
        if style == "point" and (
            at := re.match(r"translate\(([\d.-]+),([\d.-]+)\)", given.get("transform") or "")
        ):
            chart.points.append((float(at[1]), float(at[2])))


@pytest.fixture(scope="module")
def browsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Charts, str]:
    """The page as drawn, and what Chromium said."""
    home = tmp_path_factory.mktemp("browser")
    file = home / "report.html"
    file.write_text(page(REPORT))
    done = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={home}/data",
         "--enable-logging=stderr", "--virtual-time-budget=20000", "--dump-dom", file.as_uri()],
        capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    return Charts(done.stdout), done.stderr


def test_the_console_has_no_error_and_all_is_drawn(browsed: tuple[Charts, str]) -> None:
    charts, said = browsed
    assert "CONSOLE" not in said, said
    assert ("body", {"data-drawn": "yes"}) in charts.elements
    assert list(charts.found) == [
        "pairs-0", "pairs-1", "memory-bars",
        "bench-at-once-tokens", "bench-at-once-ttft_ms", "bench-at-once-tpot_ms",
        "bench-at-once-pages", "bench-at-once-e2el_ms-pages", "timeline-events",
    ]  # fmt: skip


def test_cells_bars_and_points_are_those_of_the_json(browsed: tuple[Charts, str]) -> None:
    drawn = browsed[0].found
    assert sorted(filter(None, drawn["pairs-0"].labels)) == ["941", "9412"]
    assert sorted(filter(None, drawn["pairs-1"].labels)) == ["0.210", "0.350"]
    assert sorted(filter(None, drawn["memory-bars"].labels)) == ["40.2", "70.5", "71.5"]
    assert len(drawn["timeline-events"].points) == len(REPORT["timeline"])
    # Heights are linear in tokens/s, and places in the logarithm of the requests.
    points = drawn["bench-at-once-tokens"].points
    assert len(points) == len(TOKENS)
    scale = (points[-1][1] - points[0][1]) / (TOKENS[-1] - TOKENS[0])
    for (x, y), tokens, place in zip(points, TOKENS, range(4), strict=True):
        assert y - points[0][1] == pytest.approx(scale * (tokens - TOKENS[0]), abs=0.1)
        assert x - points[0][0] == pytest.approx(
            (points[-1][0] - points[0][0]) * place / 3, abs=0.1
        )
    assert scale < 0


def test_what_hosts_say_is_text_and_nothing_is_loaded(browsed: tuple[Charts, str]) -> None:
    for tag, given in browsed[0].elements:
        assert tag not in {"img", "iframe", "link", "a"}, given
        assert not [name for name in given if name.startswith("on")], given
        assert not (given.get("src") or "").startswith(("http", "/", "x")), given
    scripts = [given for tag, given in browsed[0].elements if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "document"}, {}, {}]


def test_a_page_without_anything_says_so(tmp_path: Path) -> None:
    empty = {**REPORT, "hosts": [], "pairs": [], "memory": [], "bench": [], "timeline": []}
    text = page(empty)
    assert "clusterctl bench --sweep" in text
    assert len(text) < 6_000_000
