"""After a start: what vLLM reported beside the prediction, and what hosts remember of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from clusterctl import deadlines
from clusterctl.errors import ClusterctlError
from clusterctl.node.files import NodePaths
from clusterctl.planning.memory import FitPlan
from clusterctl.planning.overheads import Measured
from clusterctl.planning.reported import WANTED, Comparison, Reported, compare, learn, read_reported
from clusterctl.planning.rules import rules_for
from clusterctl.transport.base import Transport

LOG_TAIL = 4_000_000  # Bytes of a service's log that are looked through, on the host

_READ = 'tail -c "$1" "$2" | grep -aE "$3" | cut -c1-400 | tail -n 400'

# GiB by which a measured overhead may differ from the usual one. What differs by more is a GPU
# that something else used during the start, and would spoil every later plan.
_PLAUSIBLE = 2.0

# By host and GPU: what earlier starts reported, by TP size.
Learned = dict[tuple[str, str], tuple[tuple[int, Measured], ...]]


@dataclass(frozen=True)
class StartOutcome:
    """What a start printed, beside what was predicted for it."""

    reported: Reported
    comparisons: tuple[Comparison, ...]

    @property
    def sentence(self) -> str:
        """The KV cache's tokens side by side; "" where the log does not say."""
        tokens = next((one for one in self.comparisons if one.name == "kv_cache_tokens"), None)
        if tokens is None:
            return ""
        said = f"predicted {tokens.predicted:,.0f} tokens, vLLM says {tokens.reported:,.0f}"
        return f"{said} ({tokens.off:+.1%})" if tokens.worth_saying else said

    def to_json(self) -> list[dict[str, Any]]:
        """Plain values."""
        return [
            {
                "name": one.name,
                "predicted": round(one.predicted, 4),
                "reported": one.reported,
                "off": round(one.off, 5),
            }
            for one in self.comparisons
        ]


def outcome_of(head: Transport, cluster: str, service: str, plan: FitPlan) -> StartOutcome | None:
    """The last start of a service against its plan, in one round trip; None where its log does
    not tell. It is a report: what goes wrong here does not make the service worse."""
    log = str(NodePaths(cluster).log(service))
    argv = ["sh", "-c", _READ, "reported", str(LOG_TAIL), log, WANTED]
    try:
        result = head.run(argv, sudo=True, timeout=deadlines.SMALL_FILE)
    except ClusterctlError:
        return None
    reported = read_reported(result.stdout)
    found = compare(plan, reported, plan.limited_by.rank)
    return StartOutcome(reported, found) if found else None


def measured_file(cluster: str) -> str:
    """Where the head keeps what starts reported."""
    return str(NodePaths(cluster).logs / "measured.json")


def measured_in(data: bytes | None, image: str) -> Learned:
    """What was remembered for starts of this image; {} when the file is none of ours."""
    found: dict[tuple[str, str], dict[int, Measured]] = {}
    for entry in _entries(data):
        try:
            if entry["image"] == image:
                measured = Measured(_gib(entry["runtime_gib"]), _gib(entry["graphs_gib"]))
                key = (str(entry["host"]), str(entry["gpu"]))
                found.setdefault(key, {})[int(entry["tp"])] = measured
        except (KeyError, TypeError, ValueError):
            continue  # of another version
    return {
        key: tuple(sorted(by_tp.items(), key=lambda one: one[0])) for key, by_tp in found.items()
    }


def _gib(value: Any) -> float | None:
    return None if value is None else float(value)


def _entries(data: bytes | None) -> list[Mapping[str, Any]]:
    try:
        found = json.loads(data or b"{}")
    except ValueError:
        return []
    starts = found.get("starts") if isinstance(found, dict) else None
    if not isinstance(starts, list):
        return []
    return [entry for entry in starts if isinstance(entry, dict)]


def lessons(plan: FitPlan, reported: Reported, image: str) -> list[dict[str, Any]]:
    """What this start teaches, an entry per host.

    Nothing on CPUs, with pipeline stages or with unlike GPUs, where one printed figure is not
    every rank's; and nothing that no GPU left alone would show.
    """
    ranks = plan.ranks
    kinds = {(rank.gpu, rank.memory_gib) for rank in ranks}
    if len(kinds) > 1 or plan.placement.pp > 1 or plan.placement.seats[0].gpu.is_cpu:
        return []
    measured = learn(plan, reported, rules_for(plan.vllm))
    runtime = measured.runtime_gib
    if runtime is None or abs(runtime - ranks[0].runtime_gib) > _PLAUSIBLE:
        return []
    return [
        {
            "host": host,
            "gpu": ranks[0].gpu,
            "image": image,
            "tp": plan.placement.tp,
            "runtime_gib": round(runtime, 4),
            "graphs_gib": measured.graphs_gib,
        }
        for host in plan.placement.hosts
    ]


def with_lessons(data: bytes | None, new: Sequence[Mapping[str, Any]]) -> bytes | None:
    """The file's new content; None when it stays as it is."""
    replaced = {_key(entry) for entry in new}
    old = _entries(data)
    kept = [entry for entry in old if _key(entry) not in replaced]
    starts = sorted((*kept, *new), key=lambda entry: repr(_key(entry)))
    if not new or starts == sorted(old, key=lambda entry: repr(_key(entry))):
        return None
    return (json.dumps({"starts": starts}, indent=1) + "\n").encode()


def keep(head: Transport, file: str, content: bytes | None) -> None:
    """Write the file, if there is something new. A full disk costs a lesson, not the service."""
    if content is not None:
        with suppress(ClusterctlError):
            head.put(content, file, mode=0o644, sudo=True)


def _key(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(entry.get(name) for name in ("host", "gpu", "image", "tp"))
