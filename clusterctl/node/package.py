"""This package as one runnable zip file for hosts, with the same bytes wherever it is built.

It is not compressed and has one fixed timestamp: compression libraries differ between operators'
machines, and a different file would restart every node container.
"""

from __future__ import annotations

import functools
import hashlib
import io
import zipfile
from importlib import resources

from clusterctl import __version__
from clusterctl.node.vllm_plugins import ENTRY_POINTS

ROOT = "/opt/clusterctl"
FILE_NAME = "node.pyz"
_OLDEST = (1980, 1, 1, 0, 0, 0)
_READABLE = 0o644 << 16
# By which vLLM finds our plugins
_DIST_INFO = {
    "clusterctl_node-0.dist-info/METADATA": "Metadata-Version: 2.1\nName: clusterctl-node\n"
    "Version: 0\n",
    "clusterctl_node-0.dist-info/entry_points.txt": ENTRY_POINTS,
}
_MAIN = "import sys\n\nfrom clusterctl.node.__main__ import main\n\nsys.exit(main())\n"


@functools.cache
def build() -> bytes:
    """Return the content of node.pyz, for `python3 node.pyz supervise --cluster NAME`.

    Cached: if clusterctl is upgraded during a run, the container's path and the written file must
    still be from one version.
    """
    files = {"__main__.py": _MAIN, **_DIST_INFO}
    files["clusterctl/__init__.py"] = (
        resources.files("clusterctl").joinpath("__init__.py").read_text("utf-8")
    )
    for room in ("kinds", "node"):
        for file in resources.files(f"clusterctl.{room}").iterdir():
            if file.name.endswith(".py"):
                files[f"clusterctl/{room}/{file.name}"] = file.read_text("utf-8")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, text in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _OLDEST)
            entry.external_attr = _READABLE
            archive.writestr(entry, text)
    return packed.getvalue()


def install_dir() -> str:
    """Return the directory of node.pyz on hosts. Its name has the version and a hash of the
    content, so that versions never share a file and a running container keeps its own."""
    return f"{ROOT}/{__version__}-{hashlib.sha256(build()).hexdigest()[:8]}"


def install_path() -> str:
    return f"{install_dir()}/{FILE_NAME}"
