"""What a host without Python can tell of its way to the others: its own `ip` and `ping`."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from clusterctl.errors import CommandFailed
from clusterctl.transport.base import Transport


def ask(transport: Transport, order: Any, *, timeout: float) -> Any:
    """The answer to an order for `reach`, without TCP, as hosts with Python give it.

    Raises ConnectionFailed, CommandTimedOut, and CommandFailed when it was cut short.
    """
    script = files("clusterctl.network.pairs").joinpath("plain.sh").read_bytes()
    words = [str(word) for one in order["echo"] for word in one]
    result = transport.run(["sh", "-s", *words], stdin=script, timeout=timeout)
    lines = result.stdout.splitlines()
    if "done" not in lines[-1:]:
        raise CommandFailed(
            "its ways to the others could not be tried",
            host=transport.host.name,
            hint=f"clusterctl exec --limit {transport.host.name} -- sh -c true",
            detail=result.last_lines(),
        )
    return parse(lines)


def parse(lines: list[str]) -> Any:
    """routes: (to, source) to NIC, "" without one; echo: (source, to, size) to seconds, None for
    all where nothing could be pinged at all. Pure."""
    routes: dict[tuple[str, str], str] = {}
    echo: dict[tuple[str, str, int], float] = {}
    tried = False
    for line in lines:
        kind, *words = line.split()
        if kind == "route":
            source, to, nic = words
            routes[to, source] = nic.strip("-")
        elif kind == "echo":
            tried = True
            source, to, size, milliseconds = words
            if milliseconds != "-":
                echo[source, to, int(size)] = float(milliseconds) / 1000
    return {"routes": routes, "neighbours": None, "tcp": {}, "echo": echo if tried else None}
