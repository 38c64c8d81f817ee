"""Convert a container spec to the body of POST /containers/create (Docker Engine API 1.41). Pure.

docker-py's helpers are not used: they do not support CDI devices, and would add the operator's own
proxy settings.
"""

from __future__ import annotations

from typing import Any

from clusterctl.containers.spec import FINGERPRINT_LABEL, LOG_OPTIONS, ContainerSpec


def create_request(spec: ContainerSpec) -> dict[str, Any]:
    """Return the request that creates the same container as `docker_run_argv(spec)`."""
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
            "CapAdd": [f"CAP_{name}" for name in spec.capabilities],
        },
    }
