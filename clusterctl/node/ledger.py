"""The ledger: which versions this node and its services had since when, to answer questions such as
"what changed on that host since it last worked?"."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import time
from importlib import metadata
from pathlib import Path
from typing import Dict

from clusterctl import __version__
from clusterctl.node.documents import ServiceDocument
from clusterctl.node.files import append_to, read_file

NODE = "node"  # Subject of the entries about the node itself; all others are names of services

_LIMIT = 2**20  # Bytes; of a larger ledger the older half is dropped
_LARGEST_FILE = 64 * 2**20  # Bytes; a model's manifest may have some MiB
_LONGEST_ORIGIN = 300  # Characters

# PyPI's packages of NVIDIA's libraries have the CUDA release in their names.
_CUDA_RELEASES = ("", "-cu13", "-cu12", "-cu11")


class Ledger:
    """Appends a JSON line whenever the versions of a subject differ from its last line.

    Errors of writing, such as a full disk, are ignored: a later start then writes the line.
    """

    def __init__(self, path: Path, host: str) -> None:
        self._path = path
        self._host = host
        self._last: Dict[str, Dict[str, str]] = {}
        with contextlib.suppress(OSError):
            for line in read_file(path, _LARGEST_FILE).decode("utf-8", "replace").splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                    entry = json.loads(line)
                    self._last[entry["subject"]] = entry["versions"]

    def record(self, subject: str, versions: Dict[str, str]) -> None:
        """Record the subject's current versions."""
        if self._last.get(subject) == versions:
            return
        self._last[subject] = versions
        entry = {
            "time": time.time(),
            "host": self._host,
            "subject": subject,
            "versions": versions,
        }
        try:
            lines = [json.dumps(entry) + "\n"]
            if self._path.exists() and self._path.stat().st_size > _LIMIT:
                text = read_file(self._path, _LARGEST_FILE).decode("utf-8", "replace")
                kept = text.splitlines(keepends=True)
                lines = [*kept[len(kept) // 2 :], *lines]
                fresh = self._path.with_name(f".{self._path.name}.new")
                fresh.write_text("".join(lines), "utf-8")
                os.replace(fresh, self._path)  # noqa: PTH105 - atomic, also over an existing file
                return
            with append_to(self._path) as file:
                file.write(lines[0].encode())
        except OSError:
            return


def node_versions(image: str) -> Dict[str, str]:
    """Return the versions of what runs on this node, leaving out what it does not have.

    Package metadata only: importing PyTorch would take seconds. `image`: its ID in the engine.
    """
    torch = _installed("torch")
    found = {
        "clusterctl": __version__,
        "image": image,
        "kernel": platform.release(),
        "driver": _driver(),
        "cuda": _of_cuda("nvidia-cuda-runtime") or torch.partition("+cu")[2],
        "nccl": _of_cuda("nvidia-nccl"),
        "torch": torch,
        "python": platform.python_version(),
        "ray": _installed("ray"),
        "vllm": _installed("vllm"),
    }
    return {name: version for name, version in found.items() if version}


def service_versions(document: ServiceDocument) -> Dict[str, str]:
    """Return the model of a service with its revision, and its flags."""
    model = document.argv[2] if len(document.argv) > 2 else document.model
    found = {"model": model, "revision": _revision(Path(model))}
    return {**{k: v for k, v in found.items() if v}, "flags": " ".join(document.argv[3:])}


def _revision(directory: Path) -> str:
    """Return where a model's files come from, as `hf:Qwen/Qwen3-8B@COMMIT`; for files of unknown
    origin the beginning of the sha256 of their config.json."""
    commit = re.search(r"/snapshots/([0-9a-f]{40})(/|$)", str(directory))
    if commit:  # a Hugging Face cache
        return commit[1]
    manifest = directory / ".clusterctl-model.json"  # transfer/weights/manifest.py
    with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
        origin = json.loads(read_file(manifest, _LARGEST_FILE)).get("origin")
        if origin:
            return str(origin)[:_LONGEST_ORIGIN]
    with contextlib.suppress(OSError):
        config = read_file(directory / "config.json", _LARGEST_FILE)
        return f"config.json {hashlib.sha256(config).hexdigest()[:12]}"
    return ""


def _driver() -> str:
    """Return the version of NVIDIA's kernel module: that of the host, which containers share."""
    with contextlib.suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text("utf-8", "replace")
        found = re.search(r"Kernel Module\D*?\s(\d+\.[\d.]+)", text)
        return found[1] if found else ""
    return ""


def _of_cuda(package: str) -> str:
    return next(filter(None, (_installed(package + each) for each in _CUDA_RELEASES)), "")


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
