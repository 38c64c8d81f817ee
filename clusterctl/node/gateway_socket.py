"""Queries and commands to the gateway's HAProxy over its socket."""

from __future__ import annotations

import csv
import re
import socket
import ssl
from pathlib import Path
from typing import Dict, List, Mapping


def ask(admin: Path, commands: List[str]) -> str:
    """Send commands to HAProxy's socket and return its answers. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(2.0)
        connection.connect(str(admin))
        connection.sendall((";".join(commands) + "\n").encode())
        answer = b""
        while data := connection.recv(65536):
            answer += data
    return answer.decode("utf-8", "replace")


def requests_in_flight(admin: Path) -> Dict[str, int]:
    """Return how many requests each backend/server currently has. Raises OSError, ValueError."""
    table = ask(admin, ["show stat -1 4 -1"])  # All servers (type 4) of all backends
    rows = csv.DictReader(table.strip().lstrip("# ").splitlines())
    try:
        return {f"{row['pxname']}/{row['svname']}": int(row["scur"]) for row in rows}
    except (LookupError, TypeError) as error:
        raise ValueError(f"not a table of servers: {table[:200]}") from error


def valid_until(admin: Path, certificate: str) -> float:
    """Return the end of the certificate that HAProxy uses, in Unix seconds; 0 if it has none.
    Raises OSError, ValueError."""
    if not certificate:
        return 0.0
    shown = ask(admin, [f"show ssl cert {certificate}"])
    found = re.search(r"^notAfter: (.+)$", shown, re.MULTILINE | re.IGNORECASE)
    return float(ssl.cert_time_to_seconds(found[1].strip())) if found else 0.0


def replace_map(admin: Path, path: Path, entries: Mapping[str, str]) -> None:
    """Replace a map of HAProxy at once, so that no key is refused meanwhile; its file is written
    before another process reads it. Raises OSError; ValueError for another answer."""
    answer = ask(admin, [f"prepare map {path}"])
    version = int(answer.strip().rpartition(" ")[2])
    adding = [
        f"add map @{version} {path} {key} " + value.replace(" ", "\\ ")
        for key, value in entries.items()
    ]
    ask(admin, [*adding, f"commit map @{version} {path}"])


def refused_so_far(admin: Path) -> int:
    """Return how many requests this HAProxy itself refused. Raises OSError, ValueError."""
    found = re.search(r" gpc0=(\d+)", ask(admin, ["show table refused"]))
    return int(found[1]) if found else 0
