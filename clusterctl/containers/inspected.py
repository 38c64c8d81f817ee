"""Parse the engine's inspect documents. Pure.

They are those of GET /containers/ID/json and /images/ID/json, API 1.41 to 1.52. Fields that are
null or missing there are empty here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from clusterctl.containers.driver import Container, Image
from clusterctl.containers.spec import Mount

Document = Mapping[str, Any]

_BINDS_OF_ENGINE = frozenset({"/etc/resolv.conf", "/etc/hostname", "/etc/hosts"})


def image_from(document: Document) -> Image:
    config = document.get("Config") or {}
    return Image(
        id=document["Id"],
        layers=tuple((document.get("RootFS") or {}).get("Layers") or ()),
        size=document.get("Size") or 0,
        tags=tuple(document.get("RepoTags") or ()),
        labels=config.get("Labels") or {},
        env=environment(config.get("Env")),
        architecture=document.get("Architecture") or "",
    )


def container_from(document: Document, image_env: Mapping[str, str]) -> Container:
    config, host = document["Config"], document["HostConfig"]
    state = document.get("State") or {}
    requests = host.get("DeviceRequests") or ()
    return Container(
        id=document["Id"],
        name=document["Name"].removeprefix("/"),
        image=document["Image"],
        status=state.get("Status") or "",
        exit_code=state.get("ExitCode") or 0,
        error=state.get("Error") or "",
        command=(*_words(config.get("Entrypoint")), *_words(config.get("Cmd"))),
        env=environment(config.get("Env")),
        image_env=image_env,
        mounts=_mounts(document.get("Mounts") or ()),
        ulimits={limit["Name"]: limit["Soft"] for limit in host.get("Ulimits") or ()},
        cdi_devices=_cdi_devices(requests),
        all_gpus=any(request.get("Count") == -1 for request in requests),
        devices=tuple(device["PathOnHost"] for device in host.get("Devices") or ()),
        capabilities=tuple(cap.removeprefix("CAP_") for cap in host.get("CapAdd") or ()),
        labels=config.get("Labels") or {},
        stop_timeout=config.get("StopTimeout") or 10,
        network=host.get("NetworkMode") or "",
        ipc=host.get("IpcMode") or "",
        restart=(host.get("RestartPolicy") or {}).get("Name") or "",
        init=bool(host.get("Init")),
        started_at=state.get("StartedAt") or "",
        restarts=document.get("RestartCount") or 0,
    )


def environment(pairs: Iterable[str] | None) -> dict[str, str]:
    """Convert `NAME=value` strings to a mapping."""
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs or ())}


def _words(value: list[str] | str | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _mounts(mounts: Iterable[Document]) -> tuple[Mount, ...]:
    return tuple(
        Mount(mount["Source"], mount["Destination"], read_only=not mount.get("RW", True))
        for mount in mounts
        if mount.get("Type") == "bind" and mount["Destination"] not in _BINDS_OF_ENGINE
    )


def _cdi_devices(requests: Iterable[Document]) -> tuple[str, ...]:
    return tuple(
        device
        for request in requests
        if request.get("Driver") == "cdi"
        for device in request.get("DeviceIDs") or ()
    )
