"""`diagnose`: name the causes of failures from logs, of a cluster or of files at hand."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from io import BytesIO
from pathlib import Path

from clusterctl import __version__, deadlines
from clusterctl.diagnosis.bundle import LARGEST, LEAST, compressor_for, write_bundle
from clusterctl.diagnosis.logs import Finding, lines_of, search, search_now
from clusterctl.diagnosis.record import record_of, recorded_lines
from clusterctl.diagnosis.verdict import Cause, verdict
from clusterctl.errors import ClusterctlError, RequirementsNotMet, UsageError, raise_all
from clusterctl.inventory.model import Host, Inventory
from clusterctl.node.documents import service_of
from clusterctl.node.files import NodePaths
from clusterctl.serving.declaration import served_at
from clusterctl.survey.survey import connected, take_survey
from clusterctl.transport import python
from clusterctl.transport.base import Transport
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import failures, fan_out, values

READER = python.Program("clusterctl.transport", ("log_reader", "log_ends"))

_MOST = 8 * 2**20
"""Bytes of a host's logs, the newest first; as JSON they may be twice as long."""

# Lines of a kernel that say something of GPUs, memory, processes and links
_KERNEL = (
    "NVRM: |oom-kill:|ut of memory: Killed|fallen off the bus|fork rejected|[Ll]ink is [Dd]own"
)


def of_files(paths: Sequence[Path]) -> list[Cause]:
    """Return the causes in log files, in all files of directories, or in stdin (`-`).

    Raises UsageError with every path that cannot be read.
    """
    findings: list[Finding] = []
    problems: list[ClusterctlError] = []
    for path in paths:
        for file in _files(path):
            name = "stdin" if str(file) == "-" else str(file)
            try:
                with (
                    nullcontext(sys.stdin.buffer) if name == "stdin" else file.open("rb") as stream
                ):
                    findings += search(lines_of(stream), name)
            except OSError as error:
                problems.append(UsageError(f"{name} cannot be read: {error.strerror}"))
    raise_all(problems)
    return verdict(findings)


def _files(path: Path) -> Iterator[Path]:
    """Yield the regular files below a directory, or the path itself."""
    if not path.is_dir():
        yield path
        return
    for each in sorted(path.rglob("*")):
        if each.is_file() and not each.is_symlink():
            yield each


def of_cluster(
    inventory: Inventory,
    service: str | None,
    credentials: Credentials,
    bundle: Path | None = None,
) -> tuple[list[Cause], tuple[ClusterctlError, ...]]:
    """Return the causes in the logs of all hosts, and the errors of hosts that were not reached.

    Without `service`, only what the last start of each service met, and what its clients did wrong
    in the last hour; with it, all starts of that service. `bundle`: the archive to write with all
    that hosts recorded, without secrets. Raises UsageError for a service that does not exist, and
    for a bundle that cannot be written, and RequirementsNotMet if no host answers.
    """
    if bundle:
        compressor_for(bundle)
    paths = NodePaths(inventory.cluster)
    order: dict[str, object] = {
        "directory": str(paths.logs),
        "kernel": _KERNEL,
        "most": max(LEAST, min(_MOST, LARGEST // len(inventory.hosts))) if bundle else _MOST,
        "whole": bundle is not None,
        "also": [str(paths.state), str(paths.node_document), str(paths.services / "*.json")]
        if bundle
        else [],
        "secrets": [str(paths.api_key), str(paths.ray_token)],
    }
    with connected(inventory.hosts, credentials) as transports:
        if service is not None:
            head = {inventory.head.name: transports[inventory.head.name]}
            survey = take_survey(inventory, head)
            if survey.head:  # without it, the logs of the other hosts may tell why
                served_at(survey, service)  # refuses an unknown name
        outcomes = fan_out(transports, partial(_ends, order=order))
    answers = values(outcomes)
    if not answers:
        raise RequirementsNotMet("no host answers", hint="clusterctl status")
    findings: list[Finding] = []
    for host, logs in answers.items():
        for name, text in logs.items():
            if ".json" in name:
                continue
            of = name.removesuffix(".log")
            if service is None or of in {"kernel", "ray"} or service in {of, service_of(of)}:
                lines = list(lines_of(BytesIO(text.encode(errors="replace"))))
                findings += (search if service else search_now)(lines, name, host)
    records = {host: record_of(logs) for host, logs in answers.items()}
    for host, files in recorded_lines(records, service, time.time()).items():
        for name, lines_of_file in files.items():
            findings += search(lines_of_file, name, host)
    causes = verdict(_named(findings, inventory.hosts))
    if bundle:
        write_bundle(bundle, {**dict(_summary(causes)), **_of_hosts(answers)})
    return causes, tuple(failures(outcomes))


def _summary(causes: Sequence[Cause]) -> Iterator[tuple[str, str]]:
    yield "causes.json", json.dumps([asdict(cause) for cause in causes])
    yield "clusterctl.json", json.dumps({"version": __version__, "time": time.time()})


def _of_hosts(answers: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {
        f"{host}/{'kernel.log' if name == 'kernel' else name}": text
        for host, files in answers.items()
        for name, text in files.items()
    }


def _ends(transport: Transport, order: dict[str, object]) -> dict[str, str]:
    """Return the ends of the host's logs by name, and of its kernel's."""
    said = python.ask(
        transport, READER, order, doing="reading the logs", timeout=deadlines.LOG_TAILS, sudo=True
    )
    return {str(name): str(text) for name, text in said.items()} if isinstance(said, dict) else {}


def _named(findings: Iterable[Finding], hosts: Iterable[Host]) -> Iterator[Finding]:
    """Put the inventory's names in place of the addresses that Ray's prefixes show."""
    names = {address: host.name for host in hosts for address in (host.address, host.node_ip)}
    for each in findings:
        name = names.get(each.evidence.host, each.evidence.host)
        yield replace(each, evidence=replace(each.evidence, host=name))
