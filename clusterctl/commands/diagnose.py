"""`diagnose`: find the causes of failures in the logs of a cluster, or in files."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from clusterctl import __version__, deadlines
from clusterctl.diagnosis.bundle import (
    LARGEST,
    LEAST,
    compressor_for,
    host_files,
    write_bundle,
)
from clusterctl.diagnosis.bundle_reader import SUFFIXES, read_bundle
from clusterctl.diagnosis.cluster import STATE, Asked, causes_of
from clusterctl.diagnosis.logs import Finding, lines_of, search_to_end
from clusterctl.diagnosis.verdict import Cause, verdict
from clusterctl.errors import ClusterctlError, RequirementsNotMet, UsageError, raise_all
from clusterctl.models.version import Version, parse_version, show_version
from clusterctl.node.documents import NodeState, from_json
from clusterctl.node.files import NodePaths
from clusterctl.operations.session import Session
from clusterctl.serving.declaration import LOG_ENDS, served_at
from clusterctl.serving.release_flags import FLAGS, flags_of
from clusterctl.survey.survey import take_survey
from clusterctl.transport import python
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import failures, fan_out, values

_MOST = 8 * 2**20
"""Bytes of a host's logs, the newest first; as JSON they may be twice as long."""

# Lines of a kernel that say something of GPUs, memory, processes and links
_KERNEL = (
    "NVRM: |oom-kill:|ut of memory: Killed|fallen off the bus|fork rejected|[Ll]ink is [Dd]own"
)


_EVERYWHERE = re.compile(r" on every host(?: of the service)?| --host HOST")
_FLAG = re.compile(r"--[a-z][a-z0-9-]+")


def of_files(paths: Sequence[Path]) -> tuple[list[Cause], dict[str, str]]:
    """Return the causes in log files, in all files of directories, in stdin (`-`), or in an archive
    of `diagnose --bundle`, as of the time when it was made; and by file what was running where a
    log ends in the middle of a start.

    Raises UsageError with every path that cannot be read.
    """
    if len(paths) == 1 and paths[0].name.endswith(SUFFIXES):
        return of_bundle(paths[0]), {}
    findings: list[Finding] = []
    unfinished: dict[str, str] = {}
    problems: list[ClusterctlError] = []
    for path in paths:
        for file in _files(path):
            name = "stdin" if str(file) == "-" else str(file)
            try:
                with (
                    nullcontext(sys.stdin.buffer) if name == "stdin" else file.open("rb") as stream
                ):
                    found, running = search_to_end(lines_of(stream), name)
                    findings += found
                    unfinished |= {name: running} if running else {}
            except OSError as error:
                problems.append(UsageError(f"{name} cannot be read: {error.strerror}"))
    raise_all(problems)
    return verdict(findings), unfinished


def _files(path: Path) -> Iterator[Path]:
    """Yield the regular files below a directory, or the path itself."""
    if not path.is_dir():
        yield path
        return
    for each in sorted(path.rglob("*")):
        if each.is_file() and not each.is_symlink():
            yield each


def of_bundle(path: Path) -> list[Cause]:
    """Return the causes in an archive as they were shown to its author. Raises UsageError if it
    cannot be read."""
    files, question = read_bundle(path)
    return _answer(files, question)


def of_cluster(
    session: Session, service: str | None, bundle: Path | None = None
) -> tuple[list[Cause], tuple[ClusterctlError, ...]]:
    """Return the causes in the logs of all hosts, and the errors of hosts that were not reached.

    Without `service`, what is wrong now and the last failures; with it, all starts of that service.
    `bundle`: an archive to write with everything that hosts recorded, without secrets. Raises
    UsageError for a service that does not exist, and for a bundle that cannot be written, and
    RequirementsNotMet if no host answers.
    """
    if bundle:
        compressor_for(bundle)
    inventory, paths = session.inventory, NodePaths(session.inventory.cluster)
    order: dict[str, object] = {
        "directory": str(paths.logs),
        "kernel": _KERNEL,
        "most": max(LEAST, min(_MOST, LARGEST // len(inventory.hosts))) if bundle else _MOST,
        "whole": bundle is not None,
        "also": [
            str(paths.state),
            *([str(paths.node_document), str(paths.services / "*.json")] if bundle else []),
        ],
        "secrets": [str(paths.api_key), str(paths.ray_token)],
    }
    with session.connected() as transports:
        if service is not None:
            head = {inventory.head.name: transports[inventory.head.name]}
            survey = take_survey(inventory, head)
            if survey.head:  # without it, the logs of the other hosts may tell why
                served_at(survey, service)  # refuses an unknown name
        outcomes = fan_out(transports, partial(_ends, order=order))
    answers = values(outcomes)
    if not answers:
        raise RequirementsNotMet("no host answers", hint="clusterctl status")
    names = {at: host.name for host in inventory.hosts for at in (host.address, host.node_ip) if at}
    question = Asked(service or "", time.time(), names)
    causes = _answer(answers, question)
    if bundle:
        write_bundle(bundle, {**dict(_summary(causes, question)), **_of_hosts(answers)})
    return causes, tuple(failures(outcomes))


def _answer(files: Mapping[str, Mapping[str, str]], question: Asked) -> list[Cause]:
    release = _release(files)
    several = len(set(question.names.values())) > 1
    return [_true_here(each, release, several=several) for each in causes_of(files, question)]


def _release(answers: Mapping[str, Mapping[str, str]]) -> Version | None:
    """Return the cluster's release of vLLM, if a host's supervisor reports it."""
    for files in answers.values():
        try:
            state = from_json(NodeState, files.get(STATE, ""))
        except ValueError:
            continue
        if version := parse_version(state.vllm_version):
            return version
    return None


def _true_here(cause: Cause, release: Version | None, *, several: bool) -> Cause:
    """Return the cause with a fix that works for this release and this number of hosts."""
    fix = cause.fix
    if not several:
        steps = _EVERYWHERE.sub("", fix).split("; ")
        fix = "; ".join([step for step in steps if "hosts" not in step] or steps)
    flags = [word.removeprefix("--") for word in _FLAG.findall(fix)]
    lacking = [
        flag for flag in flags if release and flag in FLAGS and flag not in flags_of(release)
    ]
    if release and lacking:
        missing = ", ".join(f"--{flag}" for flag in lacking)
        fix = f"{fix}; but vLLM {show_version(release)} has no {missing}"
    return replace(cause, fix=fix)


def _summary(causes: Sequence[Cause], question: Asked) -> Iterator[tuple[str, str]]:
    yield "causes.json", json.dumps([asdict(cause) for cause in causes])
    yield "clusterctl.json", json.dumps({"version": __version__, **asdict(question)})


def _of_hosts(answers: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {
        f"{host}/{name if '.' in name else f'{name}.log'}": text
        for host, files in answers.items()
        for name, text in files.items()
    }


def _ends(transport: Transport, order: dict[str, object]) -> dict[str, str]:
    """Return the ends of the host's logs by name, and of its kernel log."""
    said = python.ask(
        transport, LOG_ENDS, order, doing="reading the logs", timeout=deadlines.LOG_TAILS, sudo=True
    )
    return host_files(said)
