"""Which images clusterctl brought to a host: what `down --purge` may take away again."""

from __future__ import annotations

from clusterctl.engine.step import HostView
from clusterctl.steps.engine_marks import REMEMBER
from clusterctl.steps.root_script import root_script

MARKER = "/var/lib/clusterctl/images"
"""References of images that were not on the host before us, one a line."""

READ = 'if [ -f "$1" ]; then cat "$1"; fi'
FORGET = """\
[ -f "$1" ] || exit 0
grep -vxF -- "$2" "$1" >"$1.new"
if [ -s "$1.new" ]; then mv "$1.new" "$1"
else rm -f "$1" "$1.new"; rmdir "${1%/*}" 2>/dev/null; fi
exit 0
"""


def brought(view: HostView, reference: str, *, marker: str = MARKER) -> bool:
    """Whether the image came with us, or began to."""
    return reference in root_script(view, READ, marker, doing=f"reading {marker}").split()


def mark(view: HostView, reference: str, *, marker: str = MARKER) -> None:
    """Remember that the image comes with us: to be called before it does."""
    text = f"{reference}\n".encode()
    root_script(view, REMEMBER, marker, stdin=text, doing=f"writing {marker}")


def unmark(view: HostView, reference: str, *, marker: str = MARKER) -> None:
    """The image is gone: one that comes later is another's."""
    root_script(view, FORGET, marker, reference, doing=f"writing {marker}")
