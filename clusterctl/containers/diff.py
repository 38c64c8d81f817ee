"""Compare the desired container with the existing one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from clusterctl.containers.driver import Container
from clusterctl.containers.spec import FINGERPRINT_LABEL, SECURITY_OPTIONS, ContainerSpec


@dataclass(frozen=True)
class Keep:
    """The container was created from this spec."""


@dataclass(frozen=True)
class Create:
    """The container does not exist."""


@dataclass(frozen=True)
class Recreate:
    """The container was created from a different spec; `reasons` names the differences."""

    reasons: tuple[str, ...]


Verdict = Keep | Create | Recreate


def compare(spec: ContainerSpec, container: Container | None) -> Verdict:
    """Decide how to make `container` match `spec`.

    The fingerprint decides whether they match; the fields only explain why not.
    """
    if container is None:
        return Create()
    if container.fingerprint == spec.fingerprint():
        return Keep()
    return Recreate(
        tuple(_reasons(spec, container)) or ("created by a different version of clusterctl",)
    )


def _reasons(spec: ContainerSpec, container: Container) -> Iterator[str]:
    if spec.image != container.image:
        yield f"image: {_short(container.image)} -> {_short(spec.image)}"
    if spec.command != container.command:
        yield f"command: {' '.join(container.command)} -> {' '.join(spec.command)}"
    yield from _environment(spec, container)
    before, after = ([mount.bind for mount in of.mounts] for of in (container, spec))
    yield from _members("mount", before, after)
    yield from _pairs("ulimit", container.ulimits, spec.ulimits)
    yield from _members("device", _devices(container), _devices(spec))
    yield from _members("capability", container.capabilities, spec.capabilities)
    if not container.drops_others:
        yield "capabilities: all others are dropped"
    # The engine adds some of its own, such as label=disable.
    lacking = [option for option in SECURITY_OPTIONS if option not in container.security_options]
    yield from _members("security option", (), lacking)
    if spec.pids_limit != container.pids_limit:
        yield f"process limit: {container.pids_limit or 'none'} -> {spec.pids_limit}"
    yield from _pairs("label", _own(container.labels), _own(spec.labels), gone=False)
    if spec.stop_timeout != container.stop_timeout:
        yield f"stop timeout: {container.stop_timeout} s -> {spec.stop_timeout} s"


def _environment(spec: ContainerSpec, container: Container) -> Iterator[str]:
    """Yield differences of environments. Only names are shown: a value may be a secret."""
    for name in sorted(spec.env.keys() | container.env.keys()):
        if name not in container.env:
            yield f"environment: {name} is new"
        elif name in spec.env and spec.env[name] != container.env[name]:
            yield f"environment: {name} changes"
        elif name not in spec.env and container.env[name] != container.image_env.get(name):
            yield f"environment: {name} goes"


def _devices(thing: ContainerSpec | Container) -> tuple[str, ...]:
    return thing.cdi_devices + thing.devices + (("all GPUs",) if thing.all_gpus else ())


def _own(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Drop the image's labels, and the fingerprint, which always differs here."""
    return {
        name: value
        for name, value in labels.items()
        if name.startswith("clusterctl.") and name != FINGERPRINT_LABEL
    }


def _members(what: str, before: Iterable[str], after: Iterable[str]) -> Iterator[str]:
    had, wants = set(before), set(after)
    yield from (f"{what}: {item} is new" for item in sorted(wants - had))
    yield from (f"{what}: {item} goes" for item in sorted(had - wants))


def _pairs(
    what: str, before: Mapping[str, object], after: Mapping[str, object], *, gone: bool = True
) -> Iterator[str]:
    for name in sorted(before.keys() | after.keys()):
        if name not in before:
            yield f"{what}: {name}={after[name]} is new"
        elif name not in after:
            if gone:
                yield f"{what}: {name} goes"
        elif before[name] != after[name]:
            yield f"{what}: {name} {before[name]} -> {after[name]}"


def _short(image: str) -> str:
    """Return the 12 hex digits that `docker images` shows."""
    return image.removeprefix("sha256:")[:12]
