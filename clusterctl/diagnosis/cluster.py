"""The verdict on what all hosts of a cluster sent: logs, recordings, and their state.

The time of the question decides: what a service met before it was ready again, what belonged to
removed services, and what hosts reported before the present failure is over.
"""

from __future__ import annotations

import calendar
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO

from clusterctl.diagnosis.logs import Finding, lines_of, search, search_now
from clusterctl.diagnosis.record import (
    HostRecord,
    Outage,
    failures_of,
    record_of,
    recorded_lines,
)
from clusterctl.diagnosis.unknown import UNKNOWN
from clusterctl.diagnosis.verdict import Cause, verdict
from clusterctl.node.documents import NodeState, from_json, service_of

STATE = "state.json"
"""Name of a host's state, among the names of its files."""

OF_HOSTS = frozenset({"kernel", "engine", "ray.log", "gateway.log"})
"""Logs that belong to no service."""

TIME = "time.json"
"""Name of a host's clock, likewise."""

_OF_SERVICE = re.compile(r"(clusterctl (?:logs|restart|diagnose)) NAME\b")
_FRESH = 30.0  # seconds; a supervisor writes its state at least every 3 s
_BEFORE = 120.0  # seconds before a host's supervisor was last seen, in which a cause is looked for
_A_YEAR, _A_DAY = 365 * 86400.0, 86400.0

# They last until somebody does something about them.
_LASTING = frozenset({"xid-79", "nvml-unknown", "driver-mismatch"})


@dataclass(frozen=True)
class Asked:
    """The question: why a service fails, or, with an empty name, what is wrong in the cluster."""

    service: str
    time: float  # Unix seconds
    names: Mapping[str, str]  # of hosts, by the addresses that Ray's prefixes show


def causes_of(files: Mapping[str, Mapping[str, str]], question: Asked) -> list[Cause]:
    """Return the causes in the files of hosts, by the host's and the file's names."""
    return verdict(_Cluster(files, question).findings())


@dataclass(frozen=True)
class _Cluster:
    files: Mapping[str, Mapping[str, str]]
    question: Asked

    def findings(self) -> Iterator[Finding]:
        for host, files in self.files.items():
            for name, text in files.items():
                if ".json" not in name and self._concerns(host, name):
                    yield from map(self._named, self._in_log(host, name, text))

        present, ended = self._outages
        yield from self._recorded(present, lasting=True)
        for finding in self._recorded(ended, lasting=False):
            yield replace(finding, over=True)

    # Logs

    def _concerns(self, host: str, log: str) -> bool:
        """Whether the question concerns a log."""
        if log in OF_HOSTS:
            return True
        name, service = log.removesuffix(".log"), self.question.service
        if service:
            return service in {name, service_of(name)}
        state = self._states.get(host)
        return state is None or name in {each.name for each in state.services}

    def _in_log(self, host: str, log: str, text: str) -> Iterator[Finding]:
        lines = list(lines_of(BytesIO(text.encode(errors="replace"))))
        if log in OF_HOSTS:
            # Ray's own programs write errors that nothing follows from.
            found = (each for each in search(lines, log, host) if each.pattern.level != "said")
            for finding in found:
                yield replace(finding, over=self._was_before(finding, host))
            return

        now = search_now(lines, log, host)
        for finding in search(lines, log, host) if self.question.service else now:
            asked = finding.pattern.level == "request" and finding in now
            over = self._is_ready(host, log) or finding not in now
            yield replace(finding, over=over and not asked)

    def _is_ready(self, host: str, log: str) -> bool:
        state = self._states.get(host)
        named = (each for each in (state.services if state else ()) if f"{each.name}.log" == log)
        return self._is_fresh(host) and any(each.state == "ready" for each in named)

    def _was_before(self, finding: Finding, host: str) -> bool:
        """Whether a line of a host is older than everything that fails now."""
        if finding.id in _LASTING:
            return False
        since = self._since(host)
        if since is None:
            return True
        return bool(finding.time) and self._unix(finding.time) < since

    def _since(self, host: str) -> float | None:
        """Return when the present failure may have begun; None if nothing that could involve the
        host is failing."""
        if not self._states:
            return 0.0
        began = [each.since for each in self._outages[0]]
        if not self._is_fresh(host):
            state = self._states.get(host)
            began.append(state.time - _BEFORE if state else 0.0)
        return min(began, default=None)

    def _unix(self, stamp: str) -> float:
        """Return the time of a log line, which has no year and is in UTC."""
        year = time.gmtime(self.question.time).tm_year
        try:
            at = calendar.timegm(time.strptime(f"{year}-{stamp}", "%Y-%m-%d %H:%M:%S"))
        except ValueError:
            return self.question.time
        return at - _A_YEAR if at > self.question.time + _A_DAY else float(at)

    # What hosts recorded

    @cached_property
    def _outages(self) -> tuple[list[Outage], list[Outage]]:
        """Return the ongoing failures, and those that are over."""
        asked = self.question
        found = failures_of(self._records, asked.service or None, asked.time)
        declared = {each.name for state in self._states.values() for each in state.services}
        known = bool(self._states)
        present: list[Outage] = []
        ended: list[Outage] = []
        for each in found:
            removed = known and not each.of_ray and each.service not in declared
            lasts = each.ended == asked.time and not removed and not self._serves(each.service)
            (present if lasts else ended).append(each)
        return present, ended

    def _serves(self, service: str) -> bool:
        return any(self._is_ready(host, f"{service}.log") for host in self._states)

    def _recorded(self, failures: list[Outage], *, lasting: bool) -> Iterator[Finding]:
        told = recorded_lines(self._records, failures, self.question.time, lasting=lasting)
        for host, files in told.items():
            for name, lines in files.items():
                yield from map(self._named, search(lines, name, host))

    @cached_property
    def _records(self) -> Mapping[str, HostRecord]:
        return {host: record_of(files) for host, files in self.files.items()}

    # Hosts

    @cached_property
    def _states(self) -> dict[str, NodeState]:
        """Return the state of each host that sent a readable one; standbys are services here."""
        found = {}
        for host, files in self.files.items():
            try:
                state = from_json(NodeState, files.get(STATE, ""))
                found[host] = replace(state, services=state.engines)
            except ValueError:
                continue
        return found

    def _is_fresh(self, host: str) -> bool:
        """Whether a host's supervisor is running, by the host's own clock."""
        state = self._states.get(host)
        try:
            now = float(json.loads(self.files[host].get(TIME, "")))
        except (ValueError, TypeError):
            now = self.question.time
        return state is not None and abs(now - state.time) < _FRESH

    def _named(self, finding: Finding) -> Finding:
        """Replace the host's address and the service in a command by names."""
        evidence = finding.evidence
        host = self.question.names.get(evidence.host, evidence.host)
        fix, service = finding.fix, self._service_of(evidence.file)
        if service:
            fix = _OF_SERVICE.sub(rf"\1 {service}", fix)
        if service and finding.id == UNKNOWN:
            fix += f"; clusterctl diagnose {service} --bundle report.tar.gz keeps it for them"
        return replace(finding, evidence=replace(evidence, host=host), fix=fix)

    def _service_of(self, log: str) -> str:
        if self.question.service or log in OF_HOSTS:
            return self.question.service
        return service_of(log.removesuffix(".log")) if log.endswith(".log") else ""
