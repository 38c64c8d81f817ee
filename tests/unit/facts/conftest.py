"""Captured probes. `debian-12-*`, `busybox*` and `ubuntu-24.04-2-gpus` are what real hosts said;
the others were put together from the formats that the tools document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.facts.model import HostFacts
from clusterctl.facts.parse import Probe, parse_probe
from clusterctl.facts.sections import split_sections

CAPTURES = Path(__file__).parent / "captures"
RECEIVED = 1795262400.0
"""The operator's clock when the captures came in: 2026-11-21 12:00:00 UTC."""


@pytest.fixture
def capture_text() -> Callable[[str], str]:
    return lambda name: (CAPTURES / f"{name}.txt").read_text()


@pytest.fixture
def captured(capture_text: Callable[[str], str]) -> Callable[[str], Probe]:
    def load(name: str) -> Probe:
        answer = split_sections(capture_text(name), "MARK")
        return parse_probe(answer, sudo_error=None, received=RECEIVED)

    return load


@pytest.fixture
def healthy(captured: Callable[[str], Probe]) -> HostFacts:
    """Eight H200, two usable NICs, Docker 29; nothing of ours runs yet."""
    return replace(captured("ubuntu-24.04-8-gpus").facts, listening_ports=(22,))
