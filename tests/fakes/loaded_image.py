"""What an overlay2 engine makes of an image that comes to it."""

from __future__ import annotations

import io
import json
import tarfile

from clusterctl.containers.driver import Image


def loaded_image(archive: bytes) -> Image:
    """What an engine makes of the archive that transfer/load_archive.py writes."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        (listed,) = json.load(tar.extractfile("manifest.json") or io.BytesIO())
        config = (tar.extractfile(listed["Config"]) or io.BytesIO()).read()
    return image_of(config, f"sha256:{listed['Config'].rpartition('/')[2]}")


def image_of(config: bytes, identifier: str, *tags: str) -> Image:
    """An image as overlay2 has it, from its config."""
    told = json.loads(config)
    settings = told["config"]
    env = dict(pair.split("=", 1) for pair in settings.get("Env", ()))
    layers = tuple(told["rootfs"]["diff_ids"])
    return Image(identifier, layers, 1000, tags, settings.get("Labels", {}), env)
