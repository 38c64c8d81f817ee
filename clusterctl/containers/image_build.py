"""Build an image from a Dockerfile alone, with the engine's classic builder.

The classic builder uses base images by tag without contacting a registry, and is in every engine
since 20.10. BuildKit needs a plugin that Debian does not install.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterable, Mapping
from typing import Any

from clusterctl.containers.driver import Say
from clusterctl.containers.failures import engine_error


def parameters(reference: str, arguments: Mapping[str, str]) -> dict[str, str]:
    """Return the query of POST /build (API 1.41)."""
    return {
        "t": reference,
        "networkmode": "host",
        "rm": "true",
        "forcerm": "true",
        "buildargs": json.dumps(dict(arguments)),
    }


def context(dockerfile: str) -> bytes:
    """Return a tar that contains only the Dockerfile."""
    data, buffer = dockerfile.encode(), io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def follow(lines: Iterable[bytes], say: Say) -> None:
    """Report the build's steps until it ends. Raises StepFailed with the last lines of output."""
    printed: list[str] = []
    for line in lines:
        if not line:
            continue
        told: dict[str, Any] = json.loads(line)
        printed += _text(told)
        if "error" in told:
            raise _failed(told["error"], printed)
        for text in _text(told):
            say(text)


def _text(told: Mapping[str, Any]) -> list[str]:
    coloured = str(told.get("stream") or "")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    return [line.strip()[:200] for line in plain.splitlines() if line.strip()]


def _failed(message: str, printed: list[str]) -> Exception:
    error = engine_error("\n".join([*printed[-20:], message]))
    if error.hint is None:
        error.summary = f"the image could not be built: {message}"
    return error
