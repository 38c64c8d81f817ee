"""Records on a host of what clusterctl installed there, which `down --purge` removes again."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.engine.step import HostView
from clusterctl.steps.root_script import root_script

# Files with one name per line
MARKER = "/var/lib/clusterctl/engine-packages"  # packages installed with the engine
IMAGES = "/var/lib/clusterctl/images"  # references of images that clusterctl put there

REMEMBER = """\
set -e
mkdir -p "${1%/*}"; touch "$1"
sort -u - "$1" >"$1.new"; mv "$1.new" "$1"
"""

FORGET = """\
[ -f "$1" ] || exit 0
grep -vxF -- "$2" "$1" >"$1.new"
if [ -s "$1.new" ]; then mv "$1.new" "$1"
else rm -f "$1" "$1.new"; rmdir "${1%/*}" 2>/dev/null; fi
exit 0
"""


def record_installed(view: HostView, names: Sequence[str], marker: str = MARKER) -> None:
    """Add names to the marker. Call it before installing them, so that an interrupted installation
    can be removed."""
    text = "".join(f"{name}\n" for name in names)
    root_script(view, REMEMBER, marker, stdin=text.encode(), doing=f"writing {marker}")


def installed_by_us(view: HostView, marker: str = MARKER) -> list[str]:
    """Return the names in the marker."""
    return (view.transport.read_file(marker) or b"").decode().split()


def forget_installed(view: HostView, name: str, marker: str) -> None:
    """Remove a name from the marker: if it is installed again later, that is not by clusterctl."""
    root_script(view, FORGET, marker, name, doing=f"writing {marker}")
