"""The files of a node: the supervisor's program, node.json, and the containers' hosts file.

Ray's and vLLM's configuration contains no names, but names are looked up anyway: the store of
torch.distributed looks up the name of each peer's address before it accepts the peer, and Ray looks
up its own host's. If a name server does not answer, each lookup takes 5 to 30 s; torch waits 10 s
for some of them. A hosts file is consulted first and answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, ip_address, ip_network

from clusterctl.engine.step import HostView
from clusterctl.facts.claims import is_dns_name
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Inventory
from clusterctl.inventory.values import WRITABLE
from clusterctl.node import package
from clusterctl.node.documents import NodeDocument, from_json, tables_dir, to_json
from clusterctl.node.files import NodePaths
from clusterctl.ray_cluster.nodes import (
    NON_CARRY_OVER_FILE,
    config_root,
    node_document,
    non_carry_over,
)
from clusterctl.ray_cluster.topology import REPLICA_PORTS, Topology
from clusterctl.steps.files import (
    DirectoriesPresent,
    Directory,
    FilesPresent,
    PathsAbsent,
    RemoteFile,
    node_directories,
)
from clusterctl.steps.firewall import Admission

HOSTS_FILE = "/etc/hosts"  # In the container

_LOCAL = (
    ("127.0.0.1", ("localhost",)),
    ("::1", ("localhost", "ip6-localhost", "ip6-loopback")),
)


def directories_present(cluster: str) -> DirectoriesPresent:
    """Return the step for the directories of a node, for this version of clusterctl."""
    version = package.install_dir().rpartition("/")[2]
    own = Directory(config_root(cluster), 0o700)
    return DirectoriesPresent((*node_directories(cluster, version), own))


def tables_present(cluster: str) -> DirectoriesPresent:
    """Return the step for the directory of the GCS's tables, on the head."""
    tables = tables_dir(cluster)
    above = Directory(tables.rpartition("/")[0], 0o700)
    return DirectoriesPresent((above, Directory(tables, 0o700)), "tables of Ray")


def tables_absent(cluster: str) -> PathsAbsent:
    """Return the step for hosts other than the head. A former head has old tables, which must not
    be used if it becomes the head again."""
    return PathsAbsent("tables of Ray", (tables_dir(cluster),))


def files_present(
    inventory: Inventory, topology: Topology, facts: Mapping[str, HostFacts]
) -> FilesPresent:
    """Return the step for node.pyz, node.json, the hosts file of the containers, and the list of
    variables that vLLM must not carry over to other nodes."""
    root, paths = config_root(inventory.cluster), NodePaths(inventory.cluster)
    shared = (
        RemoteFile(package.install_path(), package.build()),
        RemoteFile(f"{root}/{NON_CARRY_OVER_FILE}", non_carry_over(inventory, topology).encode()),
    )

    def of(view: HostView) -> tuple[RemoteFile, ...]:
        document = node_document(inventory, topology, topology.node(view.host.name), view.facts)
        node_json = RemoteFile(str(paths.node_document), to_json(document).encode())
        if HOSTS_FILE in {each.removesuffix(WRITABLE) for each in view.host.mounts.values()}:
            return (*shared, node_json)  # the user mounts one, maybe the host's: do not write it
        names = hosts_file(topology, facts, view.host.name)
        return (*shared, node_json, RemoteFile(str(paths.declared_hosts), names.encode()))

    return FilesPresent("node files", of, disrupts=_interrupts)


def _interrupts(file: RemoteFile, now: bytes) -> bool:
    """Whether writing the file makes the supervisor restart Ray (a different command line,
    environment or head) or stop a worker's gateway. A different list of expected nodes does
    neither."""
    if not now or not file.path.endswith("/node.json"):
        return False
    try:
        old = from_json(NodeDocument, now.decode())
    except ValueError:
        return True
    new = from_json(NodeDocument, file.data.decode())
    ends_gateway = new.role != "head" and old.gateway not in ("", new.gateway)
    return ends_gateway or old.of_ray != new.of_ray


def hosts_file(topology: Topology, facts: Mapping[str, HostFacts], host: str) -> str:
    """Return the content for `host`; `facts` are those of the nodes that answered. Each address has
    a name, but a node's name has only one address, the node IP, so that a lookup never returns an
    address of the fabric."""
    taken = {node.host for node in topology.nodes} | {name for _, names in _LOCAL for name in names}
    own_names: dict[str, tuple[str, ...]] = {}
    for node in sorted(topology.nodes, key=lambda node: node.host != host):  # own node first
        of_host = facts.get(node.host)
        # The host's own name, with and without a domain, unless another host has that name.
        full = of_host.hostname.lower() if of_host else ""
        first = full.partition(".")[0]
        # What another host calls itself counts only as its name in the inventory with a domain: it
        # must not be the name of a proxy or a registry.
        known = node.host == host or first == node.host.partition(".")[0]
        names = dict.fromkeys((full, first) if known and is_dns_name(full) else ())
        own_names[node.host] = tuple(name for name in names if name not in taken)
        taken.update(own_names[node.host])
    lines = (
        *_LOCAL,
        *(
            (ip, (name, *own_names.get(name, ())))
            for ip, name in addresses(topology, facts, host).items()
        ),
    )
    return "".join(f"{ip}\t{' '.join(names)}\n" for ip, names in lines)


def admission(
    inventory: Inventory, topology: Topology, facts: Mapping[str, HostFacts]
) -> Admission:
    """Return whom the firewall admits (the cluster's own addresses), and the ports of Ray and
    replicas, which it closes to everyone else."""
    ports = inventory.ray_ports
    within = f"{ports.min_worker}-{ports.max_worker}"
    single = sorted(
        port for name, port in ports if name not in {"min_worker", "max_worker", "dashboard"}
    )
    own = [ip for ip in addresses(topology, facts) if not ip.startswith("::ffff:")]
    return Admission(
        addresses=(*sorted(own), *map(str, inventory.network.trusted)),
        ports=(*map(str, single), within, f"{REPLICA_PORTS[0]}-{REPLICA_PORTS[-1]}"),
        complete=all(node.host in facts for node in topology.nodes),
    )


def addresses(topology: Topology, facts: Mapping[str, HostFacts], own: str = "") -> dict[str, str]:
    """Return every address of the cluster with its name. Besides node IPs, these are each host's
    addresses (except `own`) in a network that another host also has: otherwise a host could claim
    any address."""
    networks = {
        node.host: [
            ip_network(f"{address.ip}/{address.prefix}", strict=False)
            for nic in (facts[node.host].nics if node.host in facts else ())
            for address in nic.addresses
            if address.scope == "global" and address.prefix
        ]
        for node in topology.nodes
    }

    def shared(host: str, ip: str) -> bool:
        others = (each for name, each in networks.items() if name != host)
        return host == own or any(ip_address(ip) in it for each in others for it in each)

    found: dict[str, str] = {}
    for node in topology.nodes:
        found[node.node_ip] = node.host
        if (of_host := facts.get(node.host)) is None:
            continue
        # The node's other addresses that peers may see
        devices = {port.partition(":")[0] for port in node.rdma}
        rdma = [nic for device in of_host.rdma if device.name in devices for nic in device.nics]
        for name in dict.fromkeys((node.control_nic, *node.nccl_nics, node.gloo_nic, *rdma)):
            nic = of_host.nic(name)
            for address in nic.addresses if nic else ():
                if address.scope == "global" and shared(node.host, address.ip):
                    found.setdefault(address.ip, f"{node.host}.{name}")
    # A dual-stack socket, such as that of torch's store, sees an IPv4 peer as ::ffff:10.0.0.2, and
    # the resolver looks that up. Such addresses get their own names, as a node's name must have one
    # address only.
    mapped = {
        f"::ffff:{ip}": f"{name}.mapped"
        for ip, name in found.items()
        if isinstance(ip_address(ip), IPv4Address)
    }
    return {**found, **mapped}
