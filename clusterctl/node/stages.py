"""How far vLLM has come, from the lines it logs while it starts. Pure."""

from __future__ import annotations

import re
from typing import Optional, Tuple

STAGES = ("ray", "weights", "kv-cache", "graphs", "warm-up", "listening")

# Substrings of log lines of vLLM 0.7 to 0.33, where they agree.
_MARKS: Tuple[Tuple[str, Tuple[str, ...]], ...] = (
    ("ray", ("Connecting to existing Ray cluster", "Connected to Ray cluster", "placement group")),
    ("weights", ("Starting to load model", "Loading safetensors", "Loading weights took",
                 "downloading weights", "Loading model weights", "Model loading took")),
    ("kv-cache", ("torch.compile", "Dynamo bytecode", "Available KV cache memory",
                  "KV cache size", "Maximum concurrency for", "Memory profiling")),
    ("graphs", ("Capturing CUDA graph", "Capturing cudagraphs", "Graph capturing finished")),
    ("warm-up", ("init engine (profile", "Compile and warming up", "Warming up", "warm up")),
    ("listening", ("Starting vLLM", "Uvicorn running on", "Application startup complete")),
)  # fmt: skip

# Lines about settings that name things which then do not happen.
_MISLEADING = ("Enforce eager set",)

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

_PREFIX = re.compile(r"^(\([^)]*\)\s*|(DEBUG|INFO|WARNING)\s+[\d-]+\s+[\d:.]+\s*|\[[^\]]*\]\s*)+")


def stage_of(line: str) -> Optional[str]:
    """The stage that `line` belongs to, if it tells."""
    if any(words in line for words in _MISLEADING):
        return None
    for stage, marks in _MARKS:
        if any(mark in line for mark in marks):
            return stage
    return None


def later(current: str, found: str) -> str:
    """The further of two stages: workers on other hosts log late, and a stage never goes back."""
    if current not in STAGES:
        return found
    return STAGES[max(STAGES.index(current), STAGES.index(found))]


def plain(line: str) -> str:
    """A log line without process, time and colours, at most 160 characters."""
    return _PREFIX.sub("", _COLOURS.sub("", line)).strip()[:160]
