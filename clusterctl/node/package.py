"""This package as one runnable file for hosts: the same bytes wherever it is built.

Stored, not compressed, and with one fixed time stamp: compression libraries differ between
operators' machines, and a different file would restart every node container.
"""

from __future__ import annotations

import functools
import hashlib
import io
import zipfile
from importlib import resources

from clusterctl import __version__

ROOT = "/opt/clusterctl"
FILE_NAME = "node.pyz"
_OLDEST = (1980, 1, 1, 0, 0, 0)
_READABLE = 0o644 << 16
_MAIN = "import sys\n\nfrom clusterctl.node.__main__ import main\n\nsys.exit(main())\n"


@functools.cache
def build() -> bytes:
    """node.pyz: `python3 node.pyz supervise --cluster NAME`. Read once: an upgrade of clusterctl
    while a run goes on must not name one version to the container and write another."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, text in sorted(_sources().items()):
            entry = zipfile.ZipInfo(name, _OLDEST)
            entry.external_attr = _READABLE
            archive.writestr(entry, text)
    return packed.getvalue()


def install_dir() -> str:
    """Where node.pyz lies on hosts: named after version and content, so that two versions
    never share a file and a running container keeps its own."""
    return f"{ROOT}/{__version__}-{hashlib.sha256(build()).hexdigest()[:8]}"


def install_path() -> str:
    return f"{install_dir()}/{FILE_NAME}"


def _sources() -> dict[str, str]:
    """Path in the archive: text."""
    files = {
        f"clusterctl/node/{file.name}": file.read_text("utf-8")
        for file in resources.files("clusterctl.node").iterdir()
        if file.name.endswith(".py")
    }
    top = resources.files("clusterctl").joinpath("__init__.py").read_text("utf-8")
    return {"__main__.py": _MAIN, "clusterctl/__init__.py": top, **files}
