"""The inventory that `init` writes: host names, from the command line and from the hosts
themselves, and the text of the file, with a reason for every value. Pure.

The same hosts give the same text: it contains no time, and nothing about this machine.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path

from pydantic import ValidationError

from clusterctl.accelerators.names import DEFAULT
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.errors import UsageError, raise_all
from clusterctl.facts.candidates import candidates, rejected
from clusterctl.facts.model import HostFacts
from clusterctl.facts.network_requirements import public_ips
from clusterctl.inventory.document import scalar
from clusterctl.inventory.model import Host, Inventory, Ssh
from clusterctl.inventory.values import shown, value_problem
from clusterctl.network.fabric_choice import shared_subnets
from clusterctl.ray_cluster.topology import Node, Topology
from clusterctl.transport.target import split_port
from clusterctl.units import GIB


@dataclass(frozen=True)
class InitOptions:
    """The user's choices for the cluster; everything else comes from the hosts."""

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


_LONGEST = 60  # characters: a name has at most 63, and a number may be added

FORMS = "write HOST, USER@HOST, HOST:PORT or [IPV6]:PORT; HOST may be an alias in ~/.ssh/config"


def named_hosts(words: Iterable[str], ssh: Ssh) -> tuple[Host, ...]:
    """Parse a host from each word, which becomes its name; `ssh` fills in what the word leaves out.

    Raises UsageError for every malformed word, and for a host named twice.
    """
    hosts: list[Host] = []
    problems: list[UsageError] = []
    for word in words:
        user, _, place = word.rpartition("@")
        try:
            address, port = split_port(place)
            own = {"user": user or None, "port": port}
            given = {key: value for key, value in own.items() if value is not None}
            merged = Ssh(**{**ssh.model_dump(exclude_none=True), **given})
            # The name for errors until the host's own is known; names in an inventory are stricter.
            host = Host(name="host", address=address, ssh=merged)
            hosts.append(host.model_copy(update={"name": word}))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            problem = value_problem(first, shown(first["input"], None))
            problems.append(UsageError(f"{word!r} is not a valid host: {problem}", hint=FORMS))
    seen: set[tuple[str, int | None]] = set()
    for host in hosts:
        place_of = (host.address.lower(), host.ssh.port)
        if place_of in seen:
            problems.append(UsageError(f"{host.name} is named twice", hint="name every host once"))
        seen.add(place_of)
    raise_all(problems)
    return tuple(hosts)


def inventory_names(found: Mapping[str, HostFacts]) -> dict[str, str]:
    """Return the host's own name by word, without its domain, and with a number if an earlier host
    has the same name."""
    names: dict[str, str] = {}
    for word, facts in found.items():
        base = _plain(facts.hostname.partition(".")[0]) or f"host-{_plain(word)}".rstrip("-")
        name, number = base, 1
        while name in names.values():
            number += 1
            name = f"{base}-{number}"
        names[word] = name
    return names


def _plain(text: str) -> str:
    """Reduce to lower case letters, digits and dashes; `localhost`, which is not unique, to ""."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_LONGEST].strip("-")
    return "" if plain == "localhost" else plain


def choose_head(names: Sequence[str], found: Mapping[str, HostFacts]) -> tuple[str, str]:
    """Return the head and the reason: the first host that has GPUs, else the first one. The head
    does little more than the others: it has Ray's tables, and the process that answers requests."""
    with_gpus = [name for name in names if found[name].gpus.gpus]
    if not with_gpus or with_gpus[0] == names[0]:
        return names[0], "the first host named"
    return with_gpus[0], f"the first host named that has GPUs ({names[0]} has none)"


def doubts(words: Mapping[str, str], found: Mapping[str, HostFacts], *, counted: bool) -> list[str]:
    """Return a sentence for each thing that the user should check before using the inventory.

    words    host name to the word that named the host
    counted  hosts report how many devices they have
    """
    machines: dict[tuple[str, str], str] = {}
    hostnames: dict[str, str] = {}
    namesakes, twins = [], []
    for name, facts in found.items():
        twin = machines.setdefault((facts.machine_id, facts.boot_id), name)
        first = hostnames.setdefault(facts.hostname.lower(), name)
        if twin != name and facts.boot_id:
            twins.append(
                f"{name} ({words[name]}) seems to be the same machine as {twin} ({words[twin]}): "
                "machine ID and boot ID are equal"
            )
        elif first != name:
            namesakes.append(
                f"{words[name]} calls itself {facts.hostname}, as {words[first]} does, so it is "
                f"{name} here; on it: sudo hostnamectl set-hostname {name}"
            )
    without = [
        f"{name} shows no GPU: {why_no_gpu(facts)}"
        for name, facts in found.items()
        if counted and not facts.gpus.gpus
    ]
    return [*namesakes, *twins, *without]


def why_no_gpu(facts: HostFacts) -> str:
    """Reason why nvidia-smi lists no GPU of the host."""
    seen = facts.gpus.pci_devices
    on_bus = f", and its PCI bus shows {seen}" if seen else ""
    return f"{facts.gpus.error or 'nvidia-smi names none'}{on_bus}"


_WIDTH = 98
_MOST_NAMES = 4  # unused interfaces to name per reason

_HEAD = """\
# What hosts said to `clusterctl init`, and what was chosen for them, and why. Edit it as
# you like; docs/inventory.md explains every key. Next: clusterctl check FILE
cluster: {cluster}

# The container image with vLLM, the same on every host.
image: {image}

# Where models lie, the same path on every host.
models: {models}
"""


def inventory_text(options: InitOptions, found: Found) -> str:
    """Return YAML that `load` accepts."""
    blocks = [
        _HEAD.format(
            cluster=scalar(options.cluster),
            image=scalar(options.image),
            models=scalar(options.models),
        ).rstrip("\n")
    ]
    if note := accelerator_named(options.accelerator).inventory_note:
        blocks.append(f"# {note}\naccelerator: {options.accelerator}")
    if ssh := _ssh_values(options.ssh):
        lines = (f"  {key}: {value}" for key, value in ssh.items())
        heading = "# How to reach all hosts. What is left out comes from ~/.ssh/config.\nssh:"
        blocks.append("\n".join([heading, *lines]))
    blocks.append("\n".join(map(_on_its_line, _network(found))))
    hosts = ("\n".join(map(_on_its_line, _host(found, node))) for node in found.topology.nodes)
    blocks.append("hosts:\n" + "\n\n".join(hosts))
    return "\n\n".join(blocks) + "\n"


def _on_its_line(line: str) -> str:
    """Return the line with blanks in place of characters that could end it: YAML has more of them
    than terminals show, and comments contain text from hosts."""
    return "".join(each if each.isprintable() else " " for each in line)


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
    """Yield the candidate subnets as comments, with the reasons for NCCL's interfaces, which are
    usually the same on all hosts, and network.subnet with the reason for the node IPs."""
    nodes, subnet = found.topology.nodes, control_subnet(found)
    ranked = shared_subnets({name: candidates(facts) for name, facts in found.facts.items()})
    if ranked:
        yield from _comment(["Subnets in which every host has an address, best for tensors first:"])
    else:
        yield from _comment(["No subnet is shared by all hosts."])
    for each in ranked:
        uses = ["Ray and the API"] if subnet == str(each.subnet) else []
        if all(_is_in(found.facts[node.host], node.nccl_nics[0], each.subnet) for node in nodes):
            uses.insert(0, "tensors (NCCL, Gloo)")
        arrow = f" <- {' and '.join(uses)}" if uses else ""
        yield from _comment([f"  {each}{arrow}"])
    if len(ranked) > 1:
        if any(host.nics.nccl for host in found.inventory.hosts):
            yield from _comment(["NCCL uses what you chose."])
        else:
            reasons = {node.explain[1].partition(": ")[2] for node in nodes}
            yield from _comment(f"Why there: {reason}." for reason in sorted(reasons))
    rdma = {node.explain[3] for node in nodes}
    differs = "RDMA on, over the devices listed for each host below"
    yield from _comment([f"{rdma.pop() if len(rdma) == 1 else differs}."])
    public = [f"{name} {ip}" for name, facts in found.facts.items() for _, ip in public_ips(facts)]
    if subnet is None:
        yield from _comment(["The nodes' addresses are in different subnets: see node_ip."])
    if subnet or public:
        yield "network:"
    if subnet:
        yield f"  subnet: {scalar(subnet)} # Ray and the API"
    if public:
        text = f"Public addresses: {', '.join(public)}. Ray's ports listen on them as well:"
        yield from (f"  {line}" for line in _comment([text]))
        yield "  firewall: true"


def _is_in(facts: HostFacts, name: str, subnet: object) -> bool:
    nic = facts.nic(name)
    addresses = nic.addresses if nic else ()
    networks = {str(ip_interface(f"{a.ip}/{a.prefix}").network) for a in addresses}
    return str(subnet) in networks


def control_subnet(found: Found) -> str | None:
    """Return the subnet of all node IPs; None if they are in several."""
    subnets = set()
    for node in found.topology.nodes:
        nic = found.facts[node.host].nic(node.control_nic)
        prefixes = [a.prefix for a in nic.addresses if a.ip == node.node_ip] if nic else []
        subnets |= {str(ip_interface(f"{node.node_ip}/{prefix}").network) for prefix in prefixes}
    return subnets.pop() if len(subnets) == 1 else None


def _host(found: Found, node: Node) -> Iterator[str]:
    host, facts = found.inventory.host(node.host), found.facts[node.host]
    memory = f"{facts.memory / GIB:.0f} GiB of memory"
    machine = f"{facts.os.pretty}, {facts.os.architecture}, {facts.cpus} CPUs, {memory}"
    yield from _comment([machine], indent=2)
    yield f"  {scalar(node.host)}:"
    yield f"    address: {scalar(host.address)}"
    usual, own = _ssh_values(found.inventory.ssh), _ssh_values(host.ssh)
    if ssh := {key: value for key, value in own.items() if usual.get(key) != value}:
        yield f"    ssh: {{{', '.join(f'{key}: {value}' for key, value in ssh.items())}}}"
    if node.role == "head" and len(found.topology.nodes) > 1:
        yield f"    role: head # {found.head_reason}"
    # network.subnet, or the host's address, may determine node_ip.
    subnet = control_subnet(found)
    inside = [
        address.ip
        for nic in facts.nics
        for address in nic.addresses
        if subnet and ip_address(address.ip) in ip_network(subnet)
    ]
    if inside != [node.node_ip] or host.address != node.node_ip:
        yield f"    node_ip: {scalar(node.node_ip)} # {node.explain[0].partition(': ')[2]}"
    yield from _interfaces(facts, node)
    yield from _gpus(found, facts)


def _interfaces(facts: HostFacts, node: Node) -> Iterator[str]:
    """Yield the host's interfaces, with their use or the reason why they are not used."""
    purposes = {
        "Ray and the API": node.control_nic, "NCCL": node.nccl_nics[0], "Gloo": node.gloo_nic,
    }  # fmt: skip
    rows = []
    for each in candidates(facts):
        uses = ", ".join(purpose for purpose, name in purposes.items() if name == each.nic)
        text = f"{each} <- {uses}" if uses else str(each)
        rows.append((each.nic, " ".join(str(a.ip) for a in each.addresses), text))
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
    for name, ips, text in rows:
        yield f"    # {name.ljust(widths[0])}  {ips.ljust(widths[1])}  {text}"
    if others := _unused(facts):
        yield from _comment([f"not used: {'; '.join(others)}"], indent=4)

    nics = {"nccl": scalar(node.nccl_nics[0]), "gloo": scalar(node.gloo_nic)}
    if node.rdma:
        devices = dict.fromkeys(port.partition(":")[0] for port in node.rdma)
        nics["rdma"] = f"[{', '.join(scalar(device) for device in devices)}]"
        yield from _comment([node.explain[3]], indent=4)
    yield f"    nics: {{{', '.join(f'{key}: {value}' for key, value in nics.items())}}}"


def _unused(facts: HostFacts) -> list[str]:
    """Return the interfaces that cannot be used, by reason: `docker0 (made by Docker)`, `ib0, ib1
    (down)`; shortened, as a container host has hundreds."""
    unused: dict[str, list[str]] = {}
    for other in rejected(facts):
        unused.setdefault(other.reason, []).append(other.nic)
    found = []
    for reason, names in unused.items():
        more = len(names) - _MOST_NAMES
        listed = ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
        found.append(f"{listed} ({reason})")
    return found


def _gpus(found: Found, facts: HostFacts) -> Iterator[str]:
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
    for gpu in gpus:
        # Memory shared with the CPU is left out, as it is not a property to check.
        known = gpu.memory is not None and not gpu.unified
        memory = f", memory: {(gpu.memory or 0) / GIB:.1f} GiB" if known else ""
        yield f"      - {{model: {scalar(gpu.model)}{memory}}}"


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
