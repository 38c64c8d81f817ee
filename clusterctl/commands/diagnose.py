"""`diagnose`: name the causes of failures from logs, of a cluster or of files at hand."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from clusterctl import deadlines
from clusterctl.diagnosis.logs import Finding, lines_of, search
from clusterctl.diagnosis.verdict import Cause, verdict
from clusterctl.errors import ClusterctlError, RequirementsNotMet, UsageError
from clusterctl.inventory.model import Host, Inventory
from clusterctl.node.files import NodePaths
from clusterctl.serving.declaration import require_service
from clusterctl.survey.survey import connected, take_survey
from clusterctl.transport.base import Transport
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import failures, fan_out, values

LOG_TAIL = 2_000_000  # Bytes at the end of each log of a host that are searched

# The ends of the logs that a directory has, each after a line with a mark that no log can know,
# and what the kernel said of GPUs, memory and links in the last day. Links are not followed.
TAILS = r"""
mark=$1 bytes=$2 directory=$3 kernel=$4
for log in "$directory"/*.log; do
    if [ -f "$log" ] && [ ! -L "$log" ]; then
        printf '\n%s %s\n' "$mark" "${log##*/}"
        tail -c "$bytes" "$log"
    fi
done
printf '\n%s kernel\n' "$mark"
{ journalctl -k -q --no-pager -o short-iso --since=-1d 2>/dev/null || dmesg 2>/dev/null; } |
    grep -aE "$kernel" | tail -n 400
exit 0
"""
_KERNEL = (
    "NVRM: |oom-kill:|ut of memory: Killed|fallen off the bus|fork rejected|[Ll]ink is [Dd]own"
)


def of_files(paths: Sequence[Path]) -> list[Cause]:
    """Return the causes in log files, in all files of directories, or in stdin (`-`).

    Raises UsageError with every path that cannot be read.
    """
    findings: list[Finding] = []
    for path in paths:
        for file in _files(path):
            name = "stdin" if str(file) == "-" else str(file)
            try:
                with (
                    nullcontext(sys.stdin.buffer) if name == "stdin" else file.open("rb") as stream
                ):
                    findings += search(lines_of(stream), name)
            except OSError as error:
                raise UsageError(f"{name} cannot be read: {error.strerror}") from error
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
            require_service(service, take_survey(inventory, head).services)
        mark = secrets.token_hex(16)
        logs = str(NodePaths(inventory.cluster).logs)
        argv = ["sh", "-c", TAILS, "tails", mark, str(LOG_TAIL), logs, _KERNEL]
        outcomes = fan_out(transports, partial(_tails, argv=argv))
    answers = values(outcomes)
    if not answers:
        raise RequirementsNotMet("no host answers", hint="clusterctl status")
    findings: list[Finding] = []
    for host, text in answers.items():
        for name, lines in sections(text, mark):
            if service is None or name in {"kernel", "ray.log"} or _belongs(name, service):
                findings += search(lines, name, host, last_start=service is None)
    return verdict(_named(findings, inventory.hosts)), tuple(failures(outcomes))


def _tails(transport: Transport, argv: list[str]) -> str:
    return transport.run(argv, sudo=True, timeout=deadlines.LOG_TAILS).stdout


def _belongs(log: str, service: str) -> bool:
    """Whether a log is the service's, or that of one of its replicas (`NAME.1.log`)."""
    return log == f"{service}.log" or (
        log.startswith(f"{service}.") and log.removeprefix(f"{service}.")[:-4].isdigit()
    )


def sections(text: str, mark: str) -> Iterator[tuple[str, list[bytes]]]:
    for section in text.split(f"\n{mark} ")[1:]:
        name, _, lines = section.partition("\n")
        yield name, [line.encode() for line in lines.splitlines(keepends=True)]


def _named(findings: Iterable[Finding], hosts: Iterable[Host]) -> Iterator[Finding]:
    """Put the inventory's names in place of the addresses that Ray's prefixes show."""
    names = {address: host.name for host in hosts for address in (host.address, host.node_ip)}
    for each in findings:
        name = names.get(each.evidence.host, each.evidence.host)
        yield replace(each, evidence=replace(each.evidence, host=name))
