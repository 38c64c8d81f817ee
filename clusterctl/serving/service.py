"""The document that the supervisor on the head keeps a service by, and what changes in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping

from clusterctl import deadlines
from clusterctl.models.name import Model
from clusterctl.node.documents import STALL_TIMEOUT, ServiceDocument
from clusterctl.serving.arguments import Launch, serve_argv
from clusterctl.serving.request import ServiceRequest, service_name
from clusterctl.serving.vllm_flags import Argument, is_collected, last_value, parse_arguments


def served_names(request: ServiceRequest, model: Model) -> tuple[str, ...]:
    """The names that API requests may use: the user's --served-model-name, else his --name,
    else the model's."""
    if request.served_names:
        return request.served_names
    return (request.name or model.served_name,)


def document_name(request: ServiceRequest, names: tuple[str, ...]) -> str:
    """The service's name: the user's --name, else one made from what it serves."""
    return request.name or service_name(names[0])


def build_service(
    launch: Launch, *, env: Mapping[str, str] | None = None, ready_timeout: float = deadlines.READY
) -> ServiceDocument:
    """The document for one launch. `env` is job-wide: vLLM copies it to every rank, so nothing
    that differs between hosts belongs there. Raises UsageError as `serve_argv`."""
    argv = serve_argv(launch)
    environment = {**_environment(launch, ready_timeout), **(env or {})}
    layout = launch.layout
    return ServiceDocument(
        name=document_name(launch.request, launch.served_names),
        model=launch.request.model,
        served_name=launch.served_names[0],
        argv=argv,
        env=environment,
        host=launch.host,
        port=launch.api_port,
        tensor_parallel=layout.tensor_parallel,
        pipeline_parallel=layout.pipeline_parallel,
        gpus=layout.ranks,
        fingerprint=fingerprint(argv, environment),
        ready_timeout=ready_timeout,
        shutdown_timeout=_shutdown_timeout(argv),
        stall_timeout=launch.request.stall_timeout or STALL_TIMEOUT,
    )


def fingerprint(argv: list[str], env: Mapping[str, str]) -> str:
    """sha256 over what the process is started with: the same process needs no restart.

    The order of flags does not count, nor what a later one overrides.
    """
    flags = {name: [(one.values, one.negated) for one in given] for name, given in _flags(argv)}
    canonical = json.dumps([argv[:3], flags, dict(env)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def difference(old: ServiceDocument, new: ServiceDocument) -> list[str]:
    """What changes from `old` to `new`, a line each; nothing when they are the same."""
    lines = _changed("model", _model(old), _model(new))
    lines += _flag_changes(dict(_flags(old.argv)), dict(_flags(new.argv)))
    for key in sorted({*old.env, *new.env}):
        lines += _changed(key, old.env.get(key), new.env.get(key))
    lines += _changed("ready timeout", f"{old.ready_timeout:g} s", f"{new.ready_timeout:g} s")
    lines += _changed("stall timeout", f"{old.stall_timeout:g} s", f"{new.stall_timeout:g} s")
    if not lines and needs_restart(old, new):
        return ["command line: the same values, which vLLM may read otherwise"]
    return lines


def needs_restart(old: ServiceDocument, new: ServiceDocument) -> bool:
    """Whether the running process has to be replaced to follow `new`.

    Made anew from both: the fingerprint in a document may be that of another release.
    """
    return fingerprint(old.argv, old.env) != fingerprint(new.argv, new.env)


def _environment(launch: Launch, ready_timeout: float) -> dict[str, str]:
    env = {"VLLM_ENGINE_READY_TIMEOUT_S": f"{ready_timeout:.0f}"}
    if launch.model_argument.startswith("/"):
        # With the weights on disk nothing must be asked of the Hub, by any rank.
        env["HF_HUB_OFFLINE"] = "1"
    return env


def _shutdown_timeout(argv: list[str]) -> float:
    text = last_value(parse_arguments(argv[3:]), "shutdown-timeout")
    try:
        return float(text) if text is not None else float(deadlines.SHUTDOWN)
    except ValueError:
        return float(deadlines.SHUTDOWN)


def _model(document: ServiceDocument) -> str | None:
    return document.argv[2] if len(document.argv) > 2 else None


def _flags(argv: list[str]) -> Iterator[tuple[str, tuple[Argument, ...]]]:
    """Each flag by name with what of it counts: the last one, or all where vLLM collects them."""
    given: dict[str, tuple[Argument, ...]] = {}
    for argument in parse_arguments(argv[3:]):
        earlier = given.get(argument.name, ()) if is_collected(argument.name) else ()
        given[argument.name] = (*earlier, argument)
    yield from given.items()


def _flag_changes(
    old: Mapping[str, tuple[Argument, ...]], new: Mapping[str, tuple[Argument, ...]]
) -> list[str]:
    lines = []
    for name in dict.fromkeys((*new, *old)):
        flag = name if name.startswith("-") else f"--{name}"
        lines += _changed(flag, _shown(old.get(name)), _shown(new.get(name)))
    return lines


def _shown(given: tuple[Argument, ...] | None) -> str | None:
    return " ".join(argument.shown() for argument in given) if given else None


def _changed(what: str, before: str | None, after: str | None) -> list[str]:
    if before == after:
        return []
    if before is None:
        return [f"{what}: {after} (new)"]
    if after is None:
        return [f"{what}: no longer given (was {before})"]
    return [f"{what}: {before} → {after}"]
