"""What looking up names costs on hosts and in their node containers, in one round trip each."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from clusterctl.commands.lacking import running
from clusterctl.containers.drivers import driver_for
from clusterctl.errors import CommandFailed
from clusterctl.facts.lookups.judgement import FOREIGN, WITHIN, notes, read_answer
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Inventory
from clusterctl.ray_cluster.hosts_file import addresses
from clusterctl.ray_cluster.nodes import container_name
from clusterctl.ray_cluster.topology import Topology
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import fan_out, values

_START = "import ast, sys; exec(ast.literal_eval(sys.stdin.readline())); main()"
_INSIDE = ", in its container"
_PYTHON: tuple[str, ...] = ("python3", "-c", _START)


def lookup_notes(
    inventory: Inventory,
    topology: Topology | None,
    answers: Mapping[str, Probe],
    transports: Mapping[str, Transport],
) -> tuple[str, ...]:
    """What is to be said of name servers and of what the containers know by themselves. Hosts that
    have no Python, and those that do not answer in time, are passed over."""
    facts = {name: answer.facts for name, answer in answers.items()}
    cluster = addresses(topology, facts) if topology else {}
    order = {
        "names": list(cluster.values()),
        "made_up": f"no-such-{secrets.token_hex(4)}",
        "addresses": list(cluster),
        "foreign": FOREIGN,
        "within": WITHIN,
    }
    container = container_name(inventory.cluster)
    places = {name: (name, _PYTHON) for name in answers if facts[name].python3}
    places |= {
        f"{name}{_INSIDE}": (name, driver_for(transports[name]).exec_argv(container, _PYTHON))
        for name in running(inventory, answers)
    }
    asked = _program() + f"{order!r}\n".encode()
    said = values(fan_out(places, lambda place: _ask(transports[place[0]], place[1], asked)))
    # Read here and not in the threads: Python 3.11's parser breaks there (cpython issue 106905).
    found = {place: answer for place, text in said.items() if (answer := read_answer(text, order))}
    hosts = {name: found[name] for name in answers if name in found}
    containers = {name: found[key] for name in answers if (key := f"{name}{_INSIDE}") in found}
    return notes(hosts, containers, cluster)


@cache
def _program() -> bytes:
    text = files("clusterctl.facts.lookups").joinpath("host_lookups.py").read_text("utf-8")
    return f"{text!r}\n".encode()


def _ask(transport: Transport, argv: tuple[str, ...], asked: bytes) -> str:
    said = transport.run(argv, stdin=asked, sudo=True, timeout=WITHIN + 20)
    if not said.ok:
        raise CommandFailed("names could not be looked up there", detail=said.last_lines())
    return said.stdout
