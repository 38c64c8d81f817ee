"""The inventory file that `init` writes: every value with its reason. Pure.

The same hosts give the same text: it contains no time, and nothing of this machine.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_interface
from pathlib import Path

from clusterctl.accelerators.names import DEFAULT
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.facts.candidates import candidates, rejected
from clusterctl.facts.model import GpuFacts, HostFacts
from clusterctl.inventory.document import scalar
from clusterctl.inventory.model import Host, Inventory, Ssh
from clusterctl.network.fabric_choice import shared_subnets
from clusterctl.ray_cluster.topology import Node, Topology
from clusterctl.survey.host_names import why_no_gpu
from clusterctl.units import GIB


@dataclass(frozen=True)
class Wishes:
    """The user's choices for the cluster; everything else is found out from the hosts."""

    cluster: str
    image: str
    models: str
    accelerator: str = DEFAULT
    subnet: str | None = None
    ssh: Ssh = field(default_factory=Ssh)


@dataclass(frozen=True)
class Found:
    """An inventory and its sources. Hosts have their final names."""

    inventory: Inventory
    facts: Mapping[str, HostFacts]
    topology: Topology
    words: Mapping[str, str]  # host to its word on the command line
    head_reason: str
    doubts: tuple[str, ...]


_WIDTH = 98
_MOST_NAMES = 4  # unused interfaces to name per reason

_HEAD = """\
# What hosts said to `clusterctl init`, and what was chosen for them, with the reasons. Edit it as
# you like; docs/inventory.md explains every key. Next: clusterctl check FILE
cluster: {cluster}

# The container image with vLLM, the same on every host.
image: {image}

# Where models lie, the same path on every host.
models: {models}
"""


def inventory_text(wishes: Wishes, found: Found) -> str:
    """Return YAML that `load` accepts."""
    blocks = [
        _HEAD.format(
            cluster=scalar(wishes.cluster),
            image=scalar(wishes.image),
            models=scalar(wishes.models),
        ).rstrip("\n"),
        *_accelerator(wishes),
        *_ssh(wishes.ssh),
        "\n".join(_network(found)),
        "hosts:\n" + "\n\n".join("\n".join(_host(found, node)) for node in found.topology.nodes),
    ]
    return "\n\n".join(blocks) + "\n"


def _accelerator(wishes: Wishes) -> Iterator[str]:
    if note := accelerator_named(wishes.accelerator).inventory_note:
        yield f"# {note}\naccelerator: {wishes.accelerator}"


def _ssh(ssh: Ssh) -> Iterator[str]:
    values = _ssh_values(ssh)
    if values:
        lines = "\n".join(f"  {key}: {value}" for key, value in values.items())
        yield f"# How to reach all hosts. What is left out comes from ~/.ssh/config.\nssh:\n{lines}"


def _ssh_values(ssh: Ssh) -> dict[str, str]:
    found = {
        "user": scalar(ssh.user) if ssh.user else "",
        "port": str(ssh.port) if ssh.port else "",
        "identity_file": _path(ssh.identity_file),
        "known_hosts": _path(ssh.known_hosts),
    }
    return {key: value for key, value in found.items() if value}


def _path(path: Path | None) -> str:
    """Write paths in the home directory with ~, so that the file works for a colleague too."""
    if path is None:
        return ""
    home = Path.home()
    inside = path.is_relative_to(home) and home != Path("/")
    return scalar(f"~/{path.relative_to(home)}" if inside else str(path))


def _network(found: Found) -> Iterator[str]:
    """Yield the candidate subnets as comments, and network.subnet with the nodes' own."""
    yield from _comment([*_shared(found), f"{_rdma_line(found)}."])
    subnet = control_subnet(found)
    if subnet is None:
        yield from _comment(["The nodes' addresses are in different subnets: see node_ip."])
        return
    yield "network:"
    yield f"  subnet: {scalar(subnet)} # Ray and the API"


def _shared(found: Found) -> list[str]:
    ranked = shared_subnets({name: candidates(facts) for name, facts in found.facts.items()})
    if not ranked:
        return ["No subnet is shared by all hosts."]
    return [
        "Subnets in which every host has an address, the best for tensors first:",
        *(f"  {each}{_uses(found, str(each.subnet))}" for each in ranked),
        *(_why_nccl(found) if len(ranked) > 1 else ()),
    ]


def _why_nccl(found: Found) -> list[str]:
    """Return the reasons for NCCL's interfaces, which usually are the same for all hosts."""
    if any(host.nics.nccl for host in found.inventory.hosts):
        return ["NCCL uses what you chose."]
    reasons = {node.explain[1].partition(": ")[2] for node in found.topology.nodes}
    return [f"Why there: {reason}." for reason in sorted(reasons)]


def _uses(found: Found, subnet: str) -> str:
    uses = ["Ray and the API"] if control_subnet(found) == subnet else []
    nics = {node.host: node.nccl_nics[0] for node in found.topology.nodes}
    if all(subnet in _networks(found.facts[name], nic) for name, nic in nics.items()):
        uses.insert(0, "tensors (NCCL, Gloo)")
    return f" <- {' and '.join(uses)}" if uses else ""


def _networks(facts: HostFacts, name: str) -> set[str]:
    nic = facts.nic(name)
    return (
        {str(ip_interface(f"{a.ip}/{a.prefix}").network) for a in nic.addresses} if nic else set()
    )


def control_subnet(found: Found) -> str | None:
    """Return the subnet of all node IPs; None if they are in several."""
    subnets = set()
    for node in found.topology.nodes:
        nic = found.facts[node.host].nic(node.control_nic)
        prefixes = [a.prefix for a in nic.addresses if a.ip == node.node_ip] if nic else []
        subnets |= {str(ip_interface(f"{node.node_ip}/{prefix}").network) for prefix in prefixes}
    return subnets.pop() if len(subnets) == 1 else None


def _rdma_line(found: Found) -> str:
    reasons = {node.explain[-1] for node in found.topology.nodes}
    if len(reasons) == 1:
        return reasons.pop()
    return "RDMA on, over the devices that each host names below"


def _host(found: Found, node: Node) -> Iterator[str]:
    host, facts = found.inventory.host(node.host), found.facts[node.host]
    yield from _comment([_machine(facts)], indent=2)
    yield f"  {scalar(node.host)}:"
    yield f"    address: {scalar(host.address)}"
    yield from _own_ssh(host, found.inventory.ssh)
    if node.role == "head" and len(found.topology.nodes) > 1:
        yield f"    role: head # {found.head_reason}"
    yield from _node_ip(found, host, node)
    yield from _interfaces(facts, node)
    yield from _gpus(found, node)


def _machine(facts: HostFacts) -> str:
    memory = f"{facts.memory / GIB:.0f} GiB of memory"
    return f"{facts.os.pretty}, {facts.os.architecture}, {facts.cpus} CPUs, {memory}"


def _own_ssh(host: Host, common: Ssh) -> Iterator[str]:
    usual = _ssh_values(common)
    own = {key: value for key, value in _ssh_values(host.ssh).items() if usual.get(key) != value}
    if own:
        yield f"    ssh: {{{', '.join(f'{key}: {value}' for key, value in own.items())}}}"


def _node_ip(found: Found, host: Host, node: Node) -> Iterator[str]:
    """Yield node_ip, unless network.subnet or the host's address determines it."""
    subnet = control_subnet(found)
    inside = [
        ip
        for ip in [
            a.ip
            for nic in found.facts[node.host].nics
            for a in nic.addresses
            if a.scope == "global"
        ]
        if subnet and _is_in(ip, subnet)
    ]
    if inside != [node.node_ip] or host.address != node.node_ip:
        reason = node.explain[0].partition(": ")[2]
        yield f"    node_ip: {scalar(node.node_ip)} # {reason}"


def _is_in(ip: str, subnet: str) -> bool:
    network = ip_interface(subnet).network
    return ip_address(ip).version == network.version and ip_address(ip) in network


def _interfaces(facts: HostFacts, node: Node) -> Iterator[str]:
    """Yield the host's interfaces, with their use or the reason why they are not used."""
    rows = [
        (
            each.nic,
            " ".join(str(a.ip) for a in each.addresses),
            f"{each}{_purposes(node, each.nic)}",
        )
        for each in candidates(facts)
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
    for name, ips, text in rows:
        yield f"    # {name.ljust(widths[0])}  {ips.ljust(widths[1])}  {text}"
    if others := _unused(facts):
        yield from _comment([f"not used: {others}"], indent=4)
    nics = {"nccl": scalar(node.nccl_nics[0]), "gloo": scalar(node.gloo_nic)}
    if node.rdma:
        nics["rdma"] = f"[{', '.join(scalar(device) for device in _devices(node))}]"
        yield from _comment([node.explain[-1]], indent=4)
    yield f"    nics: {{{', '.join(f'{key}: {value}' for key, value in nics.items())}}}"


def _unused(facts: HostFacts) -> str:
    """`docker0 (made by Docker); ib0, ib1 (down)`; shortened, as a container host has hundreds."""
    names: dict[str, list[str]] = {}
    for each in rejected(facts):
        names.setdefault(each.reason, []).append(each.nic)
    return "; ".join(
        f"{', '.join(same[:_MOST_NAMES])}"
        f"{f' and {len(same) - _MOST_NAMES} more' if len(same) > _MOST_NAMES else ''} ({reason})"
        for reason, same in names.items()
    )


def _purposes(node: Node, nic: str) -> str:
    purposes = {"Ray and the API": node.control_nic, "NCCL": node.nccl_nics[0]}
    purposes["Gloo"] = node.gloo_nic
    used = [purpose for purpose, name in purposes.items() if name == nic]
    return f" <- {', '.join(used)}" if used else ""


def _devices(node: Node) -> list[str]:
    return list(dict.fromkeys(port.partition(":")[0] for port in node.rdma))


def _gpus(found: Found, node: Node) -> Iterator[str]:
    facts = found.facts[node.host]
    if not accelerator_named(found.inventory.accelerator).counted:
        yield "    gpus: 1"
        return
    gpus = facts.gpus.gpus
    if not gpus:
        yield from _comment([f"no GPU: {why_no_gpu(facts)}"], indent=4)
        yield "    gpus: 0"
        return
    drivers = ", ".join(dict.fromkeys(gpu.driver for gpu in gpus))
    yield from _comment([f"driver {drivers}"], indent=4)
    yield "    gpus:"
    yield from (f"      - {{{_gpu(gpu)}}}" for gpu in gpus)


def _gpu(gpu: GpuFacts) -> str:
    """Format a GPU. Memory shared with the CPU is left out, as it is not a property to check."""
    model = f"model: {scalar(gpu.model)}"
    if gpu.memory is None or gpu.unified:
        return model
    return f"{model}, memory: {gpu.memory / GIB:.1f} GiB"


def _comment(lines: Iterable[str], *, indent: int = 0) -> Iterator[str]:
    """Yield the lines as wrapped comments; a line's leading blanks are repeated when it wraps."""
    for line in lines:
        blanks = " " * (len(line) - len(line.lstrip()))
        start = f"{' ' * indent}# {blanks}"
        yield from textwrap.wrap(
            line.strip(),
            _WIDTH,
            initial_indent=start,
            subsequent_indent=f"{start}    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
