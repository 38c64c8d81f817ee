"""Tables of what others publish: each has source and date, and old ones are listed."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from scripts.table_ages import TABLES, old
from scripts.xids import SOURCE, table


@pytest.mark.parametrize("file", sorted(TABLES.glob("*.json")), ids=lambda file: file.stem)
def test_a_table_has_source_and_date(file: Path) -> None:
    document = json.loads(file.read_text())
    assert document["source"].startswith("https://")
    assert date.fromisoformat(document["date"]) <= date.today()


def test_old_tables_are_listed(tmp_path: Path) -> None:
    for name, day in (("old", "2026-01-01"), ("new", "2026-03-01")):
        text = json.dumps({"source": "https://example.org/x", "date": day})
        (tmp_path / f"{name}.json").write_text(text)
    assert list(old(tmp_path, date(2026, 4, 2))) == ["old.json  91 days  https://example.org/x"]


def test_the_xids_are_read_from_the_converted_catalog() -> None:
    text = (
        f"// Generated at 2025-10-29T00:35:32Z. Source: {SOURCE}\n"
        '\t{Code: 1, Mnemonic: "A", Description: "Unused", ImmediateResolution: "IGNORE", X: ""},\n'
        '\t{Code: 62, Mnemonic: "B", Description: "halt\\n(newer)", ImmediateResolution: '
        '"RESET_GPU", X: ""},\n'
    )
    assert json.loads(table(text)) == {
        "source": SOURCE,
        "date": "2025-10-29",
        "xids": {"62": {"what": "halt (newer)", "action": "RESET_GPU"}},
    }
