"""Copies of the head's documents, which root of other hosts keeps for the day it is lost.

A command that changed documents hands them out before it gives the lock back. A host that does not
answer then gets them with the next change, or by `bootstrap`.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from clusterctl.errors import MALFORMED, ClusterctlError
from clusterctl.node.documents import declared_dir, from_json, to_json
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import fan_out

# Argument: the directory of the documents' copies on the head. Prints the number of this change,
# the head's clock, and a line for each document.
COLLECT = """\
cd "$1" || exit
before=$(cat serial 2>/dev/null)
case $before in '' | *[!0-9]*) before=0 ;; esac
echo "$((before + 1))" >serial.new && mv -f serial.new serial || exit
echo "$((before + 1)) $(date +%s)"
for file in *.json */*.json; do
  [ ! -f "$file" ] || echo "$file $(base64 <"$file" | tr -d '\\n')"
done
"""


@dataclass(frozen=True)
class HeadCopy:
    """The head's documents as they were."""

    head: str
    serial: int  # Of two copies, the one with the larger number is newer
    written: float  # Unix seconds by the head's clock
    documents: dict[str, str] = field(default_factory=dict)  # By path below `config_dir`


def copy_file(cluster: str) -> str:
    return f"{declared_dir(cluster)}/head.copy"


def serial_file(cluster: str) -> str:
    """Return the path on the head of the number of the last change that was handed out."""
    return f"{declared_dir(cluster)}/serial"


def read_copy(data: bytes | None) -> HeadCopy | None:
    """Parse a copy; None if there is none, or it was damaged."""
    if data is None:
        return None
    try:
        return from_json(HeadCopy, data.decode())
    except ValueError:
        return None


def read_serial(data: bytes | None) -> int:
    """Parse the file of `serial_file`; 0 without one."""
    text = (data or b"").decode(errors="replace").strip()
    return int(text) if text.isdecimal() else 0


def hand_out(head: Transport, cluster: str, keepers: Sequence[Transport]) -> None:
    """Give the head's documents to the `keepers` that answer."""
    with suppress(*MALFORMED, ClusterctlError):
        argv = ["sh", "-c", COLLECT, "clusterctl-copy", declared_dir(cluster)]
        result = head.run(argv, sudo=True)
        first, *rest = result.stdout.splitlines()
        serial, written = first.split()
        texts = {
            file: base64.b64decode(data).decode()
            for file, _, data in (x.partition(" ") for x in rest)
        }
        copy = HeadCopy(head.host.name, int(serial), float(written), texts)
        data = to_json(copy).encode()

        def put(keeper: Transport) -> None:
            keeper.put(data, copy_file(cluster), mode=0o600, sudo=True)

        fan_out({keeper.host.name: keeper for keeper in keepers}, put)
