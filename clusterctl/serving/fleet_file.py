"""The fleet file of `apply`: all services of a cluster, each with its arguments of `serve`.

Its JSON Schema, for editors, is published with

    python -m clusterctl.serving.fleet_file > inventory/fleet.schema.json
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
)

from clusterctl.errors import ClusterctlError, Problems, UsageError
from clusterctl.inventory.document import Document, FileKind, Trail, dotted, file_error, read
from clusterctl.inventory.load import EXTENSION, report_problem, with_texts
from clusterctl.inventory.schema import DRAFT, readable
from clusterctl.inventory.values import EnvName, EnvValue
from clusterctl.node.documents import SERVICE_NAME, is_service_name
from clusterctl.serving.adapters import is_adapter_name
from clusterctl.serving.config_file import read_config_file
from clusterctl.serving.request import (
    ANY_HOST,
    Options,
    ServiceRequest,
    read_request,
)
from clusterctl.serving.vllm_flags import Argument, normal_name

FLEET = FileKind(
    "the fleet file",
    UsageError,
    "name the file after `apply`   (how to write one: docs/serving.md#all-services-in-one-file)",
    "edit it, then: clusterctl apply {path} --dry-run",
    "docs/serving.md#all-services-in-one-file",
)


def _service_name(name: str) -> str:
    if not is_service_name(name):
        raise ValueError(
            f"{name!r} cannot be a service's name: lower case letters, digits, and . _ - between "
            "them; at most 63"
        )
    return name


def _adapter_name(name: str) -> str:
    if not is_adapter_name(name):
        raise ValueError(
            f"{name!r} cannot be an adapter's name: letters, digits, and . _ - between them; at "
            "most 63"
        )
    return name


_RANGE = r"^\d{1,5}\.\.(\d{1,5}|max)$"


def _replicas(value: Any) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if isinstance(value, str) and (value == "max" or re.search(_RANGE, value)):
        return value
    raise ValueError(f"must be a number from 1 on, max, or a range such as 1..4; not {value}")


Replicas = Annotated[
    int | str,
    PlainValidator(_replicas),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"const": "max"},
                {"type": "string", "pattern": _RANGE},
            ]
        }
    ),
]


class FleetService(BaseModel):
    """A service, by name: its arguments of `clusterctl serve`."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: str = Field(min_length=1, description="Alias, Hub id, or path on the hosts.")
    replicas: Replicas = Field(
        default=1,
        description="Number of replicas, each on its own GPUs: a number, max, or a range such as "
        "1..4, of which those beyond the first number sleep while they are not needed.",
    )
    ttft: float | None = Field(
        default=None,
        ge=0.1,
        allow_inf_nan=False,
        description="With a range of replicas: seconds to the first token within which 98 of 100 "
        "requests are to get it; otherwise more replicas are woken. Default: any.",
    )
    tp: int | None = Field(
        default=None, ge=1, description="Tensor parallel size. Default: planned."
    )
    pp: int | None = Field(
        default=None, ge=1, description="Pipeline parallel size. Default: planned."
    )
    dp: int | None = Field(
        default=None,
        ge=1,
        description="Data parallel size: vLLM's own copies of a mixture of experts, which start, "
        "fail and change together.",
    )
    ep: bool = Field(
        default=False, description="Split the experts over all ranks, by number: expert parallel."
    )
    gpu_share: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Part of one GPU that each replica takes, such as 0.3: of its memory, and of "
        "what others find free. Default: all of it.",
    )
    on: str | None = Field(
        default=None,
        min_length=1,
        description="Hosts that may run it: names, globs, ranges, label=value, !name, separated "
        "by commas. Default: all.",
    )
    port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Port of the API. Default: the one it has, else the first free from 8000.",
    )
    stall_timeout: float | None = Field(
        default=None,
        ge=10,
        allow_inf_nan=False,
        description="Seconds without progress, while requests are pending, after which vLLM is "
        "restarted. Default: 50.",
    )
    idle: str | None = Field(
        default=None,
        description="Time without a request after which it sleeps, such as 90s, 10m or 2h; the "
        "next request wakes it. Default: never.",
    )
    standby: bool = Field(
        default=False,
        description="Keep a second engine asleep on the same GPUs, which takes over when the first "
        "fails.",
    )
    swap: bool = Field(
        default=False,
        description="Let another service have its GPUs in turn: one of them sleeps while the other "
        "has requests.",
    )
    swap_with: Annotated[str, AfterValidator(_service_name)] | None = Field(
        default=None,
        description="Name of a service with `swap`, whose GPUs it has in turn.",
    )
    adapters: dict[Annotated[str, AfterValidator(_adapter_name)], str] | None = Field(
        default=None,
        description="LoRA adapters, by name: directories on this machine, which are copied to all "
        "hosts. Relative paths start at the fleet file. Needs enable-lora in `flags`. Default: "
        "those that it has.",
    )
    config: Path | None = Field(
        default=None,
        description="vLLM's own YAML configuration file, which `flags` override. Relative paths "
        "start at the fleet file.",
    )
    flags: dict[str, JsonValue] = Field(
        default={},
        description="Flags of vllm serve, without dashes: max-model-len: 8192, "
        "enable-prefix-caching: false.",
    )
    env: dict[EnvName, EnvValue] = Field(
        default={}, description="Environment of its processes; wins over the inventory's."
    )


class Fleet(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    services: dict[Annotated[str, AfterValidator(_service_name)], FleetService] = Field(
        description="The services, by name."
    )


def read_fleet(path: Path) -> tuple[ServiceRequest, ...]:
    """Return the services in the file, in its order.

    Raises UsageError with every problem found; `detail` has `file:line:column: text` lines.
    """
    document = read(path, FLEET)
    requests: list[ServiceRequest] = []
    if isinstance(document.data, dict):
        fleet = _validated(document, document.data)
        for name, entry in fleet.services.items() if fleet else ():
            if request := _request(document, name, entry, path.absolute().parent):
                requests.append(request)
        _refuse_shared(document, requests)
    elif not document.problems:
        document.report(
            document.at(()), "a fleet file is a mapping: services: {NAME: {model: ...}}"
        )
    if document.problems:
        raise file_error(FLEET, path, document.problems)
    return tuple(requests)


def _validated(document: Document, data: Mapping[str, Any]) -> Fleet | None:
    """Return the content, or None after reporting its problems to `document`."""
    own = {key: value for key, value in data.items() if not key.startswith(EXTENSION)}
    if isinstance(listed := own.get("services"), dict):
        own["services"] = {
            name: with_texts(document, entry, ("services", name))
            if isinstance(entry, dict)
            else entry
            for name, entry in listed.items()
        }
    try:
        return Fleet.model_validate_json(json.dumps(own), strict=True)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            report_problem(document, item, item["loc"], Fleet)
        return None


def _request(
    document: Document, name: str, entry: FleetService, base: Path
) -> ServiceRequest | None:
    """Return the request for one service, or None after reporting its problems to `document`."""
    trail: Trail = ("services", name)
    flags = {
        (*trail, "flags", flag): _argument(document, (*trail, "flags", flag), value)
        for flag, value in entry.flags.items()
    }
    options = Options(
        model=entry.model,
        tensor_parallel=entry.tp,
        pipeline_parallel=entry.pp,
        name=name,
        port=entry.port,
        stall_timeout=entry.stall_timeout,
        replicas=str(entry.replicas),
        ttft=entry.ttft,
        on=entry.on or ANY_HOST,
        env=entry.env,
        data_parallel=entry.dp,
        expert_parallel=entry.ep,
        gpu_share=entry.gpu_share,
        idle=entry.idle,
        standby=entry.standby,
        swap=entry.swap,
        swap_with=entry.swap_with,
        adapters=entry.adapters,
    )
    try:
        # An unknown user's home stays as it is written, and cannot be read.
        file = os.path.expanduser(entry.config) if entry.config else ""  # noqa: PTH111
        config = read_config_file(base / file) if file else ()
        return read_request(options, config, tuple(flags.values()))
    except ClusterctlError as error:
        for one in error.errors if isinstance(error, Problems) else (error,):
            at = next((key for key, flag in flags.items() if flag.origin in one.summary), trail)
            fix = f" ({one.hint})" if one.hint else ""
            document.report(document.at_key(at), f"`{dotted(trail)}`: {one.summary}{fix}")
        return None


def _argument(document: Document, trail: Trail, value: JsonValue) -> Argument:
    """Return a flag with its values: numbers as written, lists item by item, mappings as JSON."""

    def text(value: JsonValue, at: Trail) -> str:
        if isinstance(value, dict | list):
            return json.dumps(value)
        return value if isinstance(value, str) else document.texts.get(at, json.dumps(value))

    values: tuple[str, ...] = ()
    if isinstance(value, list):
        values = tuple(text(item, (*trail, number)) for number, item in enumerate(value))
    elif not isinstance(value, bool):
        values = (text(value, trail),)
    name = normal_name(str(trail[-1]).removeprefix("--"))
    return Argument(name, values, negated=value is False, origin=dotted(trail))


def _refuse_shared(document: Document, requests: list[ServiceRequest]) -> None:
    """Report ports, and names for API requests, that two services have."""
    first: dict[tuple[str, str], str] = {}
    for request in requests:
        own = request.name or ""
        names = (*(request.served_names or (own,)), *(request.adapters or ()))
        shared = [("name for API requests", each) for each in names]
        if request.port:
            shared.append(("port", str(request.port)))
        for what, value in shared:
            other = first.setdefault((what, value), own)
            if other != own:
                key = "port" if what == "port" else "flags"
                line = document.at_key(("services", other)).line
                text = f"{own} has the same {what} as {other}, on line {line}: {value}"
                document.report(document.at(("services", own, key)), text)


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the file."""
    root = readable(Fleet)
    env = root["$defs"]["FleetService"]["properties"]["env"]
    for value in env["patternProperties"].values():  # The original text of numbers is used
        value["type"] = ["string", "number"]
    root["properties"]["services"]["propertyNames"] = {"pattern": SERVICE_NAME}
    return {
        "$schema": DRAFT,
        "title": "Fleet file of clusterctl",
        **root,
        "description": "The services of a cluster, for `clusterctl apply`; docs/serving.md",
        "patternProperties": {
            f"^{EXTENSION}": {"description": "Yours: a place for anchors; clusterctl skips it."}
        },
    }


def render() -> str:
    """Return the schema as the text of inventory/fleet.schema.json."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
