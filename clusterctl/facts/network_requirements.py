"""Check NICs, addresses, RDMA devices and ports that the inventory names. Pure.

`requirements.problems` adds the host's name to problems."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.model import HostFacts, RdmaDevice
from clusterctl.inventory.model import Host, Inventory, RayPorts
from clusterctl.inventory.unsafe import is_public

VERBS_NODES = "/dev/infiniband/uverbs"


def rdma_notes(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[str]:
    """Yield notes about the active devices; none if the inventory turns RDMA off."""
    devices = usable_devices(inventory, host, facts)
    if not devices:
        return
    if not has_verbs(facts):
        yield f"no {VERBS_NODES}*: containers cannot use its RDMA devices: sudo modprobe ib_uverbs"
    for device in devices:
        nic = device.nics[0] if device.nics else "its interface"
        for port in device.ports:
            if port.active and not port.gids:
                yield (
                    f"all GIDs of {device.name}:{port.number} are zero, so no rank can use it: "
                    f"give {nic} an address, or start the subnet manager"
                )
            # A kernel that does not report types has empty ones.
            elif (
                port.active
                and port.link_layer == "Ethernet"
                and not any(gid.type in ("RoCE v2", "") for gid in port.gids)
            ):
                yield (
                    f"{device.name}:{port.number} has no RoCE v2 GID, which NCCL looks for: give "
                    f"{nic} an IPv4 address"
                )
    if facts.memlock_hard is not None and facts.memlock_hard < sys.maxsize:
        yield (
            f"at most {facts.memlock_hard // 1024} KiB of locked memory for programs outside "
            "containers; the node container has no limit"
        )


def not_for_nccl(device: RdmaDevice) -> str | None:
    """Return why NCCL's own RDMA transport cannot use the device, or None. It opens InfiniBand and
    Ethernet ports only (ncclIbInit in NCCL's net_ib), and iWARP fails when it connects (nccl #622).
    """
    if device.link_layer not in ("InfiniBand", "Ethernet", ""):
        return (
            f"{device.name} (link layer {device.link_layer}, as AWS's EFA) needs a plugin in the "
            "image, such as aws-ofi-nccl"
        )
    if device.node_type.startswith("4:"):
        return (
            f"{device.name} speaks iWARP, which NCCL does not; Intel's adapters can do RoCE: "
            "options irdma roce_ena=1 in /etc/modprobe.d/irdma.conf"
        )
    return None


def usable_devices(inventory: Inventory, host: Host, facts: HostFacts) -> list[RdmaDevice]:
    """Return the active devices that NCCL can use; none if the inventory turns RDMA off."""
    wanted = inventory.network.rdma and host.nics.rdma != ()
    found = (device for device in facts.rdma if device.active and not not_for_nccl(device))
    return list(found) if wanted else []


def has_verbs(facts: HostFacts) -> bool:
    """Whether there is a device node, which programs need besides the kernel's devices."""
    return any(path.startswith(VERBS_NODES) for path in facts.rdma_nodes)


EVERY_NODE = (
    "node_manager", "object_manager", "runtime_env_agent",
    "dashboard_agent_listen", "dashboard_agent_grpc", "metrics_export",
)  # fmt: skip
HEAD_ONLY = ("gcs", "dashboard", "ray_client")


def network_problems(host: Host, facts: HostFacts) -> Iterator[RequirementsNotMet]:
    # If there is no NIC, the probe could not read them, which a note reports.
    if not facts.nics:
        return
    named: dict[str, list[str]] = {}
    for purpose in ("control", "nccl", "gloo"):
        if name := getattr(host.nics, purpose):
            named.setdefault(name, []).append(f"nics.{purpose}")
    for name, keys in named.items():
        yield from _nic_problems(facts, name, f"{name} ({', '.join(keys)})")
    yield from _disagreement(host, facts)
    devices = {device.name: device for device in facts.rdma}
    for name in host.nics.rdma or ():
        if name not in devices:
            yield RequirementsNotMet(
                f"has no RDMA device {name} (nics.rdma); it has {', '.join(devices) or 'none'}",
                hint="correct nics.rdma in the inventory; on the host: ls /sys/class/infiniband",
            )
        elif not devices[name].active:
            yield RequirementsNotMet(
                f"no port of RDMA device {name} (nics.rdma) is active",
                hint=f"check the cable and the subnet manager: ibstat {name}",
            )


def _nic_problems(facts: HostFacts, name: str, what: str) -> Iterator[RequirementsNotMet]:
    """Check the NIC `name`; `what`: the name with its keys in the inventory."""
    nic = facts.nic(name)
    if nic is None:
        yield RequirementsNotMet(
            f"has no interface {what}; it has {_offer(facts)}",
            hint="correct the name in the inventory; on the host: ip -br addr",
        )
    elif nic.state == "lowerlayerdown":
        yield RequirementsNotMet(
            f"interface {what} is down: it has no link",
            hint=f"check the cable and the switch port; on the host: ip -br link show {name}",
        )
    elif nic.state == "down":
        yield RequirementsNotMet(
            f"interface {what} is down",
            hint=f"sudo ip link set {name} up; then check the cable: ip -br link show {name}",
        )
    elif not nic.addresses:
        yield RequirementsNotMet(
            f"interface {what} has no IP address",
            hint=f"assign one, or name a different interface; on the host: ip -br addr show {name}",
        )


def _offer(facts: HostFacts) -> str:
    """Interfaces for the user to choose: those with an address, `eth0 (10.0.0.1)`, else all."""
    addressed, others = [], []
    for nic in facts.nics:
        ips = [address.ip for address in nic.addresses if address.scope == "global"]
        if nic.kind != "loopback":
            addressed += [f"{nic.name} ({ips[0]})"] if ips else []
            others.append(nic.name)
    return ", ".join(addressed or others) or "none"


def _disagreement(host: Host, facts: HostFacts) -> Iterator[RequirementsNotMet]:
    """Yield a problem if the inventory's node_ip is not on its nics.control."""
    holder = facts.nic_with(host.node_ip) if host.node_ip else None
    if holder and host.nics.control not in (None, holder.name):
        yield RequirementsNotMet(
            f"node_ip {host.node_ip} is on {holder.name}, not on {host.nics.control} "
            "(nics.control)",
            hint="make node_ip and nics.control agree, or remove one of them",
        )


# Ray passes over a busy port of the workers' range (WorkerPool::GetNextFreePort), so only their
# number matters: a worker for each CPU, and as many again for actors and jobs.
_WORKERS_PER_CPU = 2
_LEAST_WORKERS = 64


def port_problems(
    inventory: Inventory, host: Host, facts: HostFacts, used: Collection[int]
) -> Iterator[RequirementsNotMet]:
    """Yield an error if a program on the host already listens on a port that Ray needs, or on so
    many of the workers' ports that too few are left. `used`: ports in use on any host: ray_ports
    are the same on all, so suggested ones must be free everywhere."""
    ports = inventory.ray_ports
    purposes = (*HEAD_ONLY, *EVERY_NODE) if host.role == "head" else EVERY_NODE
    needed = {getattr(ports, purpose): f"ray_ports.{purpose}" for purpose in purposes}
    taken = {port: needed[port] for port in needed if port in facts.listening_ports}
    if taken:
        yield PortsTaken(host.name, taken, _instead(ports, taken, used))
    whole = range(ports.min_worker, ports.max_worker + 1)
    busy = {port for port in facts.listening_ports if port in whole}
    wanted = max(_LEAST_WORKERS, _WORKERS_PER_CPU * facts.cpus)
    if busy and len(whole) - len(busy) < min(wanted, len(whole)):
        first = _free_range(ports, facts, used, len(whole))
        yield RequirementsNotMet(
            f"{len(busy)} of the {len(whole)} ports of Ray's workers ({whole[0]} to {whole[-1]}) "
            f"are taken, and its {facts.cpus} CPUs need {wanted}",
            hint=f"set ray_ports: {{min_worker: {first}, max_worker: {first + len(whole) - 1}}}; "
            f"to see what uses them: sudo ss -ltnp 'sport >= :{whole[0]} and sport <= "
            f":{whole[-1]}'",
        )


def _instead(ports: RayPorts, taken: Mapping[int, str], used: Collection[int]) -> dict[str, int]:
    """Return a free port near each taken one, by its key in ray_ports."""
    reserved = {port for _, port in ports} | {*used}
    found: dict[str, int] = {}
    for port, purpose in taken.items():
        candidates = range(port + 1, ports.min_worker if port < ports.min_worker else 32768)
        free = next((number for number in candidates if number not in reserved), None)
        if free is not None:
            reserved.add(free)
            found[purpose.partition(".")[2]] = free
    return found


def _free_range(ports: RayPorts, facts: HostFacts, used: Collection[int], size: int) -> int:
    """Return the first port of the next range of `size` free of listeners and Ray's other ports, if
    possible below the ephemeral ones."""
    others = {port for name, port in ports if name not in ("min_worker", "max_worker")}
    reserved = others | {*used}
    last = (facts.ephemeral_ports or (32768,))[0]
    starts = [*range(ports.max_worker + 1, last - size, 100), *range(10100, last - size, 100)]
    free = (start for start in starts if reserved.isdisjoint(range(start, start + size)))
    return next(free, ports.max_worker + 1)


def ephemeral_notes(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[str]:
    """Note fixed Ray ports that the kernel may assign to an outgoing connection first: Ray cannot
    listen on them until that connection ends."""
    if not facts.ephemeral_ports:
        return
    first, last = facts.ephemeral_ports
    ports = inventory.ray_ports
    purposes = (*HEAD_ONLY, *EVERY_NODE) if host.role == "head" else EVERY_NODE
    fixed = sorted(getattr(ports, purpose) for purpose in purposes)
    inside = [port for port in fixed if first <= port <= last]
    if inside or (first <= ports.max_worker and ports.min_worker <= last):
        top = max([*fixed, ports.max_worker])
        begin = 32768 if top < 32768 < last else top + 1
        yield (
            f"net.ipv4.ip_local_port_range begins at {first}, below ports of Ray "
            f"({', '.join(map(str, [*inside, f'{ports.min_worker}-{ports.max_worker}']))}): an "
            "outgoing connection may hold one of them when Ray starts; sudo sysctl -w "
            f"net.ipv4.ip_local_port_range='{begin} {last}' (and in /etc/sysctl.d to keep it)"
        )


class PortsTaken(RequirementsNotMet):
    """Another program on the host uses ports that Ray needs; `taken`: port to purpose."""

    def __init__(
        self, host: str, taken: Mapping[int, str], instead: Mapping[str, int] | None = None
    ) -> None:
        """`instead`: free ports by their keys in ray_ports."""
        self.ports = tuple(taken)
        others = ", ".join(f"{name}: {port}" for name, port in (instead or {}).items())
        change = f"set ray_ports: {{{others}}}" if others else "change ray_ports"
        named = ", ".join(f"{port} ({purpose})" for port, purpose in taken.items())
        ports = " or ".join(f"sport = :{port}" for port in taken)
        super().__init__(
            f"{'a port' if len(taken) == 1 else 'ports'} that Ray needs "
            f"{'is' if len(taken) == 1 else 'are'} taken: {named}",
            host=host,
            hint=f"to see by what: sudo ss -ltnp '{ports}'; end it, or {change}",
        )


def public_notes(inventory: Inventory, facts: HostFacts) -> Iterator[str]:
    """Note public addresses: Ray's servers listen on all addresses of a host, whatever its node
    IP."""
    if inventory.network.firewall or inventory.network.public:
        return
    for nic, ip in public_ips(facts):
        yield (
            f"its address {ip} on {nic} is public, and Ray's ports listen on it as well: "
            "network.firewall: true closes them"
        )


def public_ips(facts: HostFacts) -> list[tuple[str, str]]:
    """Return the host's public addresses, each with its NIC: (NIC, IP)."""
    return [
        (nic.name, address.ip)
        for nic in facts.nics
        for address in nic.addresses
        if is_public(address.ip)
    ]


def name_notes(facts: HostFacts) -> Iterator[str]:
    """Note a name that resolves to a loopback address. Our containers do not depend on it: Gloo has
    GLOO_SOCKET_IFNAME, Ray has its address. Other programs look it up (vllm #7074, ray #37461)."""
    if any(ip.startswith("127.") or ip == "::1" for ip in facts.hostname_addresses):
        yield (
            f"its name {facts.hostname} resolves to {facts.hostname_addresses[0]}: harmless here, "
            "since VLLM_HOST_IP, GLOO_SOCKET_IFNAME and Ray's --node-ip-address set the address "
            "and the interface"
        )
