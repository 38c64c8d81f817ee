"""Each test that docs/claims.md names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROOF = re.compile(r"`((?:lab|machines|contract|unit|gpu)[/\w]*(?:\.py)?(?:::\w+)?)`")


def test_every_claim_names_tests_that_exist() -> None:
    page = (ROOT / "docs/claims.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 20

    for row in rows:
        proofs = PROOF.findall(row.rsplit("|", 2)[1])
        assert proofs, row
        for proof in proofs:
            place, _, name = proof.partition("::")
            path = ROOT / "tests" / place
            assert path.exists(), proof
            assert not name or f"def {name}(" in path.read_text(), proof
