"""The hosts file of node containers: names and addresses of the cluster.

Ray's and vLLM's configuration contains no names, but names are looked up nevertheless: the store of
torch.distributed looks up the name of each peer's address before it accepts the peer, and Ray that
of its own host. If a name server does not answer, each look-up takes 5 to 30 s; torch waits 10 s
for some of them. A hosts file is consulted first and answers at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, ip_address

from clusterctl.facts.model import HostFacts
from clusterctl.ray_cluster.topology import Node, Topology

HOSTS_FILE = "/etc/hosts"  # In the container

_LOCAL = (
    ("127.0.0.1", ("localhost",)),
    ("::1", ("localhost", "ip6-localhost", "ip6-loopback")),
)


def hosts_file(topology: Topology, facts: Mapping[str, HostFacts], host: str) -> str:
    """Return the content for `host`; `facts` are those of the nodes that answered. Each address has
    a name, but a node's name has only one address, the node IP, so that looking it up never returns
    an address of the fabric."""
    taken = {node.host for node in topology.nodes} | {name for _, names in _LOCAL for name in names}
    own_names: dict[str, tuple[str, ...]] = {}
    for node in sorted(topology.nodes, key=lambda node: node.host != host):  # own node first
        of_host = facts.get(node.host)
        # The host's own name, with and without a domain, unless another host has that name.
        full = of_host.hostname.lower() if of_host else ""
        names = dict.fromkeys((full, full.partition(".")[0]))
        own_names[node.host] = tuple(name for name in names if name and name not in taken)
        taken.update(own_names[node.host])
    lines = (
        *_LOCAL,
        *(
            (ip, (name, *own_names.get(name, ())))
            for ip, name in addresses(topology, facts).items()
        ),
    )
    return "".join(f"{ip}\t{' '.join(names)}\n" for ip, names in lines)


def addresses(topology: Topology, facts: Mapping[str, HostFacts]) -> dict[str, str]:
    """Return every address of the cluster with its name."""
    found: dict[str, str] = {}
    for node in topology.nodes:
        found[node.node_ip] = node.host
        for nic, ip in _others(node, facts.get(node.host)):
            found[ip] = f"{node.host}.{nic}"
    # A dual-stack socket, such as that of torch's store, sees an IPv4 peer as ::ffff:10.0.0.2, and
    # the resolver looks that up. Such addresses get their own names, as a node's name must have one
    # address only.
    mapped = {
        f"::ffff:{ip}": f"{name}.mapped"
        for ip, name in found.items()
        if isinstance(ip_address(ip), IPv4Address)
    }
    return {**found, **mapped}


def _others(node: Node, facts: HostFacts | None) -> Iterator[tuple[str, str]]:
    """Yield NIC and address of the node's other addresses that peers may see."""
    if facts is None:
        return
    devices = {port.partition(":")[0] for port in node.rdma}
    rdma = [nic for device in facts.rdma if device.name in devices for nic in device.nics]
    for name in dict.fromkeys((node.control_nic, *node.nccl_nics, node.gloo_nic, *rdma)):
        nic = facts.nic(name)
        for address in nic.addresses if nic else ():
            if address.scope == "global" and address.ip != node.node_ip:
                yield name, address.ip
