"""The documentation builds as a site, strictly: every link and anchor exists."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_documentation_builds_as_a_site(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site/search/search_index.json").stat().st_size > 100_000

    page = (tmp_path / "site/commands.html").read_text()
    assert "clusterctl" in page
    assert 'src="http' not in page, "a page loads nothing from elsewhere"
