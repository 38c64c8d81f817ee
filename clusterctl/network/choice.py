"""Choose the address and the interfaces of each host: as the inventory names them, else by one
rule. Pure: takes inventory and facts, returns a topology.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_interface
from typing import TypeVar

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.errors import ClusterctlError, Problems, RequirementsNotMet, raise_all
from clusterctl.facts.candidates import (
    VPN,
    as_candidate,
    candidates,
    maker_of,
    one_port,
    speed_of,
)
from clusterctl.facts.container_networks import bridge_choices
from clusterctl.facts.model import HostFacts, NicFacts
from clusterctl.inventory.model import Host, Inventory, Nics
from clusterctl.inventory.unsafe import is_public
from clusterctl.network.fabric_choice import Fabric, NoNetwork, choose_fabric, choose_rdma
from clusterctl.network.passed_over import passed_over
from clusterctl.ray_cluster.topology import Node, Topology, shared_addresses

T = TypeVar("T")


@dataclass(frozen=True)
class ChosenAddress:
    """A node IP, the NIC that holds it, and why it was chosen."""

    ip: str
    nic: str
    reason: str


def resolve(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Topology:
    """Return the topology of all hosts, with the reasons. Raises RequirementsNotMet, or Problems
    for several. Every suggested fix was tried with these facts."""
    try:
        topology = _resolved(inventory, facts)
    except (RequirementsNotMet, Problems) as failure:
        errors = failure.errors if isinstance(failure, Problems) else (failure,)
        lost = [error for error in errors if isinstance(error, NoNetwork)]
        if lost:
            _offer_ways_out(inventory, facts, lost)
        raise

    notes = _passed_over(inventory, facts, topology)
    for name, line in bridge_choices(inventory, facts).items():
        notes[name] = (*notes.get(name, ()), line)
    nodes = (
        replace(node, explain=(*node.explain, *notes.get(node.host, ()))) for node in topology.nodes
    )
    return Topology(tuple(nodes))


def _passed_over(
    inventory: Inventory, facts: Mapping[str, HostFacts], topology: Topology
) -> dict[str, tuple[str, ...]]:
    if len(topology.nodes) == 1:
        return {}  # No traffic leaves the host
    hosts = {host.name: host for host in inventory.hosts}
    reached = {name: ip for name, host in hosts.items() if (ip := _reached(host, facts[name]))}
    known = {name: facts[name] for name in hosts}
    works = cache(partial(_works, inventory, facts))  # hosts ask the same of each other
    lines = passed_over(topology, known, reached, works)
    return {name: (line,) for name, line in lines.items()}


def _offer_ways_out(
    inventory: Inventory, facts: Mapping[str, HostFacts], lost: list[NoNetwork]
) -> None:
    """Add to the errors the values of network.subnet that would make the choice succeed."""
    known = [facts[host.name] for host in inventory.hosts if host.name in facts]
    shared = set.intersection(*map(_own_networks, known)) if known else set()
    order = sorted(shared, key=lambda it: (it.version, it.is_link_local, it))
    subnets = tuple(str(it) for it in order if _works(inventory, facts, it))
    hint = None
    if subnets:
        hint = "set " + " or ".join(f"network: {{subnet: {it}}}" for it in subnets)
    elif inventory.network.subnet and _works(inventory, facts, None):
        hint = "remove network.subnet from the inventory"
    elif names := _default_nic(inventory, facts):
        hint = (
            f"if a router joins the hosts' networks, set nics: {{control: {names}, nccl: {names}, "
            f"gloo: {names}}} for every host; else give every host an address in one network"
        )
    for error in lost:
        error.subnets = subnets
        error.hint = hint or error.hint or "give every host its own address in one network"


def _default_nic(inventory: Inventory, facts: Mapping[str, HostFacts]) -> str:
    """Return the name of every host's interface with the default route, if all hosts have the same
    one and the choice succeeds with it; else ""."""
    names = {facts[host.name].default_nic for host in inventory.hosts if host.name in facts}
    name = names.pop() if len(names) == 1 else None
    nics = Nics(control=name, nccl=name, gloo=name)
    return name if name and _works(inventory, facts, inventory.network.subnet, nics) else ""


def _own_networks(facts: HostFacts) -> set[IPv4Network | IPv6Network]:
    """Return the networks of interfaces that are up, except container networks."""
    nics = (
        nic
        for nic in facts.nics
        if nic.kind != "loopback"
        and nic.state in ("up", "unknown")
        and maker_of(facts, nic) in (None, VPN)
    )
    networks = {ip_interface(f"{a.ip}/{a.prefix}").network for nic in nics for a in nic.addresses}
    return {net for net in networks if net.version == 4 or not net.is_link_local}


def _works(
    inventory: Inventory,
    facts: Mapping[str, HostFacts],
    subnet: IPv4Network | IPv6Network | None,
    nics: Nics | None = None,
) -> bool:
    """Whether the choice succeeds with this network.subnet (or none) and these nics on every host
    (if any)."""
    network = inventory.network.model_copy(update={"subnet": subnet})
    named = {"nics": nics} if nics else {}
    hosts = tuple(host.model_copy(update=named) for host in inventory.hosts)
    try:
        _resolved(inventory.model_copy(update={"network": network, "hosts": hosts}), facts)
    except (RequirementsNotMet, Problems):
        return False
    return True


def _resolved(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Topology:
    """Return the topology with the reasons for what was chosen.

    An interface that holds a node IP of the inventory also carries NCCL and Gloo, unless the
    inventory names others for them. Otherwise tensors use the fabric (`choose_fabric`), and Ray the
    subnet that SSH connects to, else the fabric.
    """
    named = _for_each(inventory, lambda host: _checked_name(inventory, host, facts.get(host.name)))
    known = {host.name: facts[host.name] for host in inventory.hosts}
    given = {name: address for name, address in named.items() if address is not None}
    unnamed = {host.name: host for host in inventory.hosts if host.name not in given}
    if len(known) > 1:
        control = {**given, **ssh_addresses(unnamed, known)}
    else:
        control = given | {name: _lone_address(host, known[name]) for name, host in unnamed.items()}
    rdma = choose_rdma(inventory, known)
    by_rdma = any(rdma.ports.values())
    fabric = _fabric(inventory, known, given, control, by_rdma=by_rdma)

    def node(host: Host) -> Node:
        name, of_host = host.name, known[host.name]
        place = fabric.places[name] if fabric else None
        if place and name not in control:
            reason = "its address in the subnet of NCCL"
            control[name] = ChosenAddress(place.ip, place.nic.nic, reason)
        address = control[name]
        own = (address.nic, "the interface that holds the node IP")
        if host.nics.nccl:
            nccl = (host.nics.nccl, "named in the inventory")
        elif name in given or not fabric or not place:
            nccl = own
        else:
            nccl = (place.nic.nic, fabric.reason)
        if host.nics.gloo:
            gloo = (host.nics.gloo, "named in the inventory")
        else:
            gloo = own if name in given else (nccl[0], "the interface of NCCL")
        for purpose, (nic, _) in (("nccl", nccl), ("gloo", gloo)):
            _require_usable(host, of_host, purpose, nic)
        counted = accelerator_named(inventory.accelerator).counted
        return Node(
            host=name,
            role=host.role,
            node_ip=address.ip,
            control_nic=address.nic,
            nccl_nics=(nccl[0],),
            gloo_nic=gloo[0],
            rdma=rdma.ports[name],
            # If the inventory lists no GPUs for a host, use all that the host has.
            gpus=len(host.gpus) or (len(of_host.gpus.gpus) if counted else 0),
            speed=speed_of(of_host, address.nic),
            explain=(
                f"node IP {address.ip} on {address.nic}: {address.reason}",
                f"NCCL on {nccl[0]}: {nccl[1]}",
                f"Gloo on {gloo[0]}: {gloo[1]}",
                rdma.reasons[name],
            ),
        )

    nodes = _for_each(inventory, node)
    raise_all(NoNetwork(it.summary, host=it.host) for it in shared_addresses(nodes.values()))
    return Topology(tuple(nodes.values()))


def public_addresses(inventory: Inventory, topology: Topology) -> list[RequirementsNotMet]:
    """Return an error for each public node IP, unless the inventory enables the firewall or says
    that something else closes the ports."""
    if inventory.network.firewall or inventory.network.public:
        return []
    return [
        RequirementsNotMet(
            f"its node IP {node.node_ip} is a public address, and Ray and vLLM trust anyone who "
            "can reach their ports",
            host=node.host,
            hint="set network.firewall: true; or a private node_ip or network.subnet; or, where "
            "something in front of the hosts closes the ports, network.public: true",
        )
        for node in topology.nodes
        if is_public(node.node_ip)
    ]


def _for_each(inventory: Inventory, work: Callable[[Host], T]) -> dict[str, T]:
    """Return the result of `work` for each host. Raises the problems of all hosts together."""
    found: dict[str, T] = {}
    problems: list[ClusterctlError] = []
    for host in inventory.hosts:
        try:
            found[host.name] = work(host)
        except RequirementsNotMet as problem:
            problems.append(problem)
    raise_all(problems)
    return found


def _checked_name(
    inventory: Inventory, host: Host, facts: HostFacts | None
) -> ChosenAddress | None:
    """Return the node IP set in the inventory, if any, after checking that everything it names
    exists."""
    if facts is None:
        raise RequirementsNotMet(
            "its interfaces are unknown, since it could not be probed",
            host=host.name,
            hint=f"clusterctl check --limit {host.name}",
        )
    for purpose, nic in (("nccl", host.nics.nccl), ("gloo", host.nics.gloo)):
        if nic:
            _require_usable(host, facts, purpose, nic)
    found = [device.name for device in facts.rdma]
    missing = [name for name in host.nics.rdma or () if name not in found]
    if missing:
        raise RequirementsNotMet(
            f"nics.rdma names {', '.join(missing)}, but there is no such RDMA device",
            host=host.name,
            hint=f"found: {', '.join(found) or 'none'}; correct hosts.{host.name}.nics.rdma",
        )
    return named_address(inventory, host, facts)


def _require_usable(host: Host, facts: HostFacts, purpose: str, name: str) -> None:
    nic = facts.nic(name)
    if nic is None:
        names = ", ".join(each.name for each in facts.nics if each.kind != "loopback")
        raise RequirementsNotMet(
            f"nics.{purpose} names {name}, but there is no such interface",
            host=host.name,
            hint=f"name one of {names} under hosts.{host.name}.nics.{purpose}",
        )
    if nic.state == "down":
        raise RequirementsNotMet(
            f"interface {name}, chosen for {purpose}, is down",
            host=host.name,
            hint=f"ip link set {name} up",
        )


def _fabric(
    inventory: Inventory,
    facts: Mapping[str, HostFacts],
    given: Mapping[str, ChosenAddress],
    control: Mapping[str, ChosenAddress],
    *,
    by_rdma: bool,
) -> Fabric | None:
    """Return the fabric; None if nothing is left to choose, or a single host has no candidate."""
    pinned = {}
    for host in inventory.hosts:
        name = host.nics.nccl or (given[host.name].nic if host.name in given else None)
        nic = facts[host.name].nic(name) if name else None
        if nic:
            pinned[host.name] = as_candidate(facts[host.name], nic)
    if len(pinned) == len(facts) and len(control) == len(facts):
        return None
    if len(facts) == 1 and not any(candidates(of_host) for of_host in facts.values()):
        return None
    reached = {name: chosen.ip for name, chosen in control.items()}
    for host in inventory.hosts:
        if ip := _reached(host, facts[host.name]):
            reached.setdefault(host.name, ip)
    return choose_fabric(facts, pinned, reached, by_rdma=by_rdma)


def named_address(inventory: Inventory, host: Host, facts: HostFacts) -> ChosenAddress | None:
    """Return the node IP that the inventory gives: directly, by the control NIC, or by the subnet;
    keys of the host take precedence over those of the cluster. None if it gives none. Raises
    RequirementsNotMet if the host's facts contradict it."""
    if host.node_ip:
        return _held(host, facts, host.node_ip, "node_ip in the inventory")
    if host.nics.control:
        name = host.nics.control
        nic = facts.nic(name)
        ips = [ip for each, ip in _addresses(facts) if each is nic]
        if not ips:
            raise RequirementsNotMet(
                f"nics.control names {name}, which "
                + ("has no address" if nic else "does not exist"),
                host=host.name,
                hint=f"it has {_listed(_addresses(facts))}; correct hosts.{host.name}.nics.control",
            )
        ipv4_first = min(ips, key=lambda ip: ":" in ip)
        return ChosenAddress(ipv4_first, name, "nics.control in the inventory")
    subnet = inventory.network.subnet
    if not subnet:
        return None
    inside = [
        (nic, ip)
        for nic, ip in _addresses(facts)
        if ip_address(ip).version == subnet.version and ip_address(ip) in subnet
    ]
    own = [place for place in inside if place[1] == _reached(host, facts)]
    if len(inside) == 2 and one_port(*(nic.name for nic, _ in inside)):
        own = own or inside[:1]
    if len({ip for _, ip in inside}) != 1 and not own:
        raise NoNetwork(
            f"network.subnet is {subnet}, but the host has {_listed(inside) or 'no address'} in it",
            host=host.name,
            hint=f"set hosts.{host.name}.node_ip to one of them" if inside else None,
        )
    nic, ip = (own or inside)[0]
    return ChosenAddress(ip, nic.name, f"its address in {subnet}")


def ssh_addresses(
    hosts: Mapping[str, Host], facts: Mapping[str, HostFacts]
) -> dict[str, ChosenAddress]:
    """Return the addresses that SSH connects to (users reach the API there), if all are on
    interfaces that a cluster can use and in one subnet; else an empty dict."""
    found = {
        name: place
        for name, host in hosts.items()
        if (place := _ssh_address(host, facts[name])) is not None
    }
    if len(found) < len(hosts) or len({subnet for _, subnet in found.values()}) > 1:
        return {}
    if len({chosen.ip for chosen, _ in found.values()}) < len(found):
        return {}  # One address for all, as behind a NAT
    return {name: chosen for name, (chosen, _) in found.items()}


def _ssh_address(host: Host, facts: HostFacts) -> tuple[ChosenAddress, IPv4Network] | None:
    ip = _reached(host, facts)
    for nic in candidates(facts):
        for address in nic.addresses:
            if str(address.ip) == ip:
                reason = "the address that SSH connects to"
                return ChosenAddress(ip, nic.nic, reason), address.network
    return None


def _reached(host: Host, facts: HostFacts) -> str:
    """Return the host's address that SSH connects to; empty if it is not known."""
    return host.address if facts.nic_with(host.address) else facts.ssh_ip


def _lone_address(host: Host, facts: HostFacts) -> ChosenAddress:
    """Choose the node IP of a single host, which no other host needs to reach. Raises
    RequirementsNotMet."""
    offered = candidates(facts)
    held = facts.nic_with(host.address)
    if held and (held.kind != "loopback" or not offered):
        return _held(host, facts, host.address, "the address that SSH connects to")
    if place := _ssh_address(host, facts):
        return place[0]
    best = [nic for nic in offered if nic.default_route or len(offered) == 1]
    if not best:
        why = "it has no address"
        if addresses := _listed(_addresses(facts)):
            why = f"no usable interface has the default route ({addresses})"
        raise RequirementsNotMet(
            f"cannot choose its node IP: {why}",
            host=host.name,
            hint=f"set network.subnet, or hosts.{host.name}.node_ip",
        )
    reason = "its only usable interface" if len(offered) == 1 else "the default route"
    return ChosenAddress(str(best[0].addresses[0].ip), best[0].nic, reason)


def _held(host: Host, facts: HostFacts, ip: str, reason: str) -> ChosenAddress:
    nic = facts.nic_with(ip)
    if nic is None:
        raise RequirementsNotMet(
            f"node_ip {ip} is on none of its interfaces",
            host=host.name,
            hint=f"it has {_listed(_addresses(facts))}; correct hosts.{host.name}.node_ip",
        )
    return ChosenAddress(ip, nic.name, reason)


def _addresses(facts: HostFacts) -> Iterator[tuple[NicFacts, str]]:
    """Yield the addresses that may become a node IP: not those of containers, nor IPv6 link-local
    ones, which are meaningless without an interface."""
    for nic in facts.nics:
        if nic.kind != "loopback" and maker_of(facts, nic) in (None, VPN):
            found = (a for a in nic.addresses if a.scope == "global" or ":" not in a.ip)
            yield from ((nic, address.ip) for address in found)


def _listed(addresses: Iterator[tuple[NicFacts, str]] | list[tuple[NicFacts, str]]) -> str:
    return ", ".join(f"{ip} on {nic.name}" for nic, ip in addresses)
