"""Measure how long name lookups take on hosts and in their node containers.

No part of a cluster waits for a name server, since its names are in the containers' hosts file. But
users do, and so do downloads from hubs, registries and package sources.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from clusterctl.containers.drivers import driver_for
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Inventory
from clusterctl.ray_cluster.node_files import addresses
from clusterctl.ray_cluster.nodes import container_name
from clusterctl.ray_cluster.topology import Topology
from clusterctl.transport import python
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import fan_out, values

FOREIGN = "huggingface.co"  # A name that hosts can resolve if they have a working name server

# Seconds for all look-ups, which run in parallel: a server that takes 5 s is not taken for dead
WITHIN = 6.0

SLOW = 1.0  # Seconds. A hosts file takes under 1 ms, a name server near by under 50 ms.

PROGRAM = python.Program("clusterctl.network", ("host_lookups",))

_INSIDE = ", in its container"

# The result and the seconds it took; None if it did not finish in time
Timed: TypeAlias = tuple[Any, float] | None


def lookup_notes(
    inventory: Inventory,
    topology: Topology | None,
    facts: Mapping[str, HostFacts],
    transports: Mapping[str, Transport],
    running: Collection[str] = (),
) -> tuple[str, ...]:
    """Query every host of `facts`, and the node containers of `running`, in one round trip each;
    return a note per problem. Hosts without Python or without an answer in time are skipped."""
    cluster = addresses(topology, facts) if topology else {}
    order = {
        "names": list(cluster.values()),
        "made_up": f"no-such-{secrets.token_hex(4)}",
        "addresses": list(cluster),
        "foreign": FOREIGN,
        "within": WITHIN,
    }
    container = container_name(inventory.cluster)
    places: dict[str, tuple[str, Sequence[str]]] = {
        name: (name, ()) for name in facts if facts[name].python3
    }
    for name in running:
        inside = driver_for(transports[name]).exec_argv(container, ["python3"])
        places[name + _INSIDE] = (name, inside)

    def ask(place: tuple[str, Sequence[str]]) -> LookupAnswer | None:
        host, interpreter = place
        said = python.ask(
            transports[host],
            PROGRAM,
            order,
            doing="looking up names",
            timeout=WITHIN + 20,
            sudo=True,
            interpreter=interpreter,
        )
        return read_answer(said, order)

    answers = values(fan_out(places, ask))
    found = {place: answer for place, answer in answers.items() if answer}
    hosts = {name: found[name] for name in facts if name in found}
    containers = {name: found[key] for name in facts if (key := name + _INSIDE) in found}
    return notes(hosts, containers, cluster)


@dataclass(frozen=True)
class LookupAnswer:
    """The answer of one host or container; `made_up` is a name that does not exist."""

    own: str
    search: Sequence[str]
    names: Mapping[str, Timed]
    addresses: Mapping[str, Timed]
    servers: Mapping[str, Timed]
    made_up: str


def read_answer(said: Any, order: Mapping[str, Any]) -> LookupAnswer | None:
    """Parse the program's answer to `order`; None if its output is malformed."""
    try:
        own = str(said["own"])
        names = (own, order["foreign"], order["made_up"], *order["names"])
        return LookupAnswer(
            own=own,
            search=[str(domain) for domain in said["search"]],
            names={name: _timed(said["names"][name], list) for name in names},
            addresses={ip: _timed(said["addresses"][ip], str) for ip in order["addresses"]},
            servers={str(ip): _timed(timed, str) for ip, timed in said["servers"].items()},
            made_up=order["made_up"],
        )
    except (ValueError, TypeError, LookupError, AttributeError):
        return None


def _timed(said: Any, kind: type) -> Timed:
    if said is None:
        return None
    value, seconds = said
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not a {kind.__name__}")
    return value, float(seconds)


def notes(
    hosts: Mapping[str, LookupAnswer],
    containers: Mapping[str, LookupAnswer],
    cluster: Mapping[str, str],
) -> tuple[str, ...]:
    """Return a sentence for each problem of each host. `cluster`: address to name of every node."""
    found: list[str] = []
    for name in dict.fromkeys((*hosts, *containers)):
        host, container = hosts.get(name), containers.get(name)
        texts: list[str] = []
        outside = _server_problems(host) if host else {}
        inside = _server_problems(container) if container else {}
        texts += outside.values()
        # The container usually has a copy of the host's resolv.conf: report a common problem once.
        texts += (f"in its container, {inside[key]}" for key in inside if key not in outside)
        timed = host.names[host.own] if host else None
        if host and (timed is None or timed[1] > SLOW):
            texts.append(
                f"its own name {host.own} is looked up at a name server, which takes "
                f"{_seconds(timed)}: sudo and others wait that long; add {host.own} to its "
                "/etc/hosts"
            )
        if container:
            # The container's hosts file should answer these.
            known = {**container.addresses, **container.names}
            asked = ((what, known[what]) for what in (*cluster.values(), *cluster))
            slow = [what for what, timed in asked if timed is None or timed[1] > SLOW]
            if slow:
                texts.append(
                    f"in its container, {', '.join(slow)} took longer than {SLOW:g} s to look up: "
                    "name servers are asked before /etc/hosts, or it lacks them; clusterctl "
                    "bootstrap, and `hosts: files dns` in the image's /etc/nsswitch.conf"
                )
            texts += (
                f"in its container, {node} resolves to {', '.join(timed[0])}, not only to {ip}"
                for ip, node in cluster.items()
                if (timed := container.names[node]) and timed[0] and timed[0] != [ip]
            )
        found += (f"{name}: {text}" for text in texts)
    return tuple(found)


def _server_problems(answer: LookupAnswer) -> dict[str, str]:
    """Return a sentence per problem, by name server if it is slow or silent, or by `wildcard` if it
    resolves names that do not exist."""
    found = {}
    for server, timed in answer.servers.items():
        if timed is None:
            what = f"the name server {server} does not answer"
        elif timed[0] == "" and timed[1] > SLOW:
            what = f"the name server {server} answers after {timed[1]:.1f} s"
        else:
            continue
        needs = _seconds(answer.names[FOREIGN])
        found[server] = (
            f"{what}: looking up {FOREIGN} takes {needs}; nothing in the cluster waits for it, but "
            "downloads from hubs and registries do (/etc/resolv.conf)"
        )
    made_up = answer.names[answer.made_up]
    if made_up and made_up[0]:
        servers = ", ".join(answer.servers) or "its resolver"
        domains = " ".join(answer.search) or "none"
        found["wildcard"] = (
            f"the name server {servers} resolves {answer.made_up}, which does not exist, to "
            f"{', '.join(made_up[0])}: a wildcard, in a search domain ({domains}) or on the "
            "server; it affects mistyped names, not the cluster's own"
        )
    return found


def _seconds(timed: Timed) -> str:
    return f"more than {WITHIN:g} s" if timed is None else f"{timed[1]:.1f} s"
