"""`diagnose`: name the causes of failures from logs, of a cluster or of files at hand."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path

from clusterctl import deadlines
from clusterctl.diagnosis.logs import Finding, lines_of, search
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
    inventory: Inventory, service: str | None, credentials: Credentials
) -> tuple[list[Cause], tuple[ClusterctlError, ...]]:
    """Return the causes in the logs of all hosts, and the errors of hosts that were not reached.

    Without `service`, only what the last start of each service met; with it, all starts of that
    service. Raises UsageError for a service that does not exist, and RequirementsNotMet if no host
    answers.
    """
    with connected(inventory.hosts, credentials) as transports:
        if service is not None:
            head = {inventory.head.name: transports[inventory.head.name]}
            survey = take_survey(inventory, head)
            if survey.head:  # without it, the logs of the other hosts may tell why
                served_at(survey, service)  # refuses an unknown name
        order = {"directory": str(NodePaths(inventory.cluster).logs), "kernel": _KERNEL}
        outcomes = fan_out(transports, partial(_ends, order=order))
    answers = values(outcomes)
    if not answers:
        raise RequirementsNotMet("no host answers", hint="clusterctl status")
    findings: list[Finding] = []
    for host, logs in answers.items():
        for name, text in logs.items():
            of = name.removesuffix(".log")
            if service is None or of in {"kernel", "ray"} or service in {of, service_of(of)}:
                lines = lines_of(BytesIO(text.encode(errors="replace")))
                findings += search(lines, name, host, last_start=service is None)
    return verdict(_named(findings, inventory.hosts)), tuple(failures(outcomes))


def _ends(transport: Transport, order: dict[str, str]) -> dict[str, str]:
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
