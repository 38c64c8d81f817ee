"""Parse the output of `docker`: the engine, our containers and the image."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from clusterctl.facts.model import ContainerFacts, EngineFacts, ImageFacts
from clusterctl.facts.sections import Section


def _not_running(
    *,
    client: str = "",
    error: str | None = None,
    installed: bool = True,
    hung: bool = False,
    podman: bool = False,
) -> EngineFacts:
    return EngineFacts(
        installed=installed, running=False, version="", api_version="", storage="", data_root="",
        cgroup_driver="", cgroup_version="", cdi_spec_dirs=(), runtimes=(), rootless=False,
        error=error, client=client, hung=hung, podman=podman,
    )  # fmt: skip


ABSENT = _not_running(installed=False)
GARBLED = _not_running(error="the output of `docker info` cannot be parsed")

_TIMED_OUT = 124  # Exit status of `timeout` when it had to end its command


def parse_engine(section: Section | None, api: Section | None) -> EngineFacts:
    """Parse `docker info` and `docker version`. Raises ValueError if the output is malformed."""
    if section is None:
        return ABSENT
    client, *lines = section.lines
    if section.status == _TIMED_OUT:
        return _not_running(client=client, error="the Docker daemon does not answer", hung=True)
    info = _first_object(lines)
    if "host" in info and "store" in info:
        return _not_running(
            client=client, error="`docker` is Podman under another name", podman=True
        )
    if not info.get("ServerVersion"):
        return _not_running(client=client, error=_why(info, lines))
    return _running(client, info, api)


def _running(client: str, info: dict[str, Any], api: Section | None) -> EngineFacts:
    status = info.get("DriverStatus") or []
    return EngineFacts(
        installed=True,
        running=True,
        version=info["ServerVersion"],
        api_version=api.lines[0].strip() if api and api.lines else "",
        storage=info.get("Driver", ""),
        data_root=info.get("DockerRootDir", ""),
        cgroup_driver=info.get("CgroupDriver", ""),
        cgroup_version=str(info.get("CgroupVersion", "")),
        cdi_spec_dirs=tuple(info.get("CDISpecDirs") or ()),
        runtimes=tuple(sorted(info.get("Runtimes") or ())),
        rootless="name=rootless" in (info.get("SecurityOptions") or ()),
        error=None,
        client=client,
        live_restore=bool(info.get("LiveRestoreEnabled")),
        default_runtime=info.get("DefaultRuntime", ""),
        remapped="name=userns" in (info.get("SecurityOptions") or ()),
        desktop=info.get("OperatingSystem", "") == "Docker Desktop",
        containerd_store=any("io.containerd.snapshotter" in str(entry) for entry in status),
    )


def _why(info: dict[str, Any], lines: list[str]) -> str:
    """Docker's message that the daemon does not run: JSON from new clients, text from old ones."""
    words = info.get("ServerErrors") or [line for line in lines if not line.startswith("{")]
    return " ".join(str(word).strip() for word in words) or "the Docker daemon did not answer"


def _first_object(lines: list[str]) -> dict[str, Any]:
    """Parse the first line that holds a JSON object; warnings may precede it. {} without one."""
    for line in lines:
        if line.startswith("{"):
            value = json.loads(line)
            return value if isinstance(value, dict) else {}
    return {}


def parse_containers(section: Section | None) -> tuple[ContainerFacts, ...]:
    """Return our containers, running or not. Raises ValueError if `docker ps` failed."""
    if section is None:
        return ()
    if section.status != 0:
        raise ValueError(" ".join(section.lines) or f"docker ps ended with {section.status}")
    objects = (json.loads(line) for line in section.lines if line.startswith("{"))
    return tuple(_container(value) for value in objects)


def _container(value: dict[str, Any]) -> ContainerFacts:
    state = value["state"]
    return ContainerFacts(
        id=value["id"],
        name=value["name"].removeprefix("/"),
        image=value["image"],
        labels=dict(value["labels"] or {}),
        state=state["Status"],
        exit_code=int(state.get("ExitCode", 0)),
        started_at=state.get("StartedAt", ""),
        restarts=int(value.get("restarts") or 0),
        oom_killed=bool(state.get("OOMKilled", False)),
        error=state.get("Error", ""),
    )


def parse_image(section: Section | None) -> ImageFacts | None:
    """Return the image; None if the host does not have it. Raises ValueError if docker failed."""
    if section is None:
        return None
    value = _first_object(section.lines)
    if not value:
        words = " ".join(section.lines)
        if "no such image" in words.lower():
            return None
        raise ValueError(words or f"docker ended with {section.status}")
    return ImageFacts(
        id=value["id"],
        tags=tuple(value["tags"] or ()),
        digests=tuple(value["digests"] or ()),
        layers=tuple(value["layers"] or ()),
        size=int(value["size"]),
        architecture=value["architecture"],
        labels=dict(value["labels"] or {}),
        cuda=_pairs(value.get("cuda") or ()),
    )


def _pairs(lines: Iterable[str | None]) -> dict[str, str]:
    split = (line.partition("=") for line in lines if line)
    return {name: value for name, _, value in split}
