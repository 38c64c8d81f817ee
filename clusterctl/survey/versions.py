"""The version record of a cluster: what each host and service has, and what changed when. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from clusterctl.errors import MALFORMED
from clusterctl.node.files import NodePaths
from clusterctl.survey.survey import Survey

_LONGEST = 2000  # Characters of a value; a host may write anything into its ledger


@dataclass(frozen=True)
class VersionChange:
    """One value of a host or of a service that differs from the ledger's line before."""

    time: float  # Unix seconds, by the host's clock
    host: str
    subject: str  # `node`, or a service
    name: str  # `driver`, `vllm`, `flags`, ...
    before: str  # Empty: new
    after: str  # Empty: gone


@dataclass(frozen=True)
class VersionRecord:
    """Versions by host and by service, and their changes, newest first."""

    hosts: Mapping[str, Mapping[str, str]]
    services: Mapping[str, Mapping[str, str]]
    changes: tuple[VersionChange, ...]
    silent: Mapping[str, str]  # Hosts without an answer, with the reason
    vulnerabilities: tuple[str, ...] = ()  # Known ones of the head's vLLM and Ray, a sentence each

    def to_json(self) -> dict[str, Any]:
        """Return the document of `version --cluster --json`."""
        return asdict(self)


def ledger_file(cluster: str) -> str:
    """Return the path of the ledger on every host."""
    return str(NodePaths(cluster).ledger)


def engine_versions(survey: Survey) -> dict[str, str]:
    """Return the versions of vllm and ray that the head reports; before that, vLLM's from the
    image's tag."""
    state = survey.states.get(survey.inventory.head.name)
    found = state.versions if state else {}
    return {"vllm": found.get("vllm", survey.inventory.image), "ray": found.get("ray", "")}


def version_record(survey: Survey) -> VersionRecord:
    """Return the record of a survey that read `ledger_file`. Drivers, kernels and engines are as
    the hosts report them now, the rest as their supervisors and ledgers do."""
    inventory = survey.inventory
    hosts: dict[str, dict[str, str]] = {}
    services: dict[str, dict[str, str]] = {}
    changes: list[VersionChange] = []
    for name, answer in survey.answers.items():
        facts, state = answer.facts, survey.states.get(name)
        container = survey.containers.get(name)
        drivers = sorted({gpu.driver for gpu in facts.gpus.gpus if gpu.driver})
        found = {
            **(state.versions if state else {}),
            "os": facts.os.pretty,
            "kernel": facts.os.kernel,
            "engine": facts.engine.version,
            "driver": ", ".join(drivers),
            "image": container.image if container else "",
        }
        hosts[name] = {key: value for key, value in found.items() if value}
        entries = ledger_entries(answer.files.get(ledger_file(inventory.cluster)))
        latest: dict[str, dict[str, str]] = {}
        for when, subject, versions in entries:
            before = latest.get(subject, versions)
            latest[subject] = versions
            for key in sorted({*versions, *before}):
                old, new = before.get(key, ""), versions.get(key, "")
                if old != new:
                    changes.append(VersionChange(when, name, subject, key, old, new))
        for subject in latest.keys() & survey.replicas.keys():
            if survey.replicas[subject].host == name:  # a replica may have been elsewhere before
                services[subject] = latest[subject]
    return VersionRecord(
        hosts,
        dict(sorted(services.items())),
        tuple(sorted(changes, key=lambda each: each.time, reverse=True)),
        {name: error.summary for name, error in survey.errors.items()},
    )


def ledger_entries(data: bytes | None) -> list[tuple[float, str, dict[str, str]]]:
    """Return time, subject and versions of each valid line, oldest first."""
    found = []
    for line in (data or b"").splitlines():
        try:
            entry: Any = json.loads(line)
            versions = {str(key): str(value)[:_LONGEST] for key, value in entry["versions"].items()}
            when = float(entry["time"])
        except MALFORMED:
            continue
        if math.isfinite(when):
            found.append((when, str(entry["subject"]), versions))
    return found
