"""A real vLLM on the CPU, as the lab's image has it, and models for it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.lab.image import image_directory
from clusterctl.lab.models import build_models
from tests.vllm.engine import Engine
from tests.vllm.weights import minilm_model

_MORE = ("torchvision==0.28.0",)  # That vLLM's images have, and the lab's has not


def _cache() -> Path:
    return Path(os.environ.get("CLUSTERCTL_TEST_CACHE", "/var/cache/clusterctl-tests"))


@pytest.fixture(scope="session")
def engine() -> Engine:
    """vLLM in an environment of its own: CLUSTERCTL_VLLM names one, else it is made once."""
    given = os.environ.get("CLUSTERCTL_VLLM")
    if given:
        return Engine(Path(given))
    lock = image_directory() / "vllm.lock"
    key = hashlib.sha256(lock.read_bytes() + repr(_MORE).encode()).hexdigest()[:12]
    place = _cache() / f"vllm-{key}"
    if not (place / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        pip = [str(place / "bin/python"), "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "-r", str(lock), *_MORE], check=True)
        # Its compiled part is for CUDA; these two files register it, and only them fail without.
        for name in ("_meta_registrations.py", "_autograd_registrations.py"):
            (vision,) = place.glob(f"lib/python3*/site-packages/torchvision/{name}")
            vision.write_text("")
        metadata = image_directory() / "vllm-metadata"
        subprocess.run([*pip, "--no-build-isolation", str(metadata)], check=True)
        (place / "complete").touch()
    return Engine(place)


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model all-MiniLM-L6-v2 with its real weights, from a package."""
    return minilm_model(tmp_path_factory.mktemp("minilm"))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory, engine: Engine, minilm: Path) -> Path:
    """Tiny models with random weights, one of each architecture."""
    place = tmp_path_factory.mktemp("models")
    script = Path(__file__).with_name("make_models.py")
    subprocess.run([engine.python, script, place, minilm], check=True, env=engine.env)
    build_models(place)
    return place
