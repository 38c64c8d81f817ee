"""The program of docs/rag.md really retrieves: a real vLLM with real weights."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.vllm.engine import KEY, Engine

pytestmark = pytest.mark.timeout(1200)  # On a busy machine

PAGE = Path(__file__).parents[2] / "docs" / "rag.md"

# What is asked, and the passage that answers it, in other words
ANSWERS = {
    "How do I get my money back?": "Refunds are paid in two weeks to the card you used.",
    "Is the shop open on Sunday?": "We serve customers Monday to Saturday, from nine to six.",
    "The screen stays black": "If the display shows nothing, hold the power button for a while.",
    "Can I take it into the pool?": "The watch is waterproof to a depth of thirty metres.",
    "How long does it run?": "A full battery lasts for five days of normal use.",
    "Who made the first one?": "The company was founded in 1921 by the inventor Ada Brunner.",
    "Send it to Norway": "We deliver to all countries of Scandinavia at no extra cost.",
    "I forgot my password": "To sign in again, ask for a new secret word by email.",
}


def asker(place: Path, **given: str) -> Callable[[str], list[str]]:
    """Return a function that asks by the page's program, and returns the lines that it prints."""
    program, passages = place / "ask.py", place / "handbook.txt"
    (found,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    program.write_text(found)
    passages.write_text("\n\n".join(ANSWERS.values()))

    def ask(question: str) -> list[str]:
        ran = subprocess.run(
            [sys.executable, program, question, passages],
            env={**os.environ, **given},
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.splitlines()

    return ask


def test_each_question_finds_the_passage_that_answers_it(
    engine: Engine, minilm: Path, tmp_path: Path
) -> None:
    with engine.serve(minilm, tmp_path / "log") as served:
        given = {"CLUSTER_URL": served.url, "CLUSTERCTL_API_KEY": KEY, "EMBEDDER": "m"}
        for reranker in ({}, {"RERANKER": "m"}):
            ask = asker(tmp_path, **given, **reranker)
            firsts = [ask(question)[0].removeprefix("- ") for question in ANSWERS]
            assert firsts == list(ANSWERS.values())
