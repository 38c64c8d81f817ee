"""Test a host's paths to the other hosts. Runs on hosts.

Each line on stdin is JSON, [command, argument], and is answered by one line on stdout; it exits
when stdin ends. A mapping whose keys are tuples is sent as a list of [key, value].

    open    listen on Ray's ports and on two ephemeral ones of every address
    clock   return [Unix seconds, monotonic seconds]
    reach   try every peer: the route, MACs that answer for its address, TCP connections, packets of
            given sizes and, if large ones are lost, of the smaller STEPS. Without root, MACs and
            packets are null
    rates   send to one peer after the other, at the given times, and count the bytes received
"""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Mapping, Optional, Tuple

LIFETIME = 120  # seconds after which the process is killed, whatever it waits for

CONNECT_WITHIN = 2.2  # Seconds. TCP repeats a lost SYN after 1 s: one loss does not count.

# Connections, or echoes, in flight at once: each may need an ARP broadcast to all hosts
AT_ONCE = 32

# A packet is sent three times, 0.4 s apart, before it counts as lost
ECHO_ROUNDS, ECHO_ROUND = 3, 0.4

SMALL = 84  # Bytes of an IP packet that every path carries: the default of `ping`

# Sizes to try where a larger packet was lost: IPv6's minimum, tunnels (WireGuard 1420, VXLAN 1450),
# PPPoE, InfiniBand's datagram modes, jumbo frames inside a tunnel.
STEPS = (576, 1280, 1400, 1420, 1450, 1460, 1480, 1492, 1500, 2044, 4092, 4200, 8000, 8900, 8950)

# Each request is sent twice, with 0.3 s for answers: a machine may be slow, or drop a request
ARP_ROUNDS, ARP_ROUND = 2, 0.3

ARP, ETHERNET = 0x0806, 1  # ETH_P_ARP and ARPHRD_ETHER

# IP_PMTUDISC_PROBE: never fragment, and ignore the path MTU that the kernel has cached
PROBE_WITH_DF = 3

CHUNK = b"\0" * (256 * 1024)

GREETING = 2**16  # Bytes of a greeting: where large packets are lost, a short one would arrive

Connect = Tuple[str, str, int]  # (source, to, port)
Request = Tuple[str, str, str]  # (NIC, source, to)
Ask = Tuple[str, str, int]  # (source, to, size of the whole IP packet)


def main(_: None) -> None:
    signal.alarm(LIFETIME)
    prober = Prober()
    commands = {
        "open": prober.open,
        "clock": prober.clock,
        "reach": prober.reach,
        "rates": prober.rates,
    }
    for line in sys.stdin:
        name, argument = json.loads(line)
        print(json.dumps(commands[name](argument)), flush=True)  # noqa: T201


class Prober:
    """Executes the commands in turn."""

    def __init__(self) -> None:
        self._listeners: List[Listeners] = []

    def open(self, order: Dict[str, Any]) -> Dict[str, Any]:
        """Listen on ports chosen by the system for every address, and on Ray's ports. Return these
        ports, and as `busy` the ports of Ray that another program uses."""
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
            "echo": _rows(echoes(_tuples(order["echo"]))),
        }

    def rates(self, order: Dict[str, Any]) -> Any:
        """Send in each of this host's slots (time, source, to, port). Return the bit/s received by
        (lane, sender), once the slots of all hosts are over."""
        for moment, source, to, port in order["slots"]:
            time.sleep(max(0.0, moment - time.monotonic()))
            send(source, to, port, order["index"], order["seconds"])
        counted = self._listeners[0].counted
        # A busy host may be late with its slot: wait for its data.
        while len(counted) < order["expected"] and time.monotonic() < order["end"]:
            time.sleep(0.02)
        return _rows(dict(counted))


def _tuples(rows: List[Any]) -> List[Any]:
    return [tuple(row) for row in rows]


def _rows(found: Optional[Mapping[Any, Any]]) -> Optional[List[Any]]:
    return None if found is None else list(found.items())


def family(ip: str) -> int:
    return socket.AF_INET6 if ":" in ip else socket.AF_INET


def padded(greeting: str) -> bytes:
    return greeting.encode().ljust(GREETING)


def listen(ip: str, port: int) -> socket.socket:
    found = socket.socket(family(ip), socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind((ip, port))
    found.listen(512)
    return found


class Listeners:
    """Accepts connections: sends each a greeting that is unique to this run, or counts the bytes
    received. `window`: seconds of TCP ramp-up to ignore, then seconds to measure.
    """

    def __init__(self, greeting: str, ips: List[str], window: Tuple[float, float]) -> None:
        self._greeting = padded(greeting)
        self._window = window
        self._poll = select.poll()
        self._sockets: Dict[int, socket.socket] = {}
        self.counted: Dict[Tuple[int, int], float] = {}  # (lane, sender) to bit/s
        self.ephemeral = [self.greet(ip, 0) for ip in ips]
        counting = [listen(ip, 0) for ip in ips]
        self.counting: List[int] = [found.getsockname()[1] for found in counting]
        for lane, found in enumerate(counting):
            threading.Thread(target=self._accept, args=(lane, found), daemon=True).start()
        threading.Thread(target=self._welcome, daemon=True).start()

    def greet(self, ip: str, port: int) -> int:
        """Listen on one more port and return it; 0 picks a free ephemeral one. Raises OSError."""
        found = listen(ip, port)
        self._sockets[found.fileno()] = found
        self._poll.register(found.fileno(), select.POLLIN)
        return int(found.getsockname()[1])

    def _welcome(self) -> None:
        while True:
            # A port that is added during this call is polled by the next one.
            for fd, _ in self._poll.poll(50):
                try:
                    peer, _ = self._sockets[fd].accept()
                except OSError:
                    continue
                threading.Thread(target=self._send_greeting, args=(peer,), daemon=True).start()

    def _send_greeting(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            peer.settimeout(2 * CONNECT_WITHIN)
            peer.sendall(self._greeting)

    def _accept(self, lane: int, found: socket.socket) -> None:
        while True:
            peer, _ = found.accept()
            threading.Thread(target=self._count, args=(lane, peer), daemon=True).start()

    def _count(self, lane: int, peer: socket.socket) -> None:
        """Record the rate received, in bit/s, during the window that follows the warm-up."""
        warm_up, window = self._window
        buffer = bytearray(1 << 20)
        total = 0
        with peer:
            peer.settimeout(warm_up + window + 0.5)
            try:
                sender = int(peer.recv(16))
            except (OSError, ValueError):
                return
            begun = now = time.monotonic() + warm_up
            while now < begun + window:
                try:
                    size = peer.recv_into(buffer)
                except OSError:
                    break
                now = time.monotonic()
                if not size:
                    break
                if now > begun:
                    total += size
        if total:
            self.counted[lane, sender] = total * 8 / max(now - begun, window / 2)


def send(source: str, to: str, port: int, index: int, seconds: float) -> None:
    """Connect to `to`, send the number `index` of this host, then as much as possible for
    `seconds`."""
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


def routes(wanted: List[Tuple[str, str]]) -> Dict[Tuple[str, str], str]:
    """Return the NIC by (to, source), or "" without a route; an empty dict if `ip` cannot tell. An
    empty source stands for a program that binds no address. Runs `ip` once for all: a hundred forks
    on each of a hundred hosts would slow them down."""
    lines = (
        f"route get {to} from {source}" if source else f"route get {to}" for to, source in wanted
    )
    try:
        done = subprocess.run(
            ["ip", "-o", "-force", "-batch", "-"],
            input="\n".join([*lines, ""]).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    if b"-batch" in done.stderr or b"BusyBox" in done.stderr:
        return {}
    found = dict.fromkeys(wanted, "")
    for line in done.stdout.decode(errors="replace").splitlines():
        words = line.split()
        named = {key: words[at + 1] for at, key in enumerate(words[:-1]) if key in ("from", "dev")}
        if "dev" in named:
            # For an address of this host, `ip` prints `local ADDRESS ...`; IPv6 has `from ::`.
            to = words[1] if words[0] == "local" else words[0]
            source = named.get("from", "::")
            found[to, "" if source == "::" else source] = named["dev"]
    return found


def neighbours(wanted: List[Request]) -> Optional[Dict[Tuple[str, str], List[str]]]:
    """Return, by (source, to), the MAC of every machine that answers for the address `to`: several
    if it is in use twice. Ethernet and IPv4 only; None without root."""
    found: Dict[Tuple[str, str], List[str]] = {}
    for nic in sorted({one[0] for one in wanted}):
        try:
            with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ARP)) as wire:
                wire.bind((nic, ARP))
                if wire.getsockname()[3] == ETHERNET:
                    found.update(_answered(wire, [one[1:] for one in wanted if one[0] == nic]))
        except PermissionError:
            return None
        except OSError:
            continue  # no such NIC, or it is down: the other tests on it report that
    return found


def _answered(
    wire: socket.socket, wanted: List[Tuple[str, str]]
) -> Dict[Tuple[str, str], List[str]]:
    """Broadcast ARP requests for the addresses, and collect the MACs of all answers."""
    own = wire.getsockname()[4]
    seen: Dict[str, List[str]] = {}
    for _ in range(ARP_ROUNDS):
        for source, to in wanted:
            request = struct.pack("!HHBBH", ETHERNET, 0x0800, 6, 4, 1) + own
            request += socket.inet_aton(source) + bytes(6) + socket.inet_aton(to)
            wire.send(b"\xff" * 6 + own + struct.pack("!H", ARP) + request)
        deadline = time.monotonic() + ARP_ROUND
        while time.monotonic() < deadline:
            wire.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                frame = wire.recv(2048)
            except socket.timeout:
                break
            if frame[20:22] == b"\0\2":  # a reply: the MAC and the address of its sender
                answers = seen.setdefault(socket.inet_ntoa(frame[28:32]), [])
                mac = ":".join("%02x" % byte for byte in frame[22:28])
                if mac not in answers:
                    answers.append(mac)
    return {(source, to): seen.get(to, []) for source, to in wanted}


def connections(wanted: List[Connect], greetings: Dict[Tuple[str, int], str]) -> Dict[Connect, str]:
    """Return `ok`, `refused`, `no answer`, `no data` for a connection on which the greeting does
    not arrive, or the system's error text. `greetings`: the text expected from (to, port). A
    connection without an answer is retried: packets are lost when many hosts start at once."""

    def connect(key: Connect) -> str:
        source, to, port = key
        end = time.monotonic() + CONNECT_WITHIN
        late = "no answer"
        try:
            with socket.create_connection((to, port), CONNECT_WITHIN, (source, 0)) as peer:
                greeting = greetings.get((to, port))
                if greeting is None:
                    return "ok"
                late, said = "no data", b""
                while len(said) < GREETING:
                    peer.settimeout(max(0.001, end - time.monotonic()))
                    part = peer.recv(GREETING)
                    if not part:
                        break
                    said += part
                return "ok" if said == padded(greeting) else "another program answers"
        except socket.timeout:
            return late
        except ConnectionRefusedError:
            return "refused"
        except OSError as error:
            return (error.strerror or str(error)).lower()

    with ThreadPoolExecutor(AT_ONCE) as pool:  # at most so many, to limit the ARP broadcasts
        found = dict(zip(wanted, pool.map(connect, wanted)))
        silent = [key for key, word in found.items() if word in ("no answer", "no data")]
        found.update(zip(silent, pool.map(connect, silent)))
    return found


def echoes(wanted: List[Ask]) -> Optional[Dict[Ask, float]]:
    """Return the round trip in seconds of each packet that was not lost; None without root. On a
    path that carries a SMALL packet but loses a large one, smaller STEPS are tried too."""
    found: Dict[Ask, float] = {}
    for source in sorted({one[0] for one in wanted}):
        asked = [one for one in wanted if one[0] == source]
        try:
            with _Echo(source) as echo:
                found.update(echo.ask(asked))
            lost: Dict[str, int] = {}  # Address to the smallest size that was lost
            for _, to, size in asked:
                if (source, to, size) not in found and (source, to, SMALL) in found:
                    lost[to] = min(size, lost.get(to, size))
            with _Echo(source) as echo:  # another one, which takes no late answers of the first
                smaller = [(source, to, size) for to in lost for size in STEPS if size < lost[to]]
                found.update(echo.ask(smaller))
        except OSError:
            return None
    return found


class _Echo:
    """Sends ICMP echo requests on a raw socket: to all peers at once, never fragmented."""

    def __init__(self, source: str) -> None:
        self._six = ":" in source
        kind = socket.getprotobyname("ipv6-icmp") if self._six else socket.IPPROTO_ICMP
        self._socket = socket.socket(family(source), socket.SOCK_RAW, kind)
        self._socket.bind((source, 0))
        # IPV6_MTU_DISCOVER and IP_MTU_DISCOVER of the kernel's headers; Python has no constants.
        level, option = (41, 23) if self._six else (0, 10)
        self._socket.setsockopt(level, option, PROBE_WITH_DF)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._own = int.from_bytes(os.urandom(2), "big")

    def __enter__(self) -> "_Echo":
        return self

    def __exit__(self, *_: Any) -> None:
        self._socket.close()

    def ask(self, wanted: List[Ask]) -> Dict[Ask, float]:
        found: Dict[Ask, float] = {}
        sent: Dict[int, Tuple[Ask, float]] = {}
        for _ in range(ECHO_ROUNDS):
            missing = [key for key in wanted if key not in found]
            for at in range(0, len(missing), AT_ONCE):
                for key in missing[at : at + AT_ONCE]:
                    sent[len(sent)] = (key, time.monotonic())
                    self._send(key, len(sent) - 1)
                self._collect(sent, found, len(found) + len(missing[at : at + AT_ONCE]), 0.05)
            self._collect(sent, found, len(wanted), ECHO_ROUND)
        return found

    def _send(self, key: Ask, number: int) -> None:
        _, to, size = key
        kind = 128 if self._six else 8
        total = (kind << 8) + self._own + number  # the rest is zeros; the kernel sums over IPv6
        total = (total & 0xFFFF) + (total >> 16)
        packet = struct.pack("!BBHHH", kind, 0, ~total & 0xFFFF, self._own, number)
        try:
            self._socket.sendto(packet + b"\0" * (size - (48 if self._six else 28)), (to, 0))
        except OSError:
            return  # longer than the interface can send: counts as lost

    def _collect(
        self, sent: Dict[int, Tuple[Ask, float]], found: Dict[Ask, float], wanted: int, limit: float
    ) -> None:
        """Receive answers until there are `wanted`, for `limit` seconds at most."""
        deadline = time.monotonic() + limit
        while len(found) < wanted and time.monotonic() < deadline:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                packet = self._socket.recv(65536)
            except OSError:
                return
            answer = packet if self._six else packet[(packet[0] & 15) * 4 :]
            kind, _, _, own, number = struct.unpack("!BBHHH", answer[:8])
            if kind == (129 if self._six else 0) and own == self._own and number in sent:
                key, begun = sent[number]
                found.setdefault(key, time.monotonic() - begun)
