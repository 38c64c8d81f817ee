"""Load an `Inventory` from a YAML file, or report every problem of the file with its position.

The file has hosts as a mapping, and paths relative to itself; the pydantic classes have a tuple of
hosts, each complete. Conditions across hosts are checked in the raw data, even if it has other
errors, so that all problems are reported together.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from clusterctl.inventory.document import INVENTORY, Document, Trail, dotted, file_error, read
from clusterctl.inventory.model import ALL_HOSTS, Inventory, Ssh
from clusterctl.inventory.values import did_you_mean, shown, value_problem

EXTENSION = "x-"  # Top-level keys with this prefix belong to the user, for anchors
_DEFAULT_SSH_PORT = 22
_Hosts = Mapping[str, Mapping[str, Any]]
_M = TypeVar("_M", bound=BaseModel)


def load(path: Path) -> Inventory:
    """Load the inventory in `path`, with its defaults merged into every host.

    Raises InventoryError with every problem found; `detail` has `file:line:column: text` lines.
    """
    document = read(path)
    inventory = None
    if isinstance(document.data, dict):
        inventory = _validated(document, document.data, path)
    elif not document.problems:
        document.report(document.at(()), "an inventory is a mapping: cluster, image, hosts")
    if document.problems or inventory is None:
        raise file_error(INVENTORY, path, document.problems)
    return inventory


def line_of(inventory: Inventory, host: str) -> int:
    """Return the line of the inventory file on which the host begins."""
    return read(inventory.source).at_key(("hosts", host)).line


def _validated(document: Document, data: Mapping[str, Any], path: Path) -> Inventory | None:
    """Return the inventory, or None after reporting its problems to `document`."""
    listed = data.get("hosts")
    given = listed if isinstance(listed, dict) else {}
    hosts = {name: host for name, host in given.items() if isinstance(host, dict)}
    if listed is not None and not given:
        text = "`hosts` must be a mapping of names to hosts: gpu1: {address: ...}"
        document.report(document.at(("hosts",)), text)
    for name in given.keys() - hosts.keys():
        text = f"`hosts.{name}` must be a mapping: {name}: {{address: ...}}"
        document.report(document.at(("hosts", name)), text)
    # Keys that exist in the models but not in the file
    if "source" in data:
        document.report(document.at_key(("source",)), "unknown key `source`")
    for name in (name for name, host in hosts.items() if "name" in host):
        text = f"unknown key `name`; the host's name is its key, {name}"
        document.report(document.at_key(("hosts", name, "name")), text)
    _check_heads(document, hosts)
    _check_addresses(document, data, hosts)
    try:
        # JSON mode is strict about types and still reads paths and networks from text.
        shaped = json.dumps(_shaped(document, data, hosts))
        inventory = Inventory.model_validate_json(shaped, strict=True)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            _report(document, item, list(hosts))
        return None
    _check_gateways(document, inventory)
    base = path.absolute().parent
    inventory = _with_paths(document, inventory, (), base)
    completed = []
    for host in inventory.hosts:
        own = _with_paths(document, host.ssh, ("hosts", host.name, "ssh"), base)
        ssh = inventory.ssh.model_copy(update={k: v for k, v in own if v is not None})
        env = {**inventory.env, **host.env}
        completed.append(host.model_copy(update={"ssh": ssh, "env": env}))
    return inventory.model_copy(update={"hosts": tuple(completed), "source": path.absolute()})


def _check_heads(document: Document, hosts: _Hosts) -> None:
    roles = {name: host["role"] for name, host in hosts.items() if "role" in host}
    heads = [name for name, role in roles.items() if role == "head"]
    for name in heads[1:]:
        document.report(
            document.at(("hosts", name, "role")),
            f"{name} is a second head; {heads[0]} is already the head, on line "
            f"{document.at(('hosts', heads[0], 'role')).line}",
        )
    if not heads and len(hosts) > 1 and all(role == "worker" for role in roles.values()):
        document.report(
            document.at_key(("hosts",)),
            f"no host is the head; add `role: head` to one of them, such as {next(iter(hosts))}",
        )
    if len(hosts) == 1 and "worker" in roles.values():
        place = document.at(("hosts", *roles, "role"))
        document.report(place, "the only host is the head; remove `role`")


def _check_gateways(document: Document, inventory: Inventory) -> None:
    names = tuple(host.name for host in inventory.hosts)
    for name in inventory.gateway.hosts:
        if name not in (*names, ALL_HOSTS):
            near = did_you_mean(name, names)
            place = document.at(("gateway", "hosts"))
            document.report(place, f"`gateway.hosts`: no host is named {name}{near}")
    virtual = str(inventory.gateway.virtual_ip)
    for host in inventory.hosts:
        if virtual in (host.address, host.node_ip):
            place = document.at(("gateway", "virtual_ip"))
            document.report(place, f"`gateway.virtual_ip`: {virtual} is {host.name}'s own address")


def _check_addresses(document: Document, data: Mapping[str, Any], hosts: _Hosts) -> None:
    """Report duplicate addresses, node addresses outside the cluster's subnet, and loopbacks among
    several hosts."""

    def canonical(address: str) -> str:
        """Return the address in canonical spelling: IPv6 addresses have many, and host names ignore
        case."""
        try:
            return str(ip_address(address))
        except ValueError:
            return address.lower().removesuffix(".")

    def port_of(owner: Mapping[str, Any]) -> object:
        ssh = owner.get("ssh")
        return ssh.get("port") if isinstance(ssh, dict) else None

    network, subnet = data.get("network"), None
    if isinstance(network, dict) and isinstance(network.get("subnet"), str):
        with suppress(ValueError):
            subnet = ip_network(network["subnet"])
    first: dict[tuple[str, str], Trail] = {}
    for name, host in hosts.items():
        address, node_ip = host.get("address"), host.get("node_ip")
        found: list[tuple[str, str, object]] = []
        if isinstance(address, str):
            port = port_of(host) or port_of(data) or _DEFAULT_SSH_PORT
            found.append(("address and port", "address", (canonical(address), port)))
        if isinstance(node_ip, str):
            found.append(("node_ip", "node_ip", canonical(node_ip)))
        for what, key, value in found:
            trail: Trail = ("hosts", name, key)
            other = first.setdefault((what, repr(value)), trail)
            if other != trail:
                line = document.at(other).line
                text = f"{name} has the same {what} as {other[1]}, on line {line}"
                document.report(document.at(trail), text)
        with suppress(ValueError):
            ip, place = ip_address(str(node_ip)), document.at(("hosts", name, "node_ip"))
            if subnet is not None and ip not in subnet:
                document.report(place, f"{ip} is outside network.subnet {subnet}")
            if ip.is_loopback and len(hosts) > 1:
                document.report(place, f"the other hosts cannot reach {ip}")


def _shaped(document: Document, data: Mapping[str, Any], hosts: _Hosts) -> dict[str, Any]:
    """Return the data for the pydantic classes, without parts whose problems are already
    reported."""

    own = {k: v for k, v in data.items() if not k.startswith(EXTENSION) and k != "source"}
    shaped = with_texts(document, own, ())
    if "hosts" in shaped:
        shaped["hosts"] = [
            {**with_texts(document, host, ("hosts", name)), "name": name}
            for name, host in hosts.items()
        ]
        if len(hosts) == 1:
            shaped["hosts"][0].setdefault("role", "head")
    return shaped


def with_texts(document: Document, owner: Mapping[str, Any], trail: Trail) -> dict[str, Any]:
    """Return `owner`, with the original text of numbers in its environment and labels: 1.10 stays
    1.10."""
    result = dict(owner)
    for key in ("env", "labels"):
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
    trail: Trail = error["loc"]
    if len(trail) > 1 and trail[0] == "hosts":  # pydantic has the host's index, the file its name
        trail = ("hosts", names[int(trail[1])], *trail[2:])
    if len(trail) == 3 and trail[0] == "hosts" and trail[2] == "name":  # Its key in the file
        problem = value_problem(error, shown(error["input"], document.texts.get(trail)))
        document.report(document.at_key(trail[:-1]), f"the host name {problem}")
    elif trail != ("hosts",) or error["type"] == "missing":
        report_problem(document, error, trail, Inventory)


def report_problem(
    document: Document, error: Mapping[str, Any], trail: Trail, root: type[BaseModel]
) -> None:
    """Report one of pydantic's errors about `root` at `trail`, its place in the file."""
    if error["input"] is None:
        return  # `read` has reported values that are missing or unreadable
    if trail and trail[-1] == "[key]":
        problem = value_problem(error, shown(trail[-2]))
        document.report(document.at_key(trail[:-1]), f"`{dotted(trail[:-1])}`: {problem}")
    elif error["type"] == "extra_forbidden":
        document.report(document.at_key(trail), _unknown(trail, root))
    elif error["type"] == "missing":
        if trail not in document.keys:
            document.report(document.at_key(trail[:-1]), f"`{dotted(trail)}` is missing")
    else:
        problem = value_problem(error, shown(error["input"], document.texts.get(trail)))
        document.report(document.at(trail), f"`{dotted(trail)}` {problem}")


# Keys that people write under `ssh`, and the variables that clusterctl reads instead.
_SECRETS = {
    "password": "CLUSTERCTL_SSH_PASSWORD",
    "passphrase": "CLUSTERCTL_SSH_PASSPHRASE",
    "sudo_password": "CLUSTERCTL_SUDO_PASSWORD",
}


def _unknown(trail: Trail, root: type[BaseModel]) -> str:
    """Describe an unknown key, with the nearest known one or the section it belongs in."""
    owner = root
    for part in trail[:-1]:
        field = owner.model_fields.get(str(part)) if isinstance(part, str) else None
        owner = (_model_of(field.annotation) if field else None) or owner
    key = str(trail[-1])
    known = tuple(name for name, field in owner.model_fields.items() if not field.exclude)
    if owner is Ssh and key in _SECRETS:
        return (
            f"`{dotted(trail)}` does not belong in a file: set {_SECRETS[key]}, or enter it when "
            "prompted"
        )
    near = did_you_mean(key, known)
    for section in () if near else known:
        inner = _model_of(owner.model_fields[section].annotation)
        if inner and key in inner.model_fields and section != "hosts":
            near = f"; did you mean {section}.{key}?"
    return f"unknown key `{dotted(trail)}`{near or '; known keys: ' + ', '.join(known)}"


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model inside `tuple[Gpu, ...]`, `Ssh`, and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_of(inner) for inner in typing.get_args(annotation))
    return next((model for model in found if model), None)


def _with_paths(document: Document, model: _M, trail: Trail, base: Path) -> _M:
    """Expand `~` in all paths of `model`, and resolve relative ones from the directory `base`."""
    update: dict[str, object] = {}
    for key, value in model:
        inner = (*trail, key)
        if isinstance(value, BaseModel):
            update[key] = _with_paths(document, value, inner, base)
        elif isinstance(value, Path):
            try:
                update[key] = base / value.expanduser()
            except RuntimeError:
                text = f"`{dotted(inner)}`: no user named {value.parts[0]}"
                document.report(document.at(inner), text)
    return model.model_copy(update=update)
