"""What a host can tell of its way to the others: this file and its two neighbours run on hosts,
as they stand.

They come over SSH and stay for some seconds. A line on stdin is a Python literal, (command,
argument), and is answered by one on stdout; the end of stdin is the end. Python 3.6, with the
modules of Debian's python3-minimal. Echo needs root, and is left out without.

    open    listen on Ray's ports and on two ephemeral ones of every address
    clock   (Unix seconds, monotonic seconds), now
    reach   to every peer: the route, who answers for its address, TCP connections, packets of
            given sizes
    rates   send to one peer after the other, at the given moments, and count what comes in
"""

import ast
import signal
import socket
import struct
import sys
import time
from typing import Any, Dict, List, Tuple

from clusterctl.network.pairs.host_listen import Listeners, family
from clusterctl.network.pairs.host_ways import connections, echoes, neighbours, routes

LIFETIME = 120
"""Seconds after which it ends whatever it waits for."""

CHUNK = b"\0" * (256 * 1024)


class Post:
    """One host's part."""

    def __init__(self) -> None:
        self._listeners: List[Listeners] = []

    def open(self, order: Dict[str, Any]) -> Dict[str, Any]:
        """Ports taken by the system for every address; those of Ray that others listen on."""
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
        return {
            "routes": routes(order["routes"]),
            "neighbours": neighbours(order["neighbours"]),
            "tcp": connections(order["tcp"], order["greetings"]),
            "echo": echoes(order["echo"]),
        }

    def echo(self, asked: List[Tuple[str, str, int]]) -> Any:
        return echoes(asked)

    def rates(self, order: Dict[str, Any]) -> Dict[Tuple[int, int], float]:
        """Send in every slot (moment, source, to, port) of this host. (lane, sender) to bit/s of
        what came in, once the slots of all hosts are over."""
        for moment, source, to, port in order["slots"]:
            _wait_until(moment)
            _send(source, to, port, order["index"], order["seconds"])
        counted = self._listeners[0].counted
        # A busy host is late with its slot: what it sends is waited for.
        while len(counted) < order["expected"] and time.monotonic() < order["end"]:
            time.sleep(0.02)
        return dict(counted)


def _wait_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


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


def main() -> None:
    signal.alarm(LIFETIME)
    post = Post()
    commands = {
        "open": post.open,
        "clock": post.clock,
        "reach": post.reach,
        "echo": post.echo,
        "rates": post.rates,
    }
    for line in sys.stdin:
        name, argument = ast.literal_eval(line)
        print(repr(commands[name](argument)), flush=True)  # type: ignore[operator]  # noqa: T201


if __name__ == "__main__":
    main()
