"""The architectures for which the formulas were compared with vLLM's own code, and agree.

`scripts/prove_formula.py` writes proven.json.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

PROVEN = Path(__file__).with_name("proven.json")

DRAFTED = "+mtp"  # After an architecture: with the drafter in its own checkpoint

PROVEN_WITHIN = 0.005  # Share of the weights
_TOKENS = 0.0001  # Rounding of whole blocks


@cache
def proven_architectures() -> frozenset[str]:
    """Return the architectures whose weights are within 0.5 % in every compared configuration, and
    whose KV cache holds exactly the same number of tokens."""
    found = json.loads(PROVEN.read_text(encoding="utf-8"))["architectures"]
    return frozenset(
        name
        for name, row in found.items()
        if row["weights_off"] <= PROVEN_WITHIN and row["tokens_off"] <= _TOKENS
    )


def is_proven(architecture: str, *, drafted: bool = False) -> bool:
    """Return whether the formulas hold for models of this architecture; `drafted`: with layers from
    their own checkpoint that propose tokens."""
    return architecture + (DRAFTED if drafted else "") in proven_architectures()
