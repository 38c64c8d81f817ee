"""Lists the tables of what others publish whose state is older than 90 days, with their sources;
exits with 1 if there are any.

    python -m scripts.table_ages
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

TABLES = Path(__file__).parents[1] / "clusterctl/published"
DAYS = 90


def old(directory: Path, today: date) -> Iterator[str]:
    """Yield a line for each old table in `directory`. Raises LookupError or ValueError for a table
    without source or date."""
    for file in sorted(directory.glob("*.json")):
        document = json.loads(file.read_text())
        age = (today - date.fromisoformat(document["date"])).days
        if age > DAYS:
            yield f"{file.name}  {age} days  {document['source']}"


if __name__ == "__main__":
    found = list(old(TABLES, datetime.now(UTC).date()))
    print("\n".join(found))
    sys.exit(1 if found else 0)
