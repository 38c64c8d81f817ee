"""Look names up as the host's own programs do, and query each name server separately.

Runs on hosts and in their node containers; writes nothing. Its argument: {"names": [...],
"addresses": [...], "made_up": NAME, "foreign": NAME, "within": SECONDS}. Prints for each name and
address the result and the seconds it took (None if it did not finish in time), and for each name
server when it answered, or the error."""

import json
import os
import socket
import threading
import time
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple

Key = Tuple[str, str]
Timed = Optional[Tuple[Any, float]]

RESOLV_CONF = "/etc/resolv.conf"
PORT = 53
_KINDS = ("names", "addresses", "servers")
_MOST = 3  # name servers: the resolver ignores the others


def main(order: Dict[str, Any]) -> None:
    own = socket.gethostname()
    servers, search = configured(RESOLV_CONF)
    foreign = order["foreign"]
    work: Dict[Key, Callable[[], Any]] = {}
    for name in [own, foreign, order["made_up"], *order["names"]]:
        work["names", name] = partial(addresses_of, name)
    for ip in order["addresses"]:
        work["addresses", ip] = partial(name_of, ip)
    for ip in servers:
        work["servers", ip] = partial(asked, ip, foreign)
    found = all_at_once(work, order["within"])
    answer: Dict[str, Any] = {"own": own, "search": search, "made_up": order["made_up"]}
    for kind in _KINDS:
        answer[kind] = {what: outcome for (of, what), outcome in found.items() if of == kind}
    print(json.dumps(answer), flush=True)
    os._exit(0)  # without waiting for threads whose look-up hangs


def configured(path: str) -> Tuple[List[str], List[str]]:
    """Return name servers and search domains, parsed as the resolver does."""
    servers: List[str] = []
    search: List[str] = []
    try:
        with open(path) as file:
            for line in file:
                words = line.split()
                if len(words) > 1 and words[0] == "nameserver":
                    servers.append(words[1])
                elif len(words) > 1 and words[0] in ("search", "domain"):
                    search = words[1:]
    except OSError:
        pass
    return servers[:_MOST], search


def all_at_once(work: Dict[Key, Callable[[], Any]], within: float) -> Dict[Key, Timed]:
    """Run all calls in parallel. Return the value and seconds of each; None if it took too long."""
    found: Dict[Key, Timed] = dict.fromkeys(work)

    def one(key: Key, call: Callable[[], Any]) -> None:
        started = time.monotonic()
        value = call()
        found[key] = (value, time.monotonic() - started)

    threads = [threading.Thread(target=one, args=item, daemon=True) for item in work.items()]
    deadline = time.monotonic() + within
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(found)


def addresses_of(name: str) -> List[str]:
    """Return the sorted addresses of `name`; an empty list if it cannot be resolved."""
    try:
        found = socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(address[0]) for _, _, _, _, address in found})


def name_of(ip: str) -> str:
    """Return the name of an address, "" if there is none. Does not use getnameinfo: in Python 3.11
    that blocks all other threads while it waits."""
    try:
        return socket.gethostbyaddr(ip)[0]
    except OSError:
        return ""


def asked(server: str, name: str, port: int = PORT) -> str:
    """Query `server` for `name`: return "" once it gives any answer, else the error."""
    labels = b"".join(bytes([len(label)]) + label for label in name.encode().split(b"."))
    mark = os.urandom(2)
    question = mark + b"\1\0\0\1\0\0\0\0\0\0" + labels + b"\0\0\1\0\1"
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            server, port, 0, socket.SOCK_DGRAM, 0, socket.AI_NUMERICHOST
        )[0]
        with socket.socket(family, kind) as connection:
            connection.connect(address)
            connection.send(question)
            while connection.recv(4096)[:2] != mark:
                pass
    except OSError as error:
        return error.strerror or str(error)
    return ""
