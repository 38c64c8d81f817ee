"""State of a host's engine: images, layers, disk space; queried in one round trip."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from clusterctl import deadlines
from clusterctl.containers.driver import ContainerDriver
from clusterctl.containers.failures import engine_error
from clusterctl.errors import MALFORMED
from clusterctl.transfer.chain_link import CACHE

# In DriverStatus of `docker info` when Docker uses containerd's image store.
CONTAINERD = "io.containerd.snapshotter.v1"

# Processors as the kernel names them, to their names in image configs.
PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}

# Keys of `config` in an image config that containers inherit.
INHERITED = (
    "Entrypoint", "Cmd", "Env", "WorkingDir", "User", "Labels",
    "ExposedPorts", "Volumes", "StopSignal",
)  # fmt: skip


@dataclass(frozen=True)
class HeldImage:
    """An image that an engine has."""

    id: str  # Digest of the config; with containerd's image store, of the manifest
    tags: tuple[str, ...]
    layers: tuple[str, ...]  # diff IDs, the base first
    size: int  # Bytes, unpacked
    settings: str  # What containers inherit, from `settings`: the same text with both image stores


@dataclass(frozen=True)
class EngineState:
    """State of one host's engine, from `inspect_engine`."""

    version: str
    containerd: bool  # Uses containerd's image store, not overlay2 (or another graph driver)
    rootless: bool  # Its 127.0.0.1 is not the host's: it cannot reach the relay
    platform: str  # linux/amd64
    root: str
    python: str | None  # One that runs clusterctl's programs (transport/python.py); None without
    images: tuple[HeldImage, ...]
    # Digests (`sha256:...`) of compressed layers that the engine knows from an earlier pull and
    # does not fetch again (overlay2 only).
    digests: frozenset[str]
    free: int  # Free bytes on the disk of the engine's images
    cache_free: int  # Free bytes on the disk of the relay's cache
    one_disk: bool  # Both are the same file system

    def tagged(self, reference: str) -> HeldImage | None:
        """Return the image tagged `reference` (NAME:TAG); None if there is none."""
        return next((image for image in self.images if reference in image.tags), None)

    def common(self, layers: Sequence[str]) -> int:
        """Return the length of the longest prefix of `layers` that an image here starts with."""

        def shared(image: HeldImage) -> int:
            pairs = zip(image.layers, layers, strict=False)
            return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

        return max(map(shared, self.images), default=0)


def inspect_engine(driver: ContainerDriver, cache: str = CACHE, reference: str = "") -> EngineState:
    """Query the engine's state in one command. `cache`: the relay's cache directory there;
    `reference`: a name that is looked up even if the engine does not list it.

    Raises EngineUnavailable, ConnectionFailed, CommandTimedOut.
    """
    result = driver.host_run(driver.stock_argv(cache, reference), timeout=deadlines.ENGINE_STOCK)
    if not result.ok:
        raise engine_error(result.last_lines() or "nothing", driver.host, unavailable=True)
    try:
        return parse_engine_state(result.stdout)
    except MALFORMED as error:
        raise engine_error(
            "its answer about its images cannot be read", driver.host, unavailable=True
        ) from error


def parse_engine_state(text: str) -> EngineState:
    """Parse the output of `driver.stock_argv`: lines of a word, a tab, a value. Raises what
    MALFORMED lists."""
    told: dict[str, list[str]] = defaultdict(list)
    for line in text.splitlines():
        word, tab, value = line.partition("\t")
        if tab:
            told[word].append(value)
    engine = json.loads(told["engine"][0])
    disks = [line.split("\t") for line in told["disk"]]
    frees = [int(free) * 1024 for free, _ in disks] or [0]
    images = [
        HeldImage(
            id=image["id"],
            tags=tuple(image["tags"] or ()),
            layers=tuple(image["layers"] or ()),
            size=int(image["size"] or 0),
            settings=settings(image["config"]),
        )
        for image in map(json.loads, told["image"])
    ]
    return EngineState(
        version=engine["version"],
        containerd=CONTAINERD in json.dumps(engine["driver"] or ()),
        rootless="name=rootless" in (engine["security"] or ()),
        platform=f"{engine['os']}/{PROCESSORS.get(engine['machine'], engine['machine'])}",
        root=told["root"][0],
        python=next(iter(told["python"]), None),
        images=tuple(dict.fromkeys(images)),
        digests=frozenset(f"sha256:{digits}" for digits in told["digest"]),
        free=frees[0],
        cache_free=frees[-1],
        one_disk=len({device for _, device in disks}) == 1,
    )


def environment(settings: str) -> dict[str, str]:
    """Return the environment variables in an image's `settings`."""
    lines = (line.partition("=") for line in json.loads(settings or "{}").get("Env", ()))
    return {name: value for name, _, value in lines}


def settings(config: Mapping[str, Any] | None) -> str:
    """Return the settings that containers inherit from an image's `config`, as canonical JSON.
    Empty values are dropped: engines differ in whether they list them."""
    kept = {key: (config or {}).get(key) for key in INHERITED}
    return json.dumps({key: value for key, value in kept.items() if value}, sort_keys=True)
