"""`report`: everything known about a cluster, as a document to chart. Changes nothing on hosts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from clusterctl import deadlines
from clusterctl.engine.events import Note
from clusterctl.errors import MALFORMED
from clusterctl.network.gate import read_record, record_file
from clusterctl.network.pairs.judgement import CARRIES
from clusterctl.network.pairs.probe import IN_USE, probe_pairs
from clusterctl.node.files import NodePaths
from clusterctl.operations.session import Session
from clusterctl.planning.cluster_hardware import measurements
from clusterctl.planning.question import plan_as_served
from clusterctl.planning.reported import outcome_of
from clusterctl.serving.bench import read_results
from clusterctl.survey.cluster import place
from clusterctl.survey.drift import drift
from clusterctl.survey.status import ClusterStatus, assess
from clusterctl.survey.survey import Survey, take_survey
from clusterctl.survey.versions import ledger_file, version_record

_EVENTS = 2000  # In the document; older ones are left out
_LONGEST = 500  # Characters of a text; a container may write anything into its journal
_LATEST = 253402300800.0  # Unix seconds of the year 10000, beyond which nothing formats a time

# Words of the journal that are faults, and those that end one. Others are phases of a start.
_FAULTS = {"failed", "stalled", "down", "backing-off", "unreadable"}
_RECOVERED = {"ready", "up"}


def run(session: Session, *, bandwidth: bool = False) -> dict[str, Any]:
    """Return the document; hosts that do not answer are in it, with the reason.

    `bandwidth`: measure the throughput between hosts, although services use the same links.
    """
    inventory, sink = session.inventory, session.progress
    with session.connected(connect_timeout=deadlines.STATUS_CONNECT) as transports:
        paths = NodePaths(inventory.cluster)
        results = str(paths.logs / "bench.jsonl")
        journal = str(paths.journal)
        sink(Note("looking at all hosts"))
        survey = take_survey(
            inventory,
            transports,
            files=(
                ledger_file(inventory.cluster),
                journal,
                results,
                *measurements(inventory.cluster),
            ),
        )
        status = assess(survey, drift(survey))
        sink(Note("measuring between hosts"))
        pairs = _pairs(survey, bandwidth=bandwidth)
        sink(Note("comparing memory with the forecast"))
        proven = read_record(survey.head_file(record_file(inventory.cluster)))
        return {
            "cluster": inventory.cluster,
            "time": time.time(),
            "healthy": status.healthy,
            "problems": [*status.problems],
            "versions": {"Ray": status.ray_version, "vLLM": status.vllm_version},
            "image": inventory.image,
            "hosts": _hosts(survey, status),
            **pairs,
            "fabric": asdict(proven) if proven else None,
            "memory": _memory(survey) if not survey.errors else [],
            "bench": [asdict(one) for one in read_results(survey.head_file(results))],
            "timeline": _timeline(survey, journal),
        }


def _hosts(survey: Survey, status: ClusterStatus) -> list[dict[str, Any]]:
    topology, _ = place(survey)
    nodes = {node.host: node for node in topology.nodes} if topology else {}
    found = []
    for row in status.hosts:
        node = nodes.get(row.name)
        found.append(
            {
                "name": row.name,
                "role": row.role,
                "address": row.node_ip,
                "ray": row.ray if row.reachable else "no answer",
                "gpus": list(row.gpus) or [f"{row.gpus_expected} expected"],
                "control": node.control_nic if node else "",
                "nccl": list(node.nccl_nics) if node else [],
                "gloo": node.gloo_nic if node else "",
                "rdma": list(node.rdma) if node else [],
                "mbit_s": node.speed if node else None,
            }
        )
    return found


def _pairs(survey: Survey, *, bandwidth: bool) -> dict[str, Any]:
    """Return the two directions of every pair, for each set of interfaces that carries traffic."""
    topology, _ = place(survey)
    if topology is None:
        return {"pairs": [], "pairs_note": ""}
    facts = {node.host: survey.facts[node.host] for node in topology.nodes}
    asked = {name: survey.transports[name] for name in facts}
    # A cluster whose engines do not answer has supervisors that report.
    in_use = survey.running or survey.states
    unrated = IN_USE if in_use and not bandwidth else ""
    seen = probe_pairs(survey.inventory, topology, facts, asked, unrated=unrated)
    links = [
        {
            "lane": ", ".join(CARRIES[purpose] for purpose in link.lane.purposes),
            "from": link.sender.host,
            "to": link.receiver.host,
            "mbit_s": link.rate,
            "ms": None if link.round_trip is None else link.round_trip * 1e3,
        }
        for link in seen.links
    ]
    return {"pairs": links, "pairs_note": seen.unrated}


def _memory(survey: Survey) -> list[dict[str, Any]]:
    """Return the memory of each rank in GiB: as predicted, and as its log reports it."""
    found = []
    for replica in survey.replicas.values():
        document, host = replica.document, replica.host
        served = plan_as_served(survey, document)
        if served is None:
            continue
        plan = served[1]
        outcome = outcome_of(survey.transports[host], survey.inventory.cluster, document.name, plan)
        hosts = {rank.rank: rank.host for rank in replica.ranks}
        said = outcome.reported if outcome else None
        for number, rank in enumerate(plan.ranks):
            found.append(
                {
                    "service": document.name,
                    "rank": number,
                    "host": hosts.get(number, host if number == 0 else rank.host),
                    "gpu": rank.gpu,
                    "memory_gib": rank.memory_gib,
                    "predicted": {
                        "weights": rank.weights_gib,
                        "KV cache": max(0.0, rank.kv_cache_gib),
                        "activations": rank.activation_gib,
                        "runtime": rank.runtime_gib,
                        "CUDA graphs": rank.cuda_graphs_gib,
                    },
                    "reported": {
                        "weights": said.weights_gib,
                        "KV cache": said.kv_cache_gib,
                        "CUDA graphs": said.graphs_gib,
                    }
                    if said
                    else {},
                }
            )
    return found


def _timeline(survey: Survey, journal: str) -> list[dict[str, Any]]:
    """Return what happened, oldest first, by the hosts' clocks: faults, what ended them, starts,
    and versions that changed."""
    events = [
        event
        for host, answer in survey.answers.items()
        for event in _journal_events(host, answer.files.get(journal))
    ]
    for change in version_record(survey).changes:
        if not 0 <= change.time < _LATEST:
            continue
        text = f"{change.name}: {change.before or 'none'} → {change.after or 'none'}"
        events.append(_event(change.time, change.host, change.subject, "version", text))
    return sorted(events, key=lambda event: event["time"])[-_EVENTS:]


def _journal_events(host: str, data: bytes | None) -> Iterator[dict[str, Any]]:
    for line in (data or b"").splitlines():
        try:
            entry = json.loads(line)
            when, word = float(entry["time"]), str(entry["event"])
            subject, text = str(entry["subject"]), str(entry["text"])
        except MALFORMED:
            continue
        if not 0 <= when < _LATEST:  # False for NaN, too
            continue
        kind = "fault" if word in _FAULTS else "recovered" if word in _RECOVERED else "phase"
        yield _event(when, host, subject, kind, f"{word} {text}".strip())


def _event(when: float, host: str, subject: str, kind: str, text: str) -> dict[str, Any]:
    return {
        "time": when,
        "host": host,
        "subject": subject[:_LONGEST],
        "kind": kind,
        "text": text[:_LONGEST],
    }
