"""What we brought to a host, noted there: what `down --purge` takes away again."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.engine.step import HostView
from clusterctl.steps.root_script import root_script

MARKER = "/var/lib/clusterctl/engine-packages"
"""Names of the packages that came with the engine, one a line."""

REMEMBER = """\
set -e
mkdir -p "${1%/*}"; touch "$1"
sort -u - "$1" >"$1.new"; mv "$1.new" "$1"
"""


def remember(view: HostView, names: Sequence[str], marker: str = MARKER) -> None:
    """Add names to the marker."""
    text = "".join(f"{name}\n" for name in names)
    root_script(view, REMEMBER, marker, stdin=text.encode(), doing=f"writing {marker}")
