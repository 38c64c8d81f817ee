"""Check for problems between hosts that are fine individually. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from statistics import median

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.model import HostFacts, NicFacts
from clusterctl.inventory.model import Host, Inventory

# Seconds off the median. Tokens, certificates and the age of a supervisor's state depend on clocks;
# any NTP client is a hundred times as exact.
CLOCK_TOLERANCE = 5.0

ETHERNET_MTU = 1500

CLOCK_HINT = "sudo timedatectl set-ntp true; timedatectl timesync-status"


def cluster_problems(
    inventory: Inventory, facts: Mapping[str, HostFacts]
) -> Iterator[RequirementsNotMet]:
    known = {host.name: facts[host.name] for host in inventory.hosts if host.name in facts}
    kinds: dict[str, list[str]] = defaultdict(list)
    for name, host in known.items():
        if host.os.architecture:
            kinds[host.os.architecture].append(name)
    if len(kinds) > 1:
        found = "; ".join(f"{machine} on {', '.join(names)}" for machine, names in kinds.items())
        yield RequirementsNotMet(
            f"all hosts use one image, but their processors differ: {found}",
            hint="write one inventory for each processor architecture",
        )
    yield from _twins(known)
    offsets = {name: host.clock_offset for name, host in known.items() if host.clock}
    yield from clocks_apart(offsets, dict.fromkeys(offsets, CLOCK_TOLERANCE))


def _twins(facts: Mapping[str, HostFacts]) -> Iterator[RequirementsNotMet]:
    """Yield problems for two hosts that are the same machine or have the same host name."""
    machines: dict[tuple[str, str], str] = {}
    names: dict[str, str] = {}
    for name, host in facts.items():
        identity = (host.machine_id, host.boot_id)
        first = machines.setdefault(identity, name) if host.boot_id else name
        if first != name:
            yield RequirementsNotMet(
                f"is the same machine as {first}: same machine ID and boot ID",
                host=name,
                hint=f"correct the address of {name} in the inventory, or remove it",
            )
            continue
        first = names.setdefault(host.hostname.lower(), name) if host.hostname else name
        if first != name:
            yield RequirementsNotMet(
                f"calls itself {host.hostname}, as {first} does",
                host=name,
                hint=f"sudo hostnamectl set-hostname {name}",
            )


def clocks_apart(
    offsets: Mapping[str, float], tolerances: Mapping[str, float]
) -> Iterator[RequirementsNotMet]:
    """Yield a problem for each host whose offset differs from the median by more than its
    tolerance. Both in seconds; offsets are from the operator's clock."""
    if not offsets:
        return
    votes = list(offsets.values())
    if len(votes) % 2 == 0:
        # An even number has no middle one: the operator's clock decides.
        votes.append(0.0)
    middle = median(votes)
    for name, offset in offsets.items():
        off = abs(offset - middle)
        if off > tolerances[name]:
            yield RequirementsNotMet(
                f"its clock is {off:.{0 if off >= 3 else 1}f} s "
                f"{'ahead of' if offset > middle else 'behind'} the others",
                host=name,
                hint=CLOCK_HINT,
            )


def cluster_notes(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[str]:
    """Yield notes about cloned machines, since DHCP servers identify hosts by machine ID alone
    (clusterctl does not), and about different MTUs on one network, where large packets are lost
    while small ones pass."""
    copies: dict[str, list[str]] = defaultdict(list)
    for name, of in facts.items():
        if of.machine_id:
            copies[of.machine_id].append(name)
    for names in copies.values():
        if len({facts[name].boot_id for name in names}) > 1:
            yield (
                f"{' and '.join(names)} have the same machine ID, as copies of a disk do: harmless "
                "here; to make them differ: sudo rm /etc/machine-id; sudo systemd-machine-id-setup"
            )
    mtus: dict[int, list[str]] = defaultdict(list)
    for host in inventory.hosts:
        nic = _fabric_nic(inventory, host, facts[host.name]) if host.name in facts else None
        if nic is not None and nic.mtu:
            mtus[nic.mtu].append(f"{host.name} ({nic.name})")
    if len(mtus) > 1:
        different = "; ".join(f"{mtu} on {', '.join(names)}" for mtu, names in mtus.items())
        yield f"the MTU differs between hosts: {different}; large packets may be lost"


def usual_mtu(mtus: Iterable[int]) -> int | None:
    """Return the MTU of most NICs; if it is half and half, the only one that is not below
    Ethernet's. None if neither is the odd one out, as with jumbo frames on one of two."""
    counted = Counter(mtu for mtu in mtus if mtu).most_common()
    most = [mtu for mtu, many in counted if many == counted[0][1]]
    if len(most) > 1:
        most = [mtu for mtu in most if mtu >= ETHERNET_MTU]
    return most[0] if len(most) == 1 else None


def _fabric_nic(inventory: Inventory, host: Host, facts: HostFacts) -> NicFacts | None:
    """The NIC that will carry NCCL's traffic, as far as the inventory determines it, else None."""
    if host.nics.nccl:
        return facts.nic(host.nics.nccl)
    subnet = inventory.network.subnet
    inside = (nic for nic in facts.nics if subnet and nic.has_address_in(subnet))
    return next(inside, None)
