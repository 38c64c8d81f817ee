"""What hosts recorded (`node/recorder.py`, `evidence.py`, `ledger.py`), as lines for the rules.

Only what belongs to a service's last failure is used, from shortly before it until the service is
ready again. Without a failure, what is wrong now.
"""

from __future__ import annotations

import json
import re
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from clusterctl.node.documents import service_of
from clusterctl.node.readings import full_disks

JOURNAL, LEDGER, EVIDENCE = "journal.jsonl", "ledger.jsonl", "evidence-"
"""Names of what hosts recorded, among the names of their logs."""

DISKS = "disks.json"
"""Name of what their disks have free now."""

_BEFORE = 120.0
"""Seconds before a failure in which its cause is looked for. A stall is noticed within 60 s."""

_NOTICED = 20.0
"""Seconds until the loss of a node is known. Of a stall, its text tells them."""

_A_DAY = 86400.0
"""Older failures count only if their service was asked for by name."""

_LAST = 4e9
"""Unix seconds in 2096: containers write these files, and a time beyond is not one."""

_DAMAGED = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
"""What is raised by JSON of another shape; JSON of Python has `Infinity`, which is no integer."""

_FAILED = ("stalled", "backing-off", "failed")
_ENDED = ("ready", "up", "stopped")  # Of a service, of Ray, of a service that was removed
_RAY = "ray of "  # Before a host; no service has such a name
_BUSY = 0.5  # cores


@dataclass
class HostRecord:
    """What one host recorded, in order."""

    journal: list[dict[str, Any]] = field(default_factory=list)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    evidence: list[dict[str, Any]] = field(default_factory=list)
    disks: dict[str, tuple[int, int]] = field(default_factory=dict)  # MiB free, in all


@dataclass(frozen=True)
class Outage:
    """From the first sign that a service fails until it is ready again or removed, in Unix
    seconds."""

    service: str
    began: float
    ended: float
    worked: float  # when it was ready before; 0 if it never was
    silent: float = _NOTICED  # seconds before `began` in which it did not work any more
    left: bool = False  # a node left Ray

    @property
    def of_ray(self) -> bool:
        return self.service.startswith(_RAY)

    @property
    def since(self) -> float:
        """When a possible cause may have begun: the service worked despite anything earlier."""
        return max(self.began - _BEFORE, self.worked)


def record_of(files: Mapping[str, str]) -> HostRecord:
    """Return what a host's files show. Damaged lines are left out."""
    made = HostRecord(
        list(_entries(files.get(JOURNAL, ""), "event")),
        list(_entries(files.get(LEDGER, ""), "versions")),
    )
    with suppress(*_DAMAGED):
        sizes = json.loads(files.get(DISKS, "{}")).items()
        made.disks = {path: (int(free), int(size)) for path, (free, size) in sizes}
    for name, text in files.items():
        if name.startswith(EVIDENCE):
            for each in _entries(text.replace("\n", " "), "processes"):
                with suppress(*_DAMAGED):
                    made.evidence.append(_evidence(each))
    return made


def _entries(text: str, key: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        with suppress(*_DAMAGED):
            entry = json.loads(line)
            if isinstance(entry, dict) and key in entry:
                entry["time"] = float(entry["time"])
                if 0 < entry["time"] < _LAST:
                    yield entry


def _evidence(document: dict[str, Any]) -> dict[str, Any]:
    """Return the needed parts of a file of evidence. Raises an error if it is malformed, since
    containers write these files."""
    return {
        "id": str(document["id"]),
        "service": str(document["service"]),
        "time": document["time"],
        "ranks": [
            {"rank": int(each["rank"]), "host": str(each["host"]), "pid": int(each["pid"])}
            for each in document["ranks"]
        ],
        "processes": [
            {
                "pid": int(each["pid"]),
                "cpu": float(each["cpu"]),
                **{key: str(each[key]) for key in ("name", "state", "call")},
            }
            for each in document["processes"]
        ],
    }


def failures_of(records: Mapping[str, HostRecord], service: str | None, now: float) -> list[Outage]:
    """Return the last failure of each service, or of `service`, from the journals of all hosts."""
    entries = sorted(
        (entry for record in records.values() for entry in record.journal),
        key=lambda entry: float(entry["time"]),
    )
    found: dict[str, Outage] = {}
    worked: dict[str, float] = {}
    for entry in entries:
        name, event, at = str(entry.get("subject")), entry["event"], float(entry["time"])
        if name == "ray":
            name = f"{_RAY}{entry.get('host')}"
        if service not in (None, service_of(name)):
            continue
        current = found.get(name)
        failing = current is not None and current.ended == now
        if event in _ENDED:
            if event != "stopped":
                worked[name] = at
            if current and failing:
                found[name] = replace(current, ended=at)
            continue
        text = str(entry.get("text"))
        left = event == "waiting" and "left Ray" in text
        if not failing and (event in _FAILED or left):
            silence = re.search(r" for (\d+) s", text)
            silent = float(silence[1]) if silence else _NOTICED
            found[name] = Outage(name, at, now, worked.get(name, 0.0), silent, left)
        elif current and left:  # vLLM often ends before Ray knows why
            found[name] = replace(current, left=True)
    last = max((each.since for name, each in found.items() if not each.of_ray), default=0)
    return [
        each
        for name, each in found.items()
        # A service that failed later had worked again.
        if not (each.of_ray and each.ended < last) and (service or now - each.ended < _A_DAY)
    ]


def recorded_lines(
    records: Mapping[str, HostRecord],
    failures: Sequence[Outage],
    now: float,
    *,
    lasting: bool = True,
) -> dict[str, dict[str, list[bytes]]]:
    """Return, by host and file, the lines that belong to failures, and with `lasting` those that
    show what is wrong now."""
    placed = _placed(records)
    told = {}
    for host, record in records.items():
        own = [each for each in failures if host in _hosts_of(each, records)]
        full = full_disks(record.disks) if lasting else ()
        told[host] = {
            "disks": [f"{_stamp(now)} host disk-full {text}" for _, text in full],
            "journal": _of_journal(record.journal, own, placed.get(host, []), lasting=lasting),
            "ledger": _changes(record.ledger, own),
            "evidence": _of_evidence(host, records, failures),
        }
    return {  # JSON may have halves of characters, which have no bytes
        host: {
            name: [line.encode(errors="replace") for line in lines] for name, lines in files.items()
        }
        for host, files in told.items()
    }


@dataclass(frozen=True)
class _Placed:
    """A process on a host that became a rank."""

    time: float
    pid: str
    rank: str  # `rank 1 of chat`


def _hosts_of(failure: Outage, records: Mapping[str, HostRecord]) -> set[str]:
    """Return the hosts of a service's ranks and API servers, according to the journals; all hosts
    if no journal says."""
    found = set()
    for host, record in records.items():
        for entry in record.journal:
            if entry.get("subject") == failure.service:
                found.add(host)
                ranks = _RANK.findall(str(entry.get("text"))) if entry["event"] == "ranks" else ()
                found |= {on for _, on, _ in ranks}
    knows = any(
        entry["event"] == "ranks" and entry.get("subject") == failure.service
        for record in records.values()
        for entry in record.journal
    )
    return found if knows else set(records)


def _placed(records: Mapping[str, HostRecord]) -> dict[str, list[_Placed]]:
    """Return, by host, which process was which rank, according to the services' journals."""
    found: dict[str, list[_Placed]] = {}
    for record in records.values():
        for entry in record.journal:
            if entry["event"] == "ranks":
                for rank, host, pid in _RANK.findall(str(entry.get("text"))):
                    name = f"rank {rank} of {entry.get('subject')}"
                    found.setdefault(host, []).append(_Placed(entry["time"], pid, name))
    return found


_RANK = re.compile(r"(\d+) on (\S+) \(process (\d+)\)")
_STOPPED = re.compile(r"(?P<name>.*) \(process (?P<pid>\d+)\) is stopped by a signal")


def _of_journal(
    journal: Sequence[dict[str, Any]],
    failures: Sequence[Outage],
    placed: Sequence[_Placed],
    *,
    lasting: bool,
) -> Iterator[str]:
    """Yield what belongs to failures, and with `lasting` ongoing problems. `placed`: ranks on this
    host."""
    over: dict[tuple[str, str], list[float]] = {}
    for entry in journal:
        if entry["event"] == "over":
            kind, _, device = str(entry.get("text")).partition(" ")
            over.setdefault((kind, device), []).append(float(entry["time"]))
    # A supervisor that was started again tells anew what is still wrong.
    starts = [float(entry["time"]) for entry in journal if entry["event"] == "started"]
    started = max(starts, default=0.0)
    services = {failure.service for failure in failures}
    for entry in journal:
        subject, event, text = (str(entry.get(key)) for key in ("subject", "event", "text"))
        at = float(entry["time"])
        ends = [
            ended[bisect_left(ended, at)]
            for (kind, device), ended in over.items()
            if kind == event and ended[-1] >= at and _words(device) <= _words(text)
        ]
        until = min(ends, default=_LAST)
        near = any(
            each.since <= at <= each.ended and until >= each.began - each.silent
            for each in failures
        )
        stopped = _STOPPED.fullmatch(text)
        ranks = [one for one in placed if stopped and one.pid == stopped["pid"] and one.time <= at]
        replaced = any(ranks and _follows(one, ranks[-1]) for one in placed)
        lasts = lasting and event in _LASTING and at >= started and not ends and not replaced
        own = subject in {"host", "ray"} or subject in services
        if event == "tcp-resent" and any(
            each.left and each.began - each.silent <= at <= each.ended for each in failures
        ):
            text += ", while a node was lost"
        if event not in {"over", "evidence", "ranks"} and ((near and own) or lasts):
            if stopped and ranks:
                text = text.replace(stopped["name"], ranks[-1].rank, 1)
            yield f"{_stamp(at)} {subject} {event} {text}"


def _follows(later: _Placed, earlier: _Placed) -> bool:
    """Whether the rank has a new process since then."""
    return later.rank == earlier.rank and later.time > earlier.time and later.pid != earlier.pid


def _words(text: str) -> set[str]:
    return set(re.findall(r"[\w./@-]+", text))


_LASTING = (
    "link-lost", "nic-broken", "nic-errors", "nic-drops", "tcp-resent", "disk-full", "memory-low",
    "stopped", "gpu-slowed",
)  # fmt: skip
"""Events of hosts that last until they are said to be over."""


def _changes(ledger: Sequence[dict[str, Any]], failures: Sequence[Outage]) -> Iterator[str]:
    """Yield what has changed since a service last worked."""
    last: dict[str, dict[str, str]] = {}
    for entry in ledger:
        subject, at = str(entry.get("subject")), float(entry["time"])
        versions = entry["versions"] if isinstance(entry["versions"], dict) else {}
        before = last.get(subject, versions)
        last[subject] = versions
        since = any(
            each.worked and each.worked <= at <= each.ended and subject in {"node", each.service}
            for each in failures
        )
        for name in sorted(before.keys() | versions.keys()) if since else ():
            old, new = str(before.get(name, "none")), str(versions.get(name, "none"))
            if old != new:
                yield f"{_stamp(at)} {subject} changed {name}: {old} -> {new}"


def _of_evidence(
    host: str, records: Mapping[str, HostRecord], failures: Sequence[Outage]
) -> Iterator[str]:
    """Yield where the processes of a host were when a service hung.

    A rank that computes while the others wait is distinguished, since the others wait for it.
    """
    for document in records[host].evidence:
        if not any(each.began - 5 <= document["time"] <= each.ended + 5 for each in failures):
            continue
        stamp = _stamp(document["time"])
        same = {
            name: [each for each in record.evidence if each["id"] == document["id"]]
            for name, record in records.items()
        }
        ranks = {
            (rank["host"], rank["pid"]): rank["rank"]
            for documents in same.values()
            for each in documents
            for rank in each["ranks"]
        }
        calls = {
            key: (process["call"] or "no Python code", process)
            for name, documents in same.items()
            for each in documents
            for process in each["processes"]
            if (key := (name, process["pid"])) in ranks
        }
        busy = [key for key, (_, process) in calls.items() if _computes(process)]
        for process in document["processes"]:
            key = (host, process["pid"])
            rank = (
                f"rank {ranks[key]} of {document['service']}" if key in ranks else process["name"]
            )
            who = f"{stamp} evidence {rank} (process {process['pid']})"
            call = process["call"] or "no Python code"
            if process["state"] in {"T", "t"}:
                yield f"{who} is stopped by a signal"
            elif process["state"] == "D":
                yield f"{who} waits in the kernel, in {call}"
            elif key in calls and busy == [key] and len(calls) > 1:
                yield f"{who} computes in {call}, while the others wait in " + ", ".join(
                    sorted({where for other, (where, _) in calls.items() if other != key})
                )
            elif key in calls:
                yield f"{who} waits in {call}"
            elif _computes(process):
                yield f"{who} computes in {call}"


def _computes(process: Mapping[str, Any]) -> bool:
    return process["state"] == "R" and bool(process["cpu"] > _BUSY)


def _stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
