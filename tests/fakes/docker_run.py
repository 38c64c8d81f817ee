"""A container spec as the arguments of `docker run`, to compare with what the driver creates."""

from __future__ import annotations

from collections.abc import Iterator

from clusterctl.containers.docker_driver import device_flags
from clusterctl.containers.spec import (
    FINGERPRINT_LABEL,
    LOG_OPTIONS,
    SECURITY_OPTIONS,
    ContainerSpec,
)


def docker_run_argv(spec: ContainerSpec) -> tuple[str, ...]:
    """Return the complete `docker run --detach ...` command for `spec`."""
    return (
        "docker",
        "run",
        "--detach",
        *_fixed(spec),
        *_flags("--env", (f"{name}={value}" for name, value in sorted(spec.env.items()))),
        *_flags("--volume", (mount.bind for mount in spec.mounts)),
        *_flags("--ulimit", (f"{name}={value}" for name, value in sorted(spec.ulimits.items()))),
        *device_flags(spec),
        *_flags("--cap-drop", ("ALL",)),
        *_flags("--cap-add", iter(spec.capabilities)),
        *_flags("--security-opt", SECURITY_OPTIONS),
        *("--pids-limit", str(spec.pids_limit)),
        *_flags("--label", _labels(spec)),
        *(("--entrypoint", spec.command[0]) if spec.command else ()),
        spec.image,
        *spec.command[1:],
    )


def _fixed(spec: ContainerSpec) -> Iterator[str]:
    yield from ("--name", spec.name)
    yield from ("--network", "host", "--ipc", "host", "--init", "--restart", "unless-stopped")
    yield from ("--stop-timeout", str(spec.stop_timeout))
    yield from ("--log-driver", "json-file")
    yield from _flags("--log-opt", (f"{name}={value}" for name, value in LOG_OPTIONS.items()))


def _flags(flag: str, values: Iterator[str] | tuple[str, ...]) -> Iterator[str]:
    for value in values:
        yield from (flag, value)


def _labels(spec: ContainerSpec) -> Iterator[str]:
    labels = {**spec.labels, FINGERPRINT_LABEL: spec.fingerprint()}
    yield from (f"{name}={value}" for name, value in sorted(labels.items()))
