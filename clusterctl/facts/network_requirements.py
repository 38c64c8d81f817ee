"""Check NICs, addresses, RDMA devices and ports that the inventory names. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.model import HostFacts, NicFacts, RdmaDevice, RdmaPort
from clusterctl.inventory.model import Host, Inventory, RayPorts

VERBS_NODES = "/dev/infiniband/uverbs"


def rdma_notes(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[str]:
    """Yield notes about the active devices; none if the inventory switches RDMA off."""
    devices = usable_devices(inventory, host, facts)
    if not devices:
        return
    if not has_verbs(facts):
        yield f"no {VERBS_NODES}*: containers cannot use its RDMA devices: sudo modprobe ib_uverbs"
    for device in devices:
        yield from _port_notes(device)
    if facts.memlock_hard is not None and facts.memlock_hard < sys.maxsize:
        yield (
            f"at most {facts.memlock_hard // 1024} KiB of locked memory for programs outside "
            "containers; the node container has no limit"
        )


def usable_devices(inventory: Inventory, host: Host, facts: HostFacts) -> list[RdmaDevice]:
    """Return the active devices; none if the inventory switches RDMA off."""
    wanted = inventory.network.rdma and host.nics.rdma != ()
    return [device for device in facts.rdma if device.active] if wanted else []


def has_verbs(facts: HostFacts) -> bool:
    """Whether there is a device node for programs, which need one besides the kernel's devices."""
    return any(path.startswith(VERBS_NODES) for path in facts.rdma_nodes)


def _port_notes(device: RdmaDevice) -> Iterator[str]:
    for port in device.ports:
        if port.active and not port.gids:
            yield (
                f"all GIDs of {device.name}:{port.number} are zero, and no rank could use it: "
                f"give {_nic(device)} an address, or start the subnet manager"
            )
        elif port.active and port.link_layer == "Ethernet" and not _has_v2(port):
            yield (
                f"{device.name}:{port.number} has no RoCE v2 GID, which NCCL looks for: give "
                f"{_nic(device)} an IPv4 address"
            )


def _nic(device: RdmaDevice) -> str:
    return device.nics[0] if device.nics else "its interface"


def _has_v2(port: RdmaPort) -> bool:
    """Whether the port has a RoCE v2 GID; also true if the kernel does not report types."""
    return any(gid.type in ("RoCE v2", "") for gid in port.gids)


EVERY_NODE = (
    "node_manager", "object_manager", "runtime_env_agent",
    "dashboard_agent_listen", "dashboard_agent_grpc", "metrics_export",
)  # fmt: skip
HEAD_ONLY = ("gcs", "dashboard", "ray_client")


def network_problems(
    inventory: Inventory, host: Host, facts: HostFacts
) -> Iterator[RequirementsNotMet]:
    # If there is no NIC, the probe could not read them, which a note reports.
    if not facts.nics:
        return
    for name, purposes in _named_nics(host).items():
        yield from _nic_problems(host, facts, name, purposes)
    yield from _node_ip_problems(host, facts)
    yield from _subnet_problems(inventory, host, facts)
    yield from _rdma_problems(host, facts)


def _named_nics(host: Host) -> dict[str, list[str]]:
    """NIC to the purposes for which the inventory names it."""
    named: dict[str, list[str]] = {}
    for purpose in ("control", "nccl", "gloo"):
        if name := getattr(host.nics, purpose):
            named.setdefault(name, []).append(purpose)
    return named


def _nic_problems(
    host: Host, facts: HostFacts, name: str, purposes: Sequence[str]
) -> Iterator[RequirementsNotMet]:
    nic = facts.nic(name)
    what = f"{name} (nics.{', nics.'.join(purposes)})"
    if nic is None:
        yield RequirementsNotMet(
            f"has no interface {what}; it has {_offer(facts)}",
            host=host.name,
            hint="correct the name in the inventory; on the host: ip -br addr",
        )
    elif nic.state == "lowerlayerdown":
        yield RequirementsNotMet(
            f"interface {what} is down: it has no link",
            host=host.name,
            hint=f"look for the cable and the switch port; on the host: ip -br link show {name}",
        )
    elif nic.state == "down":
        yield RequirementsNotMet(
            f"interface {what} is down",
            host=host.name,
            hint=f"sudo ip link set {name} up; then look for the cable: ip -br link show {name}",
        )
    elif not nic.addresses:
        yield RequirementsNotMet(
            f"interface {what} has no IP address",
            host=host.name,
            hint=f"give it one, or name another; on the host: ip -br addr show {name}",
        )


def _offer(facts: HostFacts) -> str:
    """Interfaces for the user to choose: those with an address, `eth0 (10.0.0.1)`, else all."""
    usable = [nic for nic in facts.nics if nic.kind != "loopback"]
    addressed = [nic for nic in usable if _ips(nic)]
    return ", ".join(_with_address(nic) for nic in addressed or usable) or "none"


def _with_address(nic: NicFacts) -> str:
    ips = _ips(nic)
    return f"{nic.name} ({ips[0]})" if ips else nic.name


def _ips(nic: NicFacts) -> list[str]:
    return [address.ip for address in nic.addresses if address.scope == "global"]


def _node_ip_problems(host: Host, facts: HostFacts) -> Iterator[RequirementsNotMet]:
    if host.node_ip is None:
        return
    holder = next((nic for nic in facts.nics if _holds(nic, host.node_ip)), None)
    if holder is None:
        yield RequirementsNotMet(
            f"has no address {host.node_ip} (node_ip); it has {_offer(facts)}",
            host=host.name,
            hint="correct node_ip in the inventory; on the host: ip -br addr",
        )
    elif host.nics.control not in (None, holder.name):
        yield RequirementsNotMet(
            f"node_ip {host.node_ip} is on {holder.name}, not on {host.nics.control} "
            "(nics.control)",
            host=host.name,
            hint="make node_ip and nics.control agree, or leave one of them out",
        )


def _holds(nic: NicFacts, ip: str) -> bool:
    """Whether the NIC has `ip`. Compared as addresses, as IPv6 has several spellings."""
    try:
        wanted = ip_address(ip)
    except ValueError:
        return False
    return any(ip_address(address.ip) == wanted for address in nic.addresses)


def _subnet_problems(
    inventory: Inventory, host: Host, facts: HostFacts
) -> Iterator[RequirementsNotMet]:
    """Check network.subnet, which matters only if the host has neither node_ip nor nics.control."""
    subnet = inventory.network.subnet
    if subnet is None or host.node_ip or host.nics.control:
        return
    if not any(ip_address(a.ip) in subnet for nic in facts.nics for a in nic.addresses):
        yield RequirementsNotMet(
            f"has no address in {subnet} (network.subnet); it has {_offer(facts)}",
            host=host.name,
            hint=f"correct network.subnet, or set node_ip for {host.name}",
        )


def _rdma_problems(host: Host, facts: HostFacts) -> Iterator[RequirementsNotMet]:
    devices = {device.name: device for device in facts.rdma}
    for name in host.nics.rdma or ():
        if name not in devices:
            yield RequirementsNotMet(
                f"has no RDMA device {name} (nics.rdma); it has {', '.join(devices) or 'none'}",
                host=host.name,
                hint="correct nics.rdma in the inventory; on the host: ls /sys/class/infiniband",
            )
        elif not devices[name].active:
            yield RequirementsNotMet(
                f"no port of RDMA device {name} (nics.rdma) is active",
                host=host.name,
                hint=f"look for the cable and the subnet manager: ibstat {name}",
            )


def port_problems(
    inventory: Inventory, host: Host, facts: HostFacts
) -> Iterator[RequirementsNotMet]:
    """Yield an error if a program on the host already listens on ports that Ray needs."""
    taken = {
        port: purpose
        for port, purpose in _ray_ports(inventory.ray_ports, host)
        if port in facts.listening_ports
    }
    if taken:
        yield PortsTaken(host.name, taken)


class PortsTaken(RequirementsNotMet):
    """Ports that Ray needs are used by another program on the host; `taken`: port to purpose."""

    def __init__(self, host: str, taken: Mapping[int, str]) -> None:
        self.ports = tuple(taken)
        named = ", ".join(f"{port} ({purpose})" for port, purpose in taken.items())
        ports = " or ".join(f"sport = :{port}" for port in taken)
        super().__init__(
            f"{'a port' if len(taken) == 1 else 'ports'} that Ray needs "
            f"{'is' if len(taken) == 1 else 'are'} taken: {named}",
            host=host,
            hint=f"see by whom: sudo ss -ltnp '{ports}'; end it, or change ray_ports",
        )


def _ray_ports(ports: RayPorts, host: Host) -> Iterator[tuple[int, str]]:
    for purpose in (*HEAD_ONLY, *EVERY_NODE) if host.role == "head" else EVERY_NODE:
        yield getattr(ports, purpose), f"ray_ports.{purpose}"
    for port in range(ports.min_worker, ports.max_worker + 1):
        yield port, "a worker's"


def name_notes(facts: HostFacts) -> Iterator[str]:
    """Note a name that resolves to a loopback address. Our containers do not depend on it: Gloo has
    GLOO_SOCKET_IFNAME, Ray its address. Other programs look it up (vllm #7074, ray #37461)."""
    if any(ip.startswith("127.") or ip == "::1" for ip in facts.hostname_addresses):
        yield (
            f"its name {facts.hostname} resolves to {facts.hostname_addresses[0]}: harmless "
            "here, since VLLM_HOST_IP, GLOO_SOCKET_IFNAME and Ray's --node-ip-address say which "
            "address and interface to take"
        )
