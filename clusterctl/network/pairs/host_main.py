"""What a host can tell of its way to the others: this module and its two neighbours run there.

A line on stdin is JSON, [command, argument], and is answered by one on stdout; the end of stdin is
the end. A mapping whose keys are tuples travels as rows of a key and a value.

    open    listen on Ray's ports and on two ephemeral ones of every address
    clock   [Unix seconds, monotonic seconds], now
    reach   to every peer: the route, who answers for its address, TCP connections, packets of
            given sizes; the last two need root, and are None or less without
    echo    packets of other sizes
    rates   send to one peer after the other, at the given moments, and count what comes in
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

LIFETIME = 120  # seconds after which it ends, whatever it waits for

CHUNK = b"\0" * (256 * 1024)


class Prober:
    """Obeys one command after the other."""

    def __init__(self) -> None:
        self._listeners: List[Listeners] = []

    def open(self, order: Dict[str, Any]) -> Dict[str, Any]:
        """Listen on ports taken by the system for every address, and on Ray's: those that others
        listen on are busy."""
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
        """Send in every slot (moment, source, to, port) of this host; (lane, sender) to bit/s of
        what came in, once the slots of all hosts are over."""
        for moment, source, to, port in order["slots"]:
            time.sleep(max(0.0, moment - time.monotonic()))
            _send(source, to, port, order["index"], order["seconds"])
        counted = self._listeners[0].counted
        # A busy host is late with its slot: what it sends is waited for.
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
            # What is still queued at the end must not run into the next slot.
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.sendall(b"%-16d" % index)
            while time.monotonic() < end:
                peer.settimeout(max(0.001, end - time.monotonic()))
                peer.send(CHUNK)
    except OSError:
        return  # the receiver has its figure, or none, and says so


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
