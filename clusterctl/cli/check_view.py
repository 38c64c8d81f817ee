"""The result of `check`, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from clusterctl.commands.check import Report
from clusterctl.errors import Problems
from clusterctl.facts.model import HostFacts
from clusterctl.network.pairs.model import Way
from clusterctl.reporting.error_view import error_document
from clusterctl.reporting.text import columns, count, each_below_itself, size


def check_lines(report: Report, *, width: int | None = None) -> list[str]:
    """Return facts and choices of the hosts; problems are reported when the run ends. `width`: of
    the terminal, in characters."""
    rows = [_row(name, facts) for name, facts in report.facts.items()]
    lines = columns(rows, indent="", width=width)
    for host, choices in report.choices.items():
        lines += [f"{host}:", *each_below_itself("  ", choices, width)]
    lines += each_below_itself("fabric: ", report.fabric.lines, width) if report.fabric else []
    lines += each_below_itself("note: ", report.notes, width)
    if not report.errors:
        lines.append(f"{count(len(report.facts), 'host')}: nothing is missing")
    return lines


def _row(name: str, facts: HostFacts) -> tuple[str, ...]:
    engine = facts.engine
    docker = f"docker {engine.version}" if engine.running else "no container engine"
    kinds = {gpu.model: 0 for gpu in facts.gpus.gpus}
    for gpu in facts.gpus.gpus:
        kinds[gpu.model] += 1
    gpus = ", ".join(f"{number} x {model}" for model, number in kinds.items()) or "no GPU"
    return name, facts.os.pretty, f"{facts.cpus} CPUs", size(facts.memory), docker, gpus


def check_document(report: Report) -> dict[str, Any]:
    """Return the result of `check` for --json."""
    return {
        "hosts": {
            name: {
                "os": facts.os.pretty,
                "architecture": facts.os.architecture,
                "cpus": facts.cpus,
                "memory_bytes": facts.memory,
                "engine": facts.engine.version,
                "gpus": [gpu.model for gpu in facts.gpus.gpus],
                "choices": list(report.choices.get(name, ())),
            }
            for name, facts in report.facts.items()
        },
        "fabric": asdict(report.fabric) if report.fabric else None,
        "pairs": [_pair(way) for way in report.ways],
        "notes": list(report.notes),
        "problems": error_document(Problems(report.errors))["problems"],
    }


def _pair(way: Way) -> dict[str, Any]:
    """Return one direction of a pair; values that were not measured are null."""
    trip = way.round_trip
    return {
        "from": way.sender.host,
        "to": way.receiver.host,
        "for": list(way.lane.purposes),
        "from_nic": way.sender.nic,
        "to_address": way.receiver.ip,
        "leaves_by": way.route,
        "closed_ports": sorted(port for port, word in way.tcp.items() if word != "ok"),
        "round_trip_ms": None if trip is None else round(trip * 1000, 3),
        "mbit_s": None if way.rate is None else round(way.rate),
    }
