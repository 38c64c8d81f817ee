"""A replica's document, which the supervisor on its host follows, and how two of them differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from clusterctl import deadlines
from clusterctl.errors import UsageError
from clusterctl.models.name import Model
from clusterctl.node.documents import STALL_TIMEOUT, ServiceDocument
from clusterctl.node.rank_placement import PER_WORKER
from clusterctl.ray_cluster.topology import REPLICA_PORTS, base_url
from clusterctl.serving.arguments import FIRST_PORT, Launch, Layout, serve_argv
from clusterctl.serving.endpoint import ServiceEndpoint
from clusterctl.serving.request import ServiceRequest, service_name
from clusterctl.serving.vllm_flags import Argument, is_collected, last_value, parse_arguments


@dataclass(frozen=True, kw_only=True)
class PlannedReplica:
    """A replica that is ready to be declared, and what is currently declared in its place."""

    document: ServiceDocument
    layout: Layout  # where the ranks must run
    host: str  # Where it is declared
    chat: bool = True  # whether its tokenizer has a chat template; True if not known
    old: ServiceDocument | None = None  # None: it is new
    again: bool = False  # Restart it though nothing differs

    @property
    def name(self) -> str:
        return self.document.name

    @property
    def differs(self) -> bool:
        return self.again or self.old is None or bool(difference(self.old, self.document))

    @property
    def restarts(self) -> bool:
        """Whether a running process is restarted."""
        return self.old is not None and (self.again or needs_restart(self.old, self.document))

    @property
    def endpoint(self) -> ServiceEndpoint:
        """The replica's own API."""
        url = base_url(self.document.host, self.document.port)
        return ServiceEndpoint(url, self.document.served_name, self.chat)


def served_names(request: ServiceRequest, model: Model) -> tuple[str, ...]:
    """Return the names for API requests: --served-model-name, else --name, else the model's."""
    if request.served_names:
        return request.served_names
    return (request.name or model.served_name,)


def document_name(request: ServiceRequest, names: tuple[str, ...]) -> str:
    """Return the service's name: --name, else one derived from its served name."""
    return request.name or service_name(names[0])


HOLDS = "CLUSTERCTL_HOLDS"
"""Variable of a service that sleeps, where nothing else of its command might differ: 1 where vLLM
has no sleep mode; 2 with a standby, since one with --idle has the same flags and whole GPUs; 3 for
one that swaps, whose share of a GPU might be asked for."""

FIRST_OPEN = 1024
"""Linux's first port for programs without CAP_NET_BIND_SERVICE."""


def choose_port(
    name: str,
    asked: int | None,
    ports: Mapping[str, int],
    listening: Collection[int] = (),
    *,
    low: bool = False,
) -> int:
    """Return the requested port; else the current port of the service `name`, so that serving it
    again changes nothing; else the first free one from 8000 on.

    `ports`: those that clients use, by service. `listening`: ports that programs on hosts with a
    gateway listen on, the gateway itself included. `low`: node containers may listen below
    FIRST_OPEN. Raises UsageError if the requested port is taken, with the owner and a free port, or
    too low.
    """
    known = dict(ports)
    own = known.pop(name, None)
    taken = {*known.values(), *listening} - ({own} if own is not None else set())
    clients = (port for port in range(FIRST_PORT, 65536) if port not in REPLICA_PORTS)
    free = next(port for port in clients if port not in taken)
    if asked is None:
        return own if own is not None else free
    if asked in REPLICA_PORTS and asked != own:
        most = REPLICA_PORTS[-1]
        raise UsageError(
            f"port {asked} is for replicas, which listen on {REPLICA_PORTS[0]} to {most}",
            hint=f"--port {free} is free",
        )
    if asked in taken:
        owner = next((other for other, port in known.items() if port == asked), None)
        by = f"the service {owner}" if owner else "another program on the head"
        raise UsageError(f"port {asked} is taken by {by}", hint=f"--port {free} is free")
    if asked < FIRST_OPEN and not low:
        raise UsageError(
            f"port {asked} is below {FIRST_OPEN}, where programs need a capability that node "
            "containers do not have by default",
            hint=f"--port {free} is free; or set gateway.low_ports: true in the inventory, and run "
            "clusterctl bootstrap",
        )
    return asked


def replica_port(taken: Collection[int], listening: Collection[int]) -> int:
    """Return the first free port for a new replica on its host.

    `taken`: by services and replicas on that host; `listening`: by any program there. Raises
    UsageError if there is none.
    """
    for port in REPLICA_PORTS:
        if port not in taken and port not in listening:
            return port
    raise UsageError(
        f"ports {REPLICA_PORTS[0]} to {REPLICA_PORTS[-1]} are all taken on a host of a new replica",
        hint="`ss -ltnp` on its hosts shows by what",
    )


def build_service(launch: Launch, *, env: Mapping[str, str] | None = None) -> ServiceDocument:
    """Return the document of one launch. `env` is job-wide: vLLM copies it to every rank, so
    variables that differ between hosts must not be in it. Raises UsageError like `serve_argv`."""
    argv = serve_argv(launch)
    environment = {"VLLM_ENGINE_READY_TIMEOUT_S": f"{deadlines.READY:.0f}"}
    if launch.model_argument.startswith("/"):
        # With the weights on disk, no rank must contact the Hub.
        environment["HF_HUB_OFFLINE"] = "1"
    if launch.request.standby:
        environment[HOLDS] = "2"
    elif launch.request.swaps:
        environment[HOLDS] = "3"
    elif launch.request.idle and not launch.defaults.sleeps:
        environment[HOLDS] = "1"
    environment |= {**(env or {}), **launch.request.env}
    try:
        given = last_value(parse_arguments(argv[3:]), "shutdown-timeout")
        shutdown = float(given or deadlines.SHUTDOWN)
    except ValueError:
        shutdown = float(deadlines.SHUTDOWN)
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
        ready_timeout=deadlines.READY,
        shutdown_timeout=shutdown,
        stall_timeout=launch.request.stall_timeout or STALL_TIMEOUT,
        idle=launch.request.idle,
        swap=launch.request.swap,
        swap_with=launch.request.swap_with,
    )


def fingerprint(argv: list[str], env: Mapping[str, str]) -> str:
    """Return the sha256 of the process's command and environment: if equal, no restart is needed.

    It ignores the order of flags, and values that a later flag overrides.
    """
    flags = {name: [(one.values, one.negated) for one in given] for name, given in _flags(argv)}
    canonical = json.dumps([argv[:3], flags, dict(env)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def difference(old: ServiceDocument, new: ServiceDocument) -> list[str]:
    """Return the changes from `old` to `new`, one per line."""
    lines = []

    def compare(what: str, before: str | None, after: str | None) -> None:
        if before == after:
            return
        if before is None:
            lines.append(f"{what}: {after} (new)")
        elif after is None:
            lines.append(f"{what}: no longer given (was {before})")
        else:
            lines.append(f"{what}: {before} → {after}")

    compare("model", *("".join(one.argv[2:3]) or None for one in (old, new)))
    flags = [
        {name: " ".join(one.shown() for one in given) for name, given in _flags(document.argv)}
        for document in (old, new)
    ]
    for name in dict.fromkeys((*flags[1], *flags[0])):
        flag = name if name.startswith("-") else f"--{name}"
        compare(flag, *(each.get(name) for each in flags))
    # Where HOLDS differs, `idle`, `standby` or `swap` does, too: these are what users asked for.
    own = {HOLDS, PER_WORKER} if "3" in (old.env.get(HOLDS), new.env.get(HOLDS)) else {HOLDS}
    for key in sorted({*old.env, *new.env} - own):
        compare(key, old.env.get(key), new.env.get(key))
    for name in sorted({*old.adapters, *new.adapters}):
        compare(f"adapter {name}", old.adapters.get(name), new.adapters.get(name))
    compare("ready timeout", f"{old.ready_timeout:g} s", f"{new.ready_timeout:g} s")
    compare("stall timeout", f"{old.stall_timeout:g} s", f"{new.stall_timeout:g} s")
    compare("idle", *(f"{one.idle:g} s" if one.idle else None for one in (old, new)))
    compare("awake", *(_awake(one) for one in (old, new)))
    compare(
        "standby",
        *(f"on port {one.standby_port}" if one.standby_port else None for one in (old, new)),
    )
    compare("swap", *("with another service" if one.swap else None for one in (old, new)))
    compare("swap with", *(one.swap_with or None for one in (old, new)))
    if not lines and needs_restart(old, new):
        return ["command line: the same values in another form, which vLLM may read differently"]
    return lines


def _awake(document: ServiceDocument) -> str | None:
    if document.least < 0:
        return None
    return "always" if document.stays_awake else "as needed"


def dropped_flags(old: ServiceDocument, new: ServiceDocument) -> list[str]:
    """Return the flags that are in `old` but not in `new`, with their dashes."""
    names = dict(_flags(new.argv))
    return [f"--{name}" for name, _ in _flags(old.argv) if name not in names]


def needs_restart(old: ServiceDocument, new: ServiceDocument) -> bool:
    """Return whether the running process must be replaced to follow `new`.

    Computed from both, since the fingerprint in a document may come from another release.
    """
    return fingerprint(old.argv, old.env) != fingerprint(new.argv, new.env)


def _flags(argv: list[str]) -> Iterator[tuple[str, tuple[Argument, ...]]]:
    """Yield each flag with its effective arguments: the last, or all where vLLM collects them."""
    given: dict[str, tuple[Argument, ...]] = {}
    for argument in parse_arguments(argv[3:]):
        earlier = given.get(argument.name, ()) if is_collected(argument.name) else ()
        given[argument.name] = (*earlier, argument)
    yield from given.items()
