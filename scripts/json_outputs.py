"""Write what `--json` prints as JSON Schemas, and the page about them:

    python -m scripts.json_outputs

makes clusterctl/reporting/outputs.schema.json and docs/json.md. The outputs are described here in
terms of the dataclasses that commands print; tests validate real outputs against the schemas.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from clusterctl.commands.adapter import ListedAdapter
from clusterctl.commands.bench_start import MeasuredStart
from clusterctl.diagnosis.verdict import Cause
from clusterctl.inventory.schema import DRAFT
from clusterctl.lab.lifecycle import HostStatus
from clusterctl.network.gate import FabricRecord
from clusterctl.node.documents import GatewayState, Rank, RayNode, SleepState
from clusterctl.planning.memory import Limit, RankMemory
from clusterctl.planning.problems import PredictedProblem
from clusterctl.planning.report import Advice
from clusterctl.serving.bench import BenchFigures, BenchResult, LastTime
from clusterctl.serving.endpoint import ServiceAnswer
from clusterctl.serving.soak import SoakRound
from clusterctl.survey.status import HostRow, ServiceLoad
from clusterctl.survey.versions import VersionRecord
from clusterctl.transport.base import CommandResult

ROOT = Path(__file__).parents[1]
SCHEMAS = ROOT / "clusterctl/reporting/outputs.schema.json"
PAGE = ROOT / "docs/json.md"
# Raised when a key goes away, gets another type or another meaning; new keys do not raise it.
VERSION = 1


class Problem(TypedDict):
    kind: str
    host: str | None
    summary: str
    detail: str | None
    hint: str | None


class ErrorReport(TypedDict):
    exit_code: int
    log: str | None
    problems: list[Problem]


class Error(TypedDict):
    error: ErrorReport


class PlannedStep(TypedDict):
    stage: str
    host: str
    step: str
    known: bool
    summary: str
    disruptive: bool


class Plan(TypedDict):
    changes: list[PlannedStep]
    error: NotRequired[ErrorReport]


class Bootstrapped(TypedDict):
    changed: int
    nodes: int
    gpus: float
    ray_version: str
    vllm_version: str
    fabric: list[str]


class Down(TypedDict):
    changed: int


class CheckedHost(TypedDict):
    os: str
    architecture: str
    cpus: int
    memory_bytes: int
    engine: str
    gpus: list[str]
    choices: list[str]


Pair = TypedDict(
    "Pair",
    {
        "from": str,
        "to": str,
        "for": list[str],
        "from_nic": str,
        "to_address": str,
        "leaves_by": str | None,
        "closed_ports": list[int],
        "round_trip_ms": float | None,
        "mbit_s": int | None,
    },
)


class Check(TypedDict):
    hosts: dict[str, CheckedHost]
    ray: list[RayNode]
    fabric: FabricRecord | None
    pairs: list[Pair]
    notes: list[str]
    problems: list[Problem]


class Promise(TypedDict):
    number: int
    promise: str
    state: str
    seen: str
    problems: list[Problem]


class Promises(TypedDict):
    promises: list[Promise]


class Layout(TypedDict):
    """A layout with its memory."""

    model: str
    architecture: str
    vllm: str
    fits: bool
    verdict: Literal["fits", "may not fit", "does not fit", "cannot start"]
    kv_cache_tokens: int
    max_concurrency: float
    max_model_len: int
    longest_context: int
    limited_by: Limit
    tp: int
    pp: int
    dp: int
    layer_partition: list[int]
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    reason: str
    ranks: list[RankMemory]
    notes: list[str]


class Proposal(Layout):
    """A layout with its speed."""

    speed: dict[str, float]


class Fit(Proposal):
    """The forecast of `fit`, and of `serve --dry-run`."""

    foreseen: list[PredictedProblem]
    doubts: list[str]
    advice: list[Advice]
    proposals: list[Proposal]
    faster: Proposal | None


class ServedReplica(TypedDict):
    name: str
    host: str
    endpoint: str
    ranks: list[Rank]
    ready_seconds: float


class Compared(TypedDict):
    name: str
    predicted: float
    reported: float
    off: float


class Served(TypedDict):
    """`serve`: the service after it has answered."""

    service: str
    endpoint: str
    changed: bool
    ranks: list[Rank]
    answer: ServiceAnswer
    replicas: list[ServedReplica]
    ready_seconds: float
    random_weights: bool
    predicted: Layout | None
    reported: list[Compared]
    notices: list[str]


class ServePlan(TypedDict):
    changes: list[str]
    restarts: bool
    notes: list[str]
    fit: Fit | None


class Changes(TypedDict):
    service: str
    changes: list[str]


class Scaled(Changes):
    replicas: dict[str, str]


class ChangedAdapters(Changes):
    adapters: dict[str, str]


class Restarted(TypedDict):
    service: str
    ready_seconds: dict[str, float]


class Stopped(TypedDict):
    stopped: str


class DrainPlan(TypedDict):
    host: str
    changes: list[str]


class Drained(TypedDict):
    host: str
    drained: bool
    changed: bool


class AppliedService(TypedDict):
    service: str
    endpoint: str
    replicas: dict[str, str]
    changed: bool


class Applied(TypedDict):
    changes: list[str]
    services: list[AppliedService]
    stopped: list[str]
    notes: list[str]


class ApplyPlan(TypedDict):
    changes: list[str]
    notes: list[str]


class Removed(TypedDict):
    host: str
    changed: bool
    file: str
    line: int


class RemovalPlan(TypedDict):
    moves: list[str]
    changes: list[PlannedStep]


class StandbyStatus(TypedDict):
    """The second engine of a service with `--standby`."""

    name: str
    state: str
    detail: str
    requests_running: float
    requests_waiting: float
    ranks: list[Rank]
    sleep: SleepState


class ServiceStatus(TypedDict):
    """A service or replica."""

    name: str
    service: str
    host: str
    on: str
    draining: bool
    state: str
    model: str
    served_name: str
    endpoint: str
    tensor_parallel: int
    pipeline_parallel: int
    detail: str
    restarts: int
    silence: str
    last_failure: str
    last_failure_seconds_ago: float | None
    cause: str
    requests_running: float
    requests_waiting: float
    tokens_per_second: float
    kv_cache_use: float
    ranks: list[Rank]
    load: ServiceLoad | None
    start_seconds: dict[str, float]
    sleep: SleepState | None
    standby: StandbyStatus | None
    swaps_with: str


class Status(TypedDict):
    """`status`; with `--watch` a document each time, on a line of its own."""

    cluster: str
    healthy: bool
    problems: list[str]
    gateway: GatewayState | None
    ray_version: str
    vllm_version: str
    hosts: list[HostRow]
    services: list[ServiceStatus]


class Estimate(TypedDict):
    """`off` is 0.1 if the estimate is 10 % too high."""

    tokens_per_s: float
    off: float
    first_token_ms: float
    token_ms: float


class SentLoad(TypedDict):
    concurrency: int | None
    rate: float | None
    prompt: int
    output: int
    requests: int
    text: str


class Measured(TypedDict):
    time: float
    service: str
    model: str
    versions: dict[str, str]
    fingerprint: str
    tensor_parallel: int
    pipeline_parallel: int
    load: SentLoad
    figures: BenchFigures
    predicted: Estimate | None
    earlier: LastTime | None
    runs_tokens_per_s: list[float]


class Soaked(TypedDict):
    held: bool
    totals: str
    findings: list[str]
    rounds: list[SoakRound]


class WrittenFiles(TypedDict):
    files: list[str]
    changed: list[str]


class WiredHost(TypedDict):
    name: str
    role: str
    address: str
    ray: str
    gpus: list[str]
    control: str
    nccl: list[str]
    gloo: str
    rdma: list[str]
    mbit_s: int | None


MeasuredPair = TypedDict(
    "MeasuredPair",
    {"lane": str, "from": str, "to": str, "mbit_s": float | None, "ms": float | None},
)


class MemoryOfRank(TypedDict):
    service: str
    rank: int
    host: str
    gpu: str
    memory_gib: float
    predicted: dict[str, float]
    reported: dict[str, float | None]


class Event(TypedDict):
    """`kind`: fault, recovered, version or phase."""

    time: float
    host: str
    subject: str
    kind: str
    text: str


class Report(TypedDict):
    cluster: str
    time: float
    healthy: bool
    problems: list[str]
    versions: dict[str, str]
    image: str
    hosts: list[WiredHost]
    pairs: list[MeasuredPair]
    pairs_note: str
    fabric: FabricRecord | None
    memory: list[MemoryOfRank]
    bench: list[BenchResult]
    timeline: list[Event]


class Batch(TypedDict):
    service: str
    answers: str
    total: int
    kept: int
    answered: int
    failed: int


class Diagnosis(TypedDict):
    causes: list[Cause]
    unread: NotRequired[list[ErrorReport]]


class Unreached(TypedDict):
    error: str
    hint: str | None


Executed = dict[str, CommandResult | Unreached]

PushedImage = TypedDict(
    "PushedImage",
    {
        "image": str,
        "digest": str | None,
        "from": str,
        "hosts": list[str],
        "changed": int,
        "sent": int,
        "received": dict[str, int],
        "seconds": float,
    },
)


class BundledImage(TypedDict):
    image: str
    platform: str
    size: int


class ImageBundle(TypedDict):
    file: str
    size: int
    images: list[BundledImage]


class HostError(TypedDict):
    host: str | None
    error: str


class ListedImage(TypedDict):
    names: list[str]
    size: int
    digests: list[str]
    hosts: list[str]
    used: list[str]


class Images(TypedDict):
    images: list[ListedImage]
    errors: list[HostError]


class ImageCache(TypedDict):
    directory: str
    size: int
    free: int
    cleared: bool


PackageBundle = TypedDict(
    "PackageBundle",
    {"for": str, "architecture": str, "path": str, "bytes": int, "files": list[str], "sums": str},
)


class CatalogueRow(TypedDict):
    name: str
    hub_id: str
    flags: list[str]


class FoundVariant(TypedDict):
    name: str
    hub_id: str
    precision: str
    least_gb: int
    fits: bool


class FoundModelRow(TypedDict):
    name: str
    hub_id: str
    kind: str
    billions: float
    architecture: str
    since: str | None
    served: bool
    planned: bool
    variants: list[FoundVariant]


class ModelSearch(TypedDict):
    vllm: str
    models: list[FoundModelRow]


class HeldModel(TypedDict):
    name: str
    alias: str | None
    bytes: int
    origin: str
    hosts: dict[str, str]


class Models(TypedDict):
    catalogue: list[CatalogueRow]
    directory: NotRequired[str]
    models: NotRequired[list[HeldModel]]
    errors: NotRequired[list[HostError]]


class PushedModel(TypedDict):
    model: str
    path: str
    origin: str
    identity: str
    bytes: int
    hosts: list[str]
    changed: int
    sent: int
    seconds: float


class NewKey(TypedDict):
    name: str
    key: str


class Key(TypedDict):
    name: str
    created: float
    requests_per_minute: int
    tokens_per_day: int
    models: list[str]
    requests: int
    prompt_tokens: int
    completion_tokens: int
    day: str
    tokens_of_day: int


class RevokedKey(TypedDict):
    revoked: str


class RotatedKey(TypedDict):
    restarted: list[str]


class PlannedRotation(TypedDict):
    changes: list[str]


class Version(TypedDict):
    clusterctl: str
    commit: str


class LabChange(TypedDict):
    changes: list[str]
    inventory: NotRequired[str]


class LabStatus(TypedDict):
    directory: str
    hosts: list[HostStatus]
    light_hosts: int
    mirror: bool
    image_archive: str | None
    inventory: str | None


# What each command prints besides errors
OUTPUTS: dict[str, tuple[Any, ...]] = {
    "bootstrap": (Bootstrapped, Plan),
    "plan": (Plan,),
    "check": (Check, Promises),
    "fit": (Fit,),
    "serve": (Served, ServePlan),
    "batch": (Batch,),
    "bench": (list[Measured], list[MeasuredStart]),
    "soak": (Soaked,),
    "status": (Status,),
    "restart": (Restarted, Changes),
    "scale": (Scaled, Changes),
    "stop": (Stopped, Plan),
    "drain": (Drained, DrainPlan),
    "undrain": (Drained,),
    "apply": (Applied, ApplyPlan),
    "remove": (Removed, RemovalPlan),
    "down": (Down, Plan),
    "metrics": (WrittenFiles,),
    "report": (Report,),
    "diagnose": (Diagnosis,),
    "version": (Version, VersionRecord),
    "exec": (Executed,),
    "image push": (PushedImage, Plan),
    "image ls": (Images,),
    "image bundle": (ImageBundle,),
    "image cache": (ImageCache,),
    "packages bundle": (PackageBundle,),
    "model ls": (Models,),
    "model search": (ModelSearch,),
    "model push": (PushedModel, Plan),
    "model pull": (PushedModel, Plan),
    "adapter add": (ChangedAdapters,),
    "adapter ls": (list[ListedAdapter],),
    "adapter rm": (ChangedAdapters,),
    "key create": (NewKey,),
    "key ls": (list[Key],),
    "key revoke": (RevokedKey,),
    "key rotate": (RotatedKey, PlannedRotation),
    "lab up": (LabChange,),
    "lab status": (LabStatus,),
    "lab down": (LabChange,),
}

HEAD = """\
# JSON

With `--json` a command prints one document to stdout, and progress to stderr; with `--dry-run`,
the plan. A command that fails prints `{"error": ...}` instead, and ends with the error's [exit
code](commands.md).

[outputs.schema.json](../clusterctl/reporting/outputs.schema.json) has a JSON Schema (draft
2020-12) for each command under `$defs`, by the command's name. The package contains it:

    python -c "import clusterctl; print(clusterctl.__path__[0] + '/reporting/outputs.schema.json')"

`version` in that file is raised when a key goes away or gets another type or meaning, and the
[changelog](../CHANGELOG.md) says so. New keys do not raise it: programs skip keys that they do
not know. Sizes without a unit in their name are in bytes, times in seconds, clocks in Unix
seconds. What was not measured is `null`.

This page is made by `scripts/json_outputs.py`, and tests hold real outputs against the schemas. A
line for each document that a command can print:
"""


def schema() -> dict[str, Any]:
    """Return the schema of all commands, each under its name in $defs."""
    definitions: dict[str, Any] = {}
    for command, kinds in OUTPUTS.items():
        choices = [_definition(kind, definitions) for kind in (*kinds, Error)]
        definitions[command] = {"anyOf": choices}
    return {
        "$schema": DRAFT,
        "title": "clusterctl --json",
        "version": VERSION,
        "$defs": definitions,
    }


def _definition(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a kind, and add what it refers to."""
    found = TypeAdapter(kind).json_schema(mode="serialization", ref_template="#/$defs/{model}")
    definitions |= found.pop("$defs", {})
    name = getattr(kind, "__name__", "")
    for part in (found, *definitions.values()):
        _tidy(part)
    if name and name not in ("list", "dict"):
        definitions[name] = found
        return {"$ref": f"#/$defs/{name}"}
    return found


def _tidy(part: dict[str, Any]) -> None:
    """A dataclass is printed with all of its fields, also those that have a default."""
    properties = part.get("properties", {})
    given = [name for name, one in properties.items() if "default" in one]
    if properties:
        part["required"] = [n for n in properties if n in part.get("required", []) or n in given]
    part.pop("title", None)
    for one in properties.values():
        one.pop("title", None)
        one.pop("default", None)


def page() -> str:
    """Return docs/json.md."""
    found = schema()["$defs"]
    lines = [HEAD]
    for command in OUTPUTS:
        lines.append(f"\n## {command}\n")
        for choice in found[command]["anyOf"][:-1]:
            lines += _keys(choice, found)
    lines += [
        "\n## Errors\n",
        *_keys({"$ref": "#/$defs/Error"}, found),
        *_keys({"$ref": "#/$defs/ErrorReport"}, found),
        *_keys({"$ref": "#/$defs/Problem"}, found),
    ]
    return "\n".join(lines) + "\n"


def _keys(choice: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Return the keys of a document as a line; of a list or a mapping, those of its items."""
    before = ""
    if choice.get("type") == "array":
        choice, before = choice["items"], "a list, of each: "
    if "additionalProperties" in choice and "properties" not in choice:
        return ["- by host: `argv`, `status`, `stdout`, `stderr`; or `error`, `hint`"]
    if "$ref" in choice:
        choice = found[choice["$ref"].rpartition("/")[2]]
    names = [
        f"`{name}`" + ("" if name in choice["required"] else " (not always)")
        for name in choice["properties"]
    ]
    return [f"- {before}{', '.join(names)}"]


def render() -> str:
    """Return the text of the schemas' file, a definition on each line."""
    found = schema()
    rows = [
        f"  {json.dumps(name)}: {json.dumps(one)}"
        for name, one in sorted(found.pop("$defs").items())
    ]
    head = json.dumps(found, indent=1).removesuffix("\n}")
    return head + ',\n "$defs": {\n' + ",\n".join(rows) + "\n }\n}\n"


if __name__ == "__main__":
    SCHEMAS.write_text(render())
    PAGE.write_text(page())
