"""Parse the output of `docker`: the engine, our containers and the image."""

from __future__ import annotations

import json
from typing import Any

from clusterctl.facts.model import ContainerFacts, EngineFacts, ImageFacts
from clusterctl.facts.sections import TIMED_OUT, Section


def _not_running(
    *,
    client: str = "",
    error: str | None = None,
    installed: bool = True,
    hung: bool = False,
    podman: bool = False,
) -> EngineFacts:
    return EngineFacts(
        installed=installed, running=False, version="", data_root="", cdi_spec_dirs=(),
        runtimes=(), rootless=False, error=error, client=client, hung=hung, podman=podman,
    )  # fmt: skip


ABSENT = _not_running(installed=False)
GARBLED = _not_running(error="the output of `docker info` cannot be parsed")


def parse_engine(section: Section | None) -> EngineFacts:
    """Parse `docker info`. Raises ValueError if the output is malformed."""
    if section is None:
        return ABSENT
    client, *lines = section.lines
    if section.status == TIMED_OUT:
        return _not_running(client=client, error="the Docker daemon does not answer", hung=True)
    info = _first_object(lines)
    if "host" in info and "store" in info:
        return _not_running(
            client=client, error="`docker` is Podman under another name", podman=True
        )
    if not info.get("ServerVersion"):
        # Why the daemon does not run: JSON from new clients, text from old ones
        words = info.get("ServerErrors") or [line for line in lines if not line.startswith("{")]
        error = " ".join(str(word).strip() for word in words)
        return _not_running(client=client, error=error or "the Docker daemon did not answer")
    status, security = info.get("DriverStatus") or [], info.get("SecurityOptions") or ()
    return EngineFacts(
        installed=True,
        running=True,
        version=info["ServerVersion"],
        data_root=info.get("DockerRootDir", ""),
        cdi_spec_dirs=tuple(info.get("CDISpecDirs") or ()),
        runtimes=tuple(sorted(info.get("Runtimes") or ())),
        rootless="name=rootless" in security,
        error=None,
        client=client,
        default_runtime=info.get("DefaultRuntime", ""),
        remapped="name=userns" in security,
        desktop=info.get("OperatingSystem", "") == "Docker Desktop",
        containerd_store=any("io.containerd.snapshotter" in str(entry) for entry in status),
    )


def _first_object(lines: list[str]) -> dict[str, Any]:
    """Parse the first line that holds a JSON object; warnings may precede it. {} without one."""
    for line in lines:
        if line.startswith("{"):
            value = json.loads(line)
            return value if isinstance(value, dict) else {}
    return {}


def parse_containers(section: Section | None) -> tuple[ContainerFacts, ...]:
    """Return our containers, running or not. Raises ValueError if the daemon did not list all of
    them, for example when it is too busy."""
    if section is None:
        return ()
    # One that was removed between the list and the look at each is no error.
    errors = [line for line in section.lines if not line.startswith("{")]
    if section.status == TIMED_OUT:
        raise ValueError("the Docker daemon did not answer in time")
    if section.status != 0 and not (errors and all("No such" in line for line in errors)):
        raise ValueError(" ".join(errors) or f"docker ended with {section.status}")
    found = []
    for line in section.lines:
        if not line.startswith("{"):
            continue
        value = json.loads(line)
        state = value["state"]
        container = ContainerFacts(
            id=value["id"],
            name=value["name"].removeprefix("/"),
            image=value["image"],
            labels=dict(value["labels"] or {}),
            state=state["Status"],
            exit_code=int(state.get("ExitCode", 0)),
            started_at=state.get("StartedAt", ""),
            restarts=int(value.get("restarts") or 0),
            error=state.get("Error", ""),
        )
        found.append(container)
    return tuple(found)


def parse_image(section: Section | None) -> ImageFacts | None:
    """Return the image; None if the host does not have it. Raises ValueError if docker failed."""
    if section is None:
        return None
    value = _first_object(section.lines)
    if not value:
        words = " ".join(section.lines)
        if "no such image" in words.lower():
            return None
        raise ValueError(words or f"docker exited with status {section.status}")
    cuda = (line.partition("=") for line in value.get("cuda") or () if line)
    return ImageFacts(
        id=value["id"],
        tags=tuple(value["tags"] or ()),
        digests=tuple(value["digests"] or ()),
        layers=tuple(value["layers"] or ()),
        size=int(value["size"]),
        architecture=value["architecture"],
        labels=dict(value["labels"] or {}),
        cuda={name: setting for name, _, setting in cuda},
    )
