"""Convert the file to the models: names, defaults, paths, and pydantic's errors with positions.

The file has hosts as a mapping and paths relative to itself; the models have a tuple of hosts, each
complete on its own.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from clusterctl.inventory.checks import hosts_of
from clusterctl.inventory.document import Document, Trail, dotted
from clusterctl.inventory.model import Host, Inventory, Packages, PackageSource, Ssh
from clusterctl.inventory.values import did_you_mean
from clusterctl.inventory.wording import shown, value_problem

EXTENSION = "x-"  # Top-level keys with this prefix belong to the user, for anchors
_TEXT_MAPS = ("env", "labels")


def validate(document: Document, path: Path) -> Inventory | None:
    """Return the inventory, or None after reporting its problems to `document`."""
    data = typing.cast("dict[str, Any]", document.data)
    hosts = hosts_of(data)
    _check_hosts(document, data)
    _check_names(document, data, hosts)
    try:
        # JSON mode is strict about types and still reads paths and networks from text.
        shaped = json.dumps(_shaped(document, data, hosts))
        inventory = Inventory.model_validate_json(shaped, strict=True)
    except ValidationError as error:
        names = list(hosts)
        for item in error.errors(include_url=False):
            _report(document, item, names)
        return None
    return _completed(document, inventory, path)


def _check_hosts(document: Document, data: Mapping[str, Any]) -> None:
    hosts = data.get("hosts")
    if hosts is None:
        return
    if not isinstance(hosts, dict) or not hosts:
        document.report(
            document.at(("hosts",)),
            "`hosts` must be a mapping of names to hosts: gpu1: {address: ...}",
        )
        return
    for name, host in hosts.items():
        if not isinstance(host, dict):
            document.report(
                document.at(("hosts", name)),
                f"`hosts.{name}` must be a mapping: {name}: {{address: ...}}",
            )


def _check_names(document: Document, data: Mapping[str, Any], hosts: Mapping[str, Any]) -> None:
    """Report keys that exist in the models but not in the file."""
    if "source" in data:
        document.report(document.at_key(("source",)), "unknown key `source`")
    for name, host in hosts.items():
        if "name" in host:
            document.report(
                document.at_key(("hosts", name, "name")),
                f"unknown key `name`; the host's name is its key, {name}",
            )


def _shaped(
    document: Document, data: Mapping[str, Any], hosts: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the data for the models, without parts whose problems are reported already."""
    shaped = {k: v for k, v in data.items() if not k.startswith(EXTENSION) and k != "source"}
    shaped = _with_texts(document, shaped, ())
    if "hosts" in shaped:
        shaped["hosts"] = [
            {**_with_texts(document, host, ("hosts", name)), "name": name}
            for name, host in hosts.items()
        ]
        if len(hosts) == 1:
            shaped["hosts"][0].setdefault("role", "head")
    return shaped


def _with_texts(document: Document, owner: Mapping[str, Any], trail: Trail) -> dict[str, Any]:
    """Keep numbers in environments and labels as their original text: 1.10 stays 1.10."""
    result = dict(owner)
    for key in _TEXT_MAPS:
        values = owner.get(key)
        if isinstance(values, dict):
            result[key] = {
                name: document.texts.get((*trail, key, name), value)
                if isinstance(value, int | float) and not isinstance(value, bool)
                else value
                for name, value in values.items()
            }
    return result


def _report(document: Document, error: Mapping[str, Any], names: list[str]) -> None:
    """Report one of pydantic's errors at its position in the file."""
    trail = _trail(error["loc"], names)
    kind = error["type"]
    if error["input"] is None:
        return  # `read` has reported values that are missing or unreadable
    if trail and trail[-1] == "[key]":
        problem = value_problem(error, shown(trail[-2], None))
        document.report(document.at_key(trail[:-1]), f"`{dotted(trail[:-1])}`: {problem}")
    elif kind == "extra_forbidden":
        document.report(document.at_key(trail), _unknown(trail))
    elif kind == "missing":
        if trail not in document.keys:
            document.report(document.at_key(trail[:-1]), f"`{dotted(trail)}` is missing")
    elif trail != ("hosts",):
        written = shown(error["input"], document.texts.get(trail))
        problem = value_problem(error, written)
        name_is_key = len(trail) == 3 and trail[0] == "hosts" and trail[2] == "name"
        if name_is_key:
            document.report(document.at_key(trail[:-1]), f"the host name {problem}")
        else:
            document.report(document.at(trail), f"`{dotted(trail)}` {problem}")


def _trail(location: tuple[str | int, ...], names: list[str]) -> Trail:
    """Replace pydantic's index of a host by its name."""
    if len(location) > 1 and location[0] == "hosts":
        return ("hosts", names[int(location[1])], *location[2:])
    return location


def _unknown(trail: Trail) -> str:
    """Describe an unknown key, with the nearest known one or the section that has it."""
    key, owner = str(trail[-1]), _model_at(trail[:-1])
    known = tuple(name for name, field in owner.model_fields.items() if not field.exclude)
    near = did_you_mean(key, known)
    for section in () if near else known:
        inner = _model_of(owner.model_fields[section].annotation)
        if inner and key in inner.model_fields and section != "hosts":
            near = f"; did you mean {section}.{key}?"
    return f"unknown key `{dotted(trail)}`{near or '; known keys: ' + ', '.join(known)}"


def _model_at(trail: Trail) -> type[BaseModel]:
    """Return the model whose keys are at `trail`."""
    model: type[BaseModel] = Inventory
    for part in trail:
        field = model.model_fields.get(str(part)) if isinstance(part, str) else None
        model = (_model_of(field.annotation) if field else None) or model
    return model


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model inside `tuple[Gpu, ...]`, `Ssh`, and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_of(inner) for inner in typing.get_args(annotation))
    return next((model for model in found if model), None)


def _completed(document: Document, inventory: Inventory, path: Path) -> Inventory | None:
    """Make paths absolute, and merge the cluster's ssh and env into every host."""
    base = path.absolute().parent
    ssh = _with_paths(document, inventory.ssh, ("ssh",), base)
    hosts = tuple(
        host.model_copy(
            update={
                "ssh": _merged(ssh, _with_paths(document, host.ssh, _ssh_of(host), base)),
                "env": {**inventory.env, **host.env},
            }
        )
        for host in inventory.hosts
    )
    archive = inventory.image_archive
    return inventory.model_copy(
        update={
            "ssh": ssh,
            "hosts": hosts,
            "packages": _packages_with_paths(document, inventory.packages, base),
            "image_archive": archive and _absolute(document, archive, ("image_archive",), base),
            "source": path.absolute(),
        }
    )


def _packages_with_paths(document: Document, packages: Packages, base: Path) -> Packages:
    def made(path: Path | None, *trail: str) -> Path | None:
        return path and _absolute(document, path, ("packages", *trail), base)

    def source(of: PackageSource, name: str) -> PackageSource:
        return of.model_copy(update={"key": made(of.key, name, "key")})

    return packages.model_copy(
        update={
            "offline": made(packages.offline, "offline"),
            "nvidia": source(packages.nvidia, "nvidia"),
            "docker": packages.docker and source(packages.docker, "docker"),
        }
    )


def _ssh_of(host: Host) -> Trail:
    return ("hosts", host.name, "ssh")


def _merged(common: Ssh, own: Ssh) -> Ssh:
    return common.model_copy(update={k: v for k, v in own if v is not None})


def _with_paths(document: Document, ssh: Ssh, trail: Trail, base: Path) -> Ssh:
    update = {
        key: _absolute(document, value, (*trail, key), base)
        for key, value in ssh
        if isinstance(value, Path)
    }
    return ssh.model_copy(update=update)


def _absolute(document: Document, path: Path, trail: Trail, base: Path) -> Path:
    """Expand `~`, and resolve relative paths from the inventory's directory."""
    try:
        return base / path.expanduser()
    except RuntimeError:
        document.report(document.at(trail), f"`{dotted(trail)}`: there is no user {path.parts[0]}")
        return path
