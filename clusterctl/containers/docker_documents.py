"""Convert between clusterctl's types and Docker's documents (Engine API 1.41 to 1.52). Pure.

Fields that are null or missing in an inspect document are empty here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from clusterctl.containers.driver import Container, Image
from clusterctl.containers.spec import (
    FINGERPRINT_LABEL,
    LOG_OPTIONS,
    SECURITY_OPTIONS,
    ContainerSpec,
    Mount,
)

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
        env=_environment(config.get("Env")),
        architecture=document.get("Architecture") or "",
        digests=tuple(document.get("RepoDigests") or ()),
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
        env=_environment(config.get("Env")),
        image_env=image_env,
        mounts=tuple(
            Mount(mount["Source"], mount["Destination"], read_only=not mount.get("RW", True))
            for mount in document.get("Mounts") or ()
            if mount.get("Type") == "bind" and mount["Destination"] not in _BINDS_OF_ENGINE
        ),
        ulimits={limit["Name"]: limit["Soft"] for limit in host.get("Ulimits") or ()},
        cdi_devices=tuple(
            device
            for request in requests
            if request.get("Driver") == "cdi"
            for device in request.get("DeviceIDs") or ()
        ),
        all_gpus=any(request.get("Count") == -1 for request in requests),
        devices=tuple(device["PathOnHost"] for device in host.get("Devices") or ()),
        capabilities=tuple(cap.removeprefix("CAP_") for cap in host.get("CapAdd") or ()),
        drops_others="ALL" in (host.get("CapDrop") or ()),
        security_options=tuple(host.get("SecurityOpt") or ()),
        pids_limit=host.get("PidsLimit") or 0,
        labels=config.get("Labels") or {},
        stop_timeout=config.get("StopTimeout") or 10,
        network=host.get("NetworkMode") or "",
        ipc=host.get("IpcMode") or "",
        restart=(host.get("RestartPolicy") or {}).get("Name") or "",
        init=bool(host.get("Init")),
        started_at=state.get("StartedAt") or "",
        restarts=document.get("RestartCount") or 0,
    )


def _environment(pairs: Iterable[str] | None) -> dict[str, str]:
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs or ())}


def _words(value: list[str] | str | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def create_request(spec: ContainerSpec) -> dict[str, Any]:
    """Return the body of POST /containers/create (API 1.41).

    docker-py's helpers are not used, since they do not support CDI devices and would add the
    operator's proxy settings.
    """
    process = (
        {"Entrypoint": [spec.command[0]], "Cmd": list(spec.command[1:])} if spec.command else {}
    )
    requests: list[dict[str, Any]] = []
    if spec.cdi_devices:
        requests.append({"Driver": "cdi", "DeviceIDs": list(spec.cdi_devices)})
    if spec.all_gpus:
        requests.append({"Driver": "", "Count": -1, "Capabilities": [["gpu"]]})
    return {
        "Image": spec.image,
        **process,
        "Env": [f"{name}={value}" for name, value in sorted(spec.env.items())],
        "Labels": {**spec.labels, FINGERPRINT_LABEL: spec.fingerprint()},
        "StopTimeout": spec.stop_timeout,
        "HostConfig": {
            "NetworkMode": "host",
            "IpcMode": "host",
            "Init": True,
            "RestartPolicy": {"Name": "unless-stopped"},
            "LogConfig": {"Type": "json-file", "Config": LOG_OPTIONS},
            "Binds": [mount.bind for mount in spec.mounts],
            "Ulimits": [
                {"Name": name, "Soft": value, "Hard": value}
                for name, value in sorted(spec.ulimits.items())
            ],
            "DeviceRequests": requests,
            "Devices": [
                {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"}
                for path in spec.devices
            ],
            "CapDrop": ["ALL"],
            "CapAdd": [f"CAP_{name}" for name in spec.capabilities],
            "SecurityOpt": list(SECURITY_OPTIONS),
            "PidsLimit": spec.pids_limit,
        },
    }
