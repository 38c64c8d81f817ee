"""The hosts file of node containers: names and addresses of the cluster.

Ray's and vLLM's configuration holds no names, and they are looked up all the same: the store of
torch.distributed asks for the name of each peer's address before it lets the peer in, and Ray for
its own host's. With a name server that does not answer, each look-up takes 5 to 30 s; torch allows
some of them 10 s. A hosts file is asked first and answers at once.
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
    """The content for `host`; `facts` of the nodes that answered. Each address has a name, and each
    node's name has one address, the node IP: a look-up of the name must not lead to the fabric by
    chance."""
    taken = {node.host for node in topology.nodes} | {name for _, names in _LOCAL for name in names}
    own_names: dict[str, tuple[str, ...]] = {}
    for node in sorted(topology.nodes, key=lambda node: node.host != host):  # its own name first
        of_host = facts.get(node.host)
        # What the host calls itself, with and without a domain, unless another host has the name.
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
    """Every address of the cluster and its name."""
    found: dict[str, str] = {}
    for node in topology.nodes:
        found[node.node_ip] = node.host
        for nic, ip in _others(node, facts.get(node.host)):
            found[ip] = f"{node.host}.{nic}"
    # A dual-stack socket, such as that of torch's store, sees an IPv4 peer as ::ffff:10.0.0.2, and
    # the resolver looks it up like that. It gets a name of its own: the node's name would get a
    # second address.
    mapped = {
        f"::ffff:{ip}": f"{name}.mapped"
        for ip, name in found.items()
        if isinstance(ip_address(ip), IPv4Address)
    }
    return {**found, **mapped}


def _others(node: Node, facts: HostFacts | None) -> Iterator[tuple[str, str]]:
    """NIC and address of whatever else peers may see of a node."""
    if facts is None:
        return
    devices = {port.partition(":")[0] for port in node.rdma}
    rdma = [nic for device in facts.rdma if device.name in devices for nic in device.nics]
    for name in dict.fromkeys((node.control_nic, *node.nccl_nics, node.gloo_nic, *rdma)):
        nic = facts.nic(name)
        for address in nic.addresses if nic else ():
            if address.scope == "global" and address.ip != node.node_ip:
                yield name, address.ip
