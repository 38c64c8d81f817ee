"""A container spec as the body of POST /containers/create. Pure.

Written out instead of taken from docker-py's helpers, which know no CDI devices and would add
the operator's own proxy settings. Fields: Docker Engine API 1.41.
"""

from __future__ import annotations

from typing import Any

from clusterctl.containers.spec import FINGERPRINT_LABEL, LOG_OPTIONS, ContainerSpec


def create_request(spec: ContainerSpec) -> dict[str, Any]:
    """The request that makes the container of `docker_run_argv(spec)`."""
    return {
        "Image": spec.image,
        **_process(spec),
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
            "DeviceRequests": _device_requests(spec),
            "Devices": [
                {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"}
                for path in spec.devices
            ],
            "CapAdd": [f"CAP_{name}" for name in spec.capabilities],
        },
    }


def _process(spec: ContainerSpec) -> dict[str, list[str]]:
    if not spec.command:
        return {}
    return {"Entrypoint": [spec.command[0]], "Cmd": list(spec.command[1:])}


def _device_requests(spec: ContainerSpec) -> list[dict[str, Any]]:
    requests: list[dict[str, Any]] = []
    if spec.cdi_devices:
        requests.append({"Driver": "cdi", "DeviceIDs": list(spec.cdi_devices)})
    if spec.all_gpus:
        requests.append({"Driver": "", "Count": -1, "Capabilities": [["gpu"]]})
    return requests
