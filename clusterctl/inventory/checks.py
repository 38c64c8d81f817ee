"""Check conditions that involve several hosts.

The checks use the raw data, even if it has other errors, so that these problems are reported
together with those of single values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address, ip_network
from typing import Any

from clusterctl.inventory.document import Document, Trail

_DEFAULT_SSH_PORT = 22


def check(document: Document) -> None:
    """Report duplicate addresses, heads and node addresses to `document`."""
    data = document.data
    if not isinstance(data, dict):
        return
    hosts = hosts_of(data)
    _check_heads(document, hosts)
    _check_unique(document, "address and port", _endpoints(data, hosts))
    _check_unique(document, "node_ip", _node_addresses(hosts))
    _check_reachable(document, data, hosts)


def hosts_of(data: Mapping[str, object]) -> dict[str, dict[str, Any]]:
    """Return the hosts that are mappings in the file, by name."""
    hosts = data.get("hosts")
    if not isinstance(hosts, dict):
        return {}
    return {name: host for name, host in hosts.items() if isinstance(host, dict)}


def _check_heads(document: Document, hosts: Mapping[str, Mapping[str, Any]]) -> None:
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


def _endpoints(
    data: Mapping[str, Any], hosts: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[object, Trail]]:
    common = _port(data)
    for name, host in hosts.items():
        if isinstance(host.get("address"), str):
            port = _port(host) or common or _DEFAULT_SSH_PORT
            yield (_canonical(host["address"]), port), ("hosts", name, "address")


def _node_addresses(hosts: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[object, Trail]]:
    for name, host in hosts.items():
        if isinstance(host.get("node_ip"), str):
            yield _canonical(host["node_ip"]), ("hosts", name, "node_ip")


def _port(owner: Mapping[str, Any]) -> object:
    ssh = owner.get("ssh")
    return ssh.get("port") if isinstance(ssh, dict) else None


def _canonical(address: str) -> str:
    """Return a canonical spelling: IPv6 addresses have many, and host names ignore case."""
    try:
        return str(ip_address(address))
    except ValueError:
        return address.lower().removesuffix(".")


def _check_unique(document: Document, what: str, found: Iterator[tuple[object, Trail]]) -> None:
    first: dict[str, Trail] = {}
    for value, trail in found:
        other = first.setdefault(repr(value), trail)
        if other != trail:
            document.report(
                document.at(trail),
                f"{trail[1]} has the same {what} as {other[1]}, on line {document.at(other).line}",
            )


def _check_reachable(
    document: Document, data: Mapping[str, Any], hosts: Mapping[str, Mapping[str, Any]]
) -> None:
    """Report node addresses outside the cluster's subnet, and loopbacks among several hosts."""
    network = data.get("network")
    subnet = _parsed_network(network.get("subnet")) if isinstance(network, dict) else None
    for name, host in hosts.items():
        try:
            address = ip_address(str(host.get("node_ip")))
        except ValueError:
            continue
        trail = ("hosts", name, "node_ip")
        if subnet is not None and address not in subnet:
            document.report(document.at(trail), f"{address} is outside network.subnet {subnet}")
        if address.is_loopback and len(hosts) > 1:
            document.report(document.at(trail), f"the other hosts cannot reach {address}")


def _parsed_network(text: object) -> Any:
    try:
        return ip_network(text) if isinstance(text, str) else None
    except ValueError:
        return None
