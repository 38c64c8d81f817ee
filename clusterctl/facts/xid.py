"""Xid errors: what NVIDIA's driver wrote to the kernel's log, and what each asks for. Pure.

Meanings and remedies: the catalog in NVIDIA's Xid Errors guide
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html). Codes that blame the
program (13, 31, 43, 45, 69) are left out: they end with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.facts.gpu_model import Xid

_LINE = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\): (?P<code>\d+),?\s*(?P<text>.*)"
)
_LOADED = "NVRM: loading"


@dataclass(frozen=True)
class Meaning:
    what: str
    reboot: bool = False  # A reset of the GPU does not help
    waits: bool = False  # The GPU goes on; a reset can wait until it is idle


CATALOG = {
    48: Meaning("memory error that ECC could not correct"),
    62: Meaning("its internal microcontroller halted"),
    63: Meaning("a bad row of its memory is to be replaced", waits=True),
    64: Meaning("a bad row of its memory could not be replaced"),
    74: Meaning("NVLink error"),
    79: Meaning("it fell off the PCI bus", reboot=True),
    92: Meaning("many memory errors that ECC corrected", waits=True),
    94: Meaning("memory error that ended one program only", waits=True),
    95: Meaning("memory error that may have touched every program"),
    109: Meaning("it did not switch between programs in time"),
    110: Meaning("security fault"),
    119: Meaning("its firmware (GSP) did not answer in time"),
    120: Meaning("its firmware (GSP) failed"),
    140: Meaning("memory error that was not recovered from"),
    143: Meaning("it could not be initialized"),
}


def parse_xids(lines: Sequence[str]) -> tuple[Xid, ...]:
    """Those since the driver was last loaded, which clears what a GPU had."""
    loaded = max((n for n, line in enumerate(lines) if _LOADED in line), default=-1)
    found = (_LINE.search(line) for line in lines[loaded + 1 :])
    return tuple(Xid(int(m["code"]), m["bus"].lower(), m["text"].strip()) for m in found if m)


def same_bus(log: str, smi: str) -> bool:
    """`0000:3b:00` of the log and `00000000:3B:00.0` of nvidia-smi are one device."""
    return _numbers(log)[-3:] == _numbers(smi)[-3:]


def _numbers(bus: str) -> list[int]:
    """Domain, bus and device. The function after the dot is 0 for every GPU."""
    return [int(word, 16) for word in bus.partition(".")[0].split(":") if word]
