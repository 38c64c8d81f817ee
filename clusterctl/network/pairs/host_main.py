"""Test a host's paths to the other hosts. Runs on hosts, with its two neighbour modules.

Each line on stdin is JSON, [command, argument], and is answered by one line on stdout; it exits
when stdin ends. A mapping whose keys are tuples is sent as a list of [key, value].

    open    listen on Ray's ports and on two ephemeral ones of every address
    clock   return [Unix seconds, monotonic seconds]
    reach   try every peer: the route, MACs that answer for its address, TCP connections, packets of
            given sizes. Without root, MACs and packets are null
    echo    try packets of other sizes
    rates   send to one peer after the other, at the given times, and count the bytes received
"""

import json
import signal
import socket
import struct
import sys
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from clusterctl.network.pairs.host_listen import Listeners, family
from clusterctl.network.pairs.host_ways import connections, echoes, neighbours, routes

LIFETIME = 120  # seconds after which the process is killed, whatever it waits for

CHUNK = b"\0" * (256 * 1024)


class Prober:
    """Executes the commands, one after the other."""

    def __init__(self) -> None:
        self._listeners: List[Listeners] = []

    def open(self, order: Dict[str, Any]) -> Dict[str, Any]:
        """Listen on ports chosen by the system for every address, and on Ray's; return those, with
        the ports of Ray that another program already uses as `busy`."""
        window = (order["warm_up"], order["window"])
        made = Listeners(order["greeting"], order["ips"], window)
        self._listeners.append(made)
        busy = []
        for port in order["ports"]:
            try:
                made.greet(order["ips"][0], port)
            except OSError:
                busy.append(port)
        return {"ephemeral": made.ephemeral, "counting": made.counting, "busy": busy}

    def clock(self, _: Any) -> Tuple[float, float]:
        return time.time(), time.monotonic()

    def reach(self, order: Dict[str, Any]) -> Dict[str, Any]:
        greetings = dict.fromkeys(_tuples(order["greeted"]), order["greeting"])
        return {
            "routes": _rows(routes(_tuples(order["routes"]))),
            "neighbours": _rows(neighbours(_tuples(order["neighbours"]))),
            "tcp": _rows(connections(_tuples(order["tcp"]), greetings)),
            "echo": self.echo(order["echo"]),
        }

    def echo(self, asked: List[Any]) -> Any:
        return _rows(echoes(_tuples(asked)))

    def rates(self, order: Dict[str, Any]) -> Any:
        """Send in every slot (time, source, to, port) of this host. Return the bit/s received by
        (lane, sender), once the slots of all hosts are over."""
        for moment, source, to, port in order["slots"]:
            time.sleep(max(0.0, moment - time.monotonic()))
            _send(source, to, port, order["index"], order["seconds"])
        counted = self._listeners[0].counted
        # A busy host may be late with its slot: wait for its data.
        while len(counted) < order["expected"] and time.monotonic() < order["end"]:
            time.sleep(0.02)
        return _rows(dict(counted))


def _tuples(rows: List[Any]) -> List[Any]:
    return [tuple(row) for row in rows]


def _rows(found: Optional[Mapping[Any, Any]]) -> Optional[List[Any]]:
    return None if found is None else list(found.items())


def _send(source: str, to: str, port: int, index: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    try:
        with socket.socket(family(to), socket.SOCK_STREAM) as peer:
            peer.settimeout(seconds)
            peer.bind((source, 0))
            peer.connect((to, port))
            # Data still queued at the end must not be sent during the next slot.
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.sendall(b"%-16d" % index)
            while time.monotonic() < end:
                peer.settimeout(max(0.001, end - time.monotonic()))
                peer.send(CHUNK)
    except OSError:
        return  # the receiver reports the rate, or that there is none


def main(_: None) -> None:
    signal.alarm(LIFETIME)
    prober = Prober()
    commands = {
        "open": prober.open,
        "clock": prober.clock,
        "reach": prober.reach,
        "echo": prober.echo,
        "rates": prober.rates,
    }
    for line in sys.stdin:
        name, argument = json.loads(line)
        print(json.dumps(commands[name](argument)), flush=True)  # type: ignore[operator]  # noqa: T201
