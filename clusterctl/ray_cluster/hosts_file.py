"""The names and addresses of the cluster, as the hosts file that its node containers get.

Nothing asks for names in Ray's or vLLM's configuration, and still they are looked up: the store of
torch.distributed asks for the name of each peer's address before it lets it in, and Ray for its own
host's. Where a name server does not answer, each of these takes 5 to 30 s; torch gives some of them
10 s. A hosts file answers at once, and is asked first.
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
    """The content for `host`: `facts` of the nodes that answered. Each address has a name, and each
    node's name has one address, the node IP: what asks for a name must not be sent to the fabric
    by chance."""
    taken = {node.host for node in topology.nodes} | {name for _, names in _LOCAL for name in names}
    own_first = sorted(topology.nodes, key=lambda node: node.host != host)
    own = {node.host: _own_names(facts.get(node.host), taken) for node in own_first}
    lines = (
        *_LOCAL,
        *((ip, (name, *own.get(name, ()))) for ip, name in addresses(topology, facts).items()),
    )
    return "".join(f"{ip}\t{' '.join(names)}\n" for ip, names in lines)


def addresses(topology: Topology, facts: Mapping[str, HostFacts]) -> dict[str, str]:
    """Every address of the cluster and its name."""
    found: dict[str, str] = {}
    for node in topology.nodes:
        found[node.node_ip] = node.host
        for nic, ip in _others(node, facts.get(node.host)):
            found[ip] = f"{node.host}.{nic}"
    # A socket that takes both families sees an IPv4 peer as ::ffff:10.0.0.2, as torch's store does,
    # and the resolver looks that up as it is. Under a name of its own: the node's name would
    # get a second address.
    mapped = {f"::ffff:{ip}": f"{name}.mapped" for ip, name in found.items()
              if isinstance(ip_address(ip), IPv4Address)}  # fmt: skip
    return {**found, **mapped}


def _own_names(facts: HostFacts | None, taken: set[str]) -> tuple[str, ...]:
    """What the host calls itself, with and without a domain, as far as that is nobody's name yet;
    added to `taken`."""
    full = facts.hostname.lower() if facts else ""
    found = tuple(name for name in dict.fromkeys((full, full.partition(".")[0]))
                  if name and name not in taken)  # fmt: skip
    taken.update(found)
    return found


def _others(node: Node, facts: HostFacts | None) -> Iterator[tuple[str, str]]:
    """NIC and address: all that peers may see of a node beside its node IP."""
    if facts is None:
        return
    devices = {port.partition(":")[0] for port in node.rdma}
    rdma = [nic for device in facts.rdma if device.name in devices for nic in device.nics]
    for name in dict.fromkeys((node.control_nic, *node.nccl_nics, node.gloo_nic, *rdma)):
        nic = facts.nic(name)
        for address in nic.addresses if nic else ():
            if address.scope == "global" and address.ip != node.node_ip:
                yield name, address.ip
