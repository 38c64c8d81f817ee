"""The status screen, as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import IO, Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from clusterctl.reporting.escaping import drawing_on, one_line
from clusterctl.reporting.text import count, duration, size
from clusterctl.survey.status import ClusterStatus, HostRow, ServiceLoad, ServiceRow

_STYLES = {
    "running": "green", "up": "green", "ready": "green",
    "starting": "yellow", "loading": "yellow", "waiting": "yellow", "backing-off": "yellow",
    "stopping": "yellow", "declared": "yellow", "asleep": "yellow",
    "exited": "red", "missing": "red", "down": "red", "not joined": "red", "stalled": "red",
    "failed": "red", "stopped": "red",
}  # fmt: skip


UNLIMITED = 10_000  # Columns without a terminal: a pipe or a file has no width


def screen(stream: IO[str]) -> Console:
    """Return a console that prints text unchanged; only a terminal limits the width of lines."""
    width = None if stream.isatty() else UNLIMITED
    return Console(file=drawing_on(stream), highlight=False, markup=False, emoji=False, width=width)


def status_screen(status: ClusterStatus) -> RenderableType:
    """Return hosts, services and problems on one screen."""
    title = _text(f"cluster {status.cluster}", style="bold")
    word, style = ("healthy", "green") if status.healthy else ("degraded", "red")
    title.append(f" · {word}", style=style)
    versions = [
        f"{name} {version}"
        for name, version in (("Ray", status.ray_version), ("vLLM", status.vllm_version))
        if version
    ]
    title.append(_text("".join(f" · {text}" for text in versions), style="dim"))
    parts: list[RenderableType] = [title, _HostTable(status), Text()]
    parts += _load_lines(status.hosts)
    for service, group in groupby(status.services, key=lambda row: row.document.service):
        rows = list(group)
        parts += _service_lines(rows[0]) if len(rows) == 1 else _replica_lines(service, rows)
    if not status.services:
        parts.append(_no_services(status))
    parts += _gateway_lines(status)
    if status.problems:
        parts += [Text(), _text(f"{count(len(status.problems), 'problem')}:", style="red")]
        parts += [Padding(_text(each), (0, 0, 0, 2), expand=False) for each in status.problems]
        # Never wrapped, so that a fix can be pasted.
        parts += [
            Text(one_line(f"  fix: {hint}"), no_wrap=True, overflow="ignore")
            for hint in status.hints
        ]
    return Group(*parts)


def _no_services(status: ClusterStatus) -> Text:
    """Return the line for a cluster without services, or whose services no host could report."""
    silent = [row.name for row in status.hosts if not row.reachable]
    if not silent:
        return _text("No services.", style="dim")
    return _text(f"Services are unknown: no answer from {', '.join(silent)}.", style="yellow")


def _text(text: str, style: str = "") -> Text:
    """Return `text` for rich, which would interpret control characters in it."""
    return Text(one_line(text), style=style)


def _word(word: str) -> Text:
    return _text(word or "-", style=_STYLES.get(word, ""))


def _ray(row: HostRow) -> Text:
    found = _word(row.ray) if row.reachable else _text("no answer", style="red")
    return found.append(", drained", style="yellow") if row.drained else found


_COLUMNS: dict[str, Callable[[HostRow], Text]] = {
    # Cells are Text: plain strings would be parsed as markup, which changes ::1 and [fd00::1].
    "HOST": lambda row: _text(row.name, style="" if row.reachable else "red"),
    "ROLE": lambda row: _text(row.role),
    "NODE IP": lambda row: _text(row.node_ip),
    "ENGINE": lambda row: _text(row.engine or "-"),
    "CONTAINER": lambda row: _word(row.container),
    "RAY": _ray,
    "GPUS USED": lambda row: _text(
        f"{row.gpus_used:g} of {row.gpus_expected}" if row.gpus_expected else "-"
    ),
    "GPU": lambda row: _text(
        ", ".join(f"{row.gpus.count(model)} x {model}" for model in dict.fromkeys(row.gpus)) or "-"
    ),
}
# Columns by importance: the last ones are dropped first on a narrow terminal
_WORTH = ("HOST", "RAY", "ROLE", "CONTAINER", "GPUS USED", "NODE IP", "ENGINE", "GPU")

_GAP = 2
_LEAST_GPU = 16


@dataclass(frozen=True)
class _HostTable:
    """The table of hosts, limited to the columns that fit the terminal."""

    status: ClusterStatus

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = self.status.hosts
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, _GAP, 0, 0))
        left = [heading for heading in _WORTH if heading != "GPU" or any(row.gpus for row in rows)]
        widths = {
            heading: max(len(heading), *(len(_COLUMNS[heading](row)) for row in rows))
            for heading in left
        }
        widths["GPU"] = min(widths.get("GPU", 0), _LEAST_GPU)  # longer cells wrap
        while (
            len(left) > 1 and sum(widths[each] + _GAP for each in left) - _GAP > options.max_width
        ):
            left.pop()
        shown = [heading for heading in _COLUMNS if heading in left]
        for heading in shown:
            table.add_column(heading, no_wrap=heading != "GPU", overflow="fold")
        for row in rows:
            table.add_row(*(_COLUMNS[heading](row) for heading in shown))
        yield table


def _service_lines(row: ServiceRow) -> list[Text]:
    """Return the lines of a service with one replica."""
    state = row.state
    first = _text(f"service {row.document.service}", style="bold")
    asleep = state is not None and state.sleep.asleep
    first.append(" · ").append(_word("asleep" if asleep else row.condition))
    if state and row.condition in {"loading", "starting"} and state.stage:
        first.append(_text(f" ({state.stage})"))
    if row.drained:
        first.append(" · draining", style="yellow")
    lines = [first.append(_what(row)), _text(f"  endpoint   {row.endpoint}")]
    if state is None:
        return lines
    if state.sleep.asleep:
        lines.append(_text(f"  asleep     {_asleep(row)}"))
    if row.swaps_with:
        lines.append(_text(f"  swaps      with {row.swaps_with}, on the same GPUs"))
    if row.standby:
        lines.append(_text(f"  standby    {_standby(row)}"))
    if state.ranks:
        ranks = ", ".join(f"{rank.rank} on {rank.host}" for rank in state.ranks)
        lines.append(_text(f"  ranks      {ranks}"))
    if row.condition == "ready":  # Else its standby serves, which has a line of its own
        requests = f"{state.running:.0f} running, {state.waiting:.0f} waiting"
        rest = f"{state.tokens_per_second:.1f} tokens/s · KV cache {state.kv_cache_use:.0%} used"
        lines.append(_text(f"  requests   {requests} · {rest}"))
    if row.load:
        lines.append(_text(f"  load       {_service_load(row.load)}"))
    if row.load and state.start:
        stages = ", ".join(f"{name} {seconds:.0f}" for name, seconds in state.start.items())
        lines.append(_text(f"  start      {state.ready_seconds:.0f} s: {stages}"))
    if state.silence:
        lines.append(_text(f"  silent     {state.silence}", style="red"))
    if state.restarts or row.failed_ago is not None:
        failure = ""
        if row.failed_ago is not None:
            failure = f" · last failure {duration(row.failed_ago)} ago: {state.last_failure}"
        lines.append(_text(f"  restarts   {state.restarts}{failure}"))
    return lines


def _standby(row: ServiceRow) -> str:
    state = row.standby
    if state is None:
        return ""
    if state.sleep.asleep:
        return f"asleep {_asleep(replace(row, state=state))}"
    if state.state == "ready":
        requests = f"{state.running:.0f} running, {state.waiting:.0f} waiting"
        return f"serves · {requests} · {state.tokens_per_second:.1f} tokens/s"
    return f"none now, {state.state}{f' {state.detail}' if state.detail else ''}"


def _asleep(row: ServiceRow) -> str:
    if row.state is None:
        return ""
    sleep, hosts = row.state.sleep, dict.fromkeys(rank.host for rank in row.ranks if rank.host)
    memory = f" ({sleep.host_gib:.1f} GiB of weights in host memory)" if sleep.host_gib else ""
    waiting = f", {count(sleep.waiting, 'request')} waiting" if sleep.waiting else ""
    where = f"the GPUs of {row.document.swap_with}" if row.document.swap_with else ""
    return f"on {where or ', '.join(hosts) or row.host}{memory}, {_wakes(row)}{waiting}"


def _wakes(row: ServiceRow) -> str:
    seconds = row.state.sleep.wakes_in if row.state else 0.0
    return f"wakes in {seconds:.1f} s" if seconds else "wakes with the next request"


def _replica_lines(service: str, rows: Sequence[ServiceRow]) -> list[Text]:
    """Return a line for the service and one for each of its replicas."""
    ready = sum(row.serves for row in rows)
    title = _text(f"service {service}", style="bold")
    asleep = [row.name for row in rows if row.state and row.state.sleep.asleep]
    resting = f", {len(asleep)} asleep" if asleep else ""
    title.append(f" · {ready} of {count(len(rows), 'replica')} ready{resting}")
    lines = [title.append(_what(rows[0])), _text(f"  endpoint   {rows[0].endpoint}")]
    for row in rows:
        state = row.state
        condition = "asleep" if row.name in asleep else row.condition
        line = _text(f"  {row.name} on {row.host} · ").append(_word(condition))
        if row.drained:
            line.append(" · draining", style="yellow")
        # Without its address, which clients of the gateway need not know: lines fit 80 columns.
        if condition == "asleep":
            line.append(f" · {_wakes(row)}")
        elif state and row.serves:
            line.append(f" · {state.running:.0f} running, {state.waiting:.0f} waiting")
            line.append(f" · {state.tokens_per_second:,.0f} tok/s · KV {state.kv_cache_use:.0%}")
        lines.append(line)
        lines += [each for each in _service_lines(row)[2:] if each.plain.startswith(_TROUBLES)]
    return lines


def _what(row: ServiceRow) -> Text:
    """Return what is served, and how."""
    document = row.document
    layout = f"TP {document.tensor_parallel} · PP {document.pipeline_parallel}"
    if row.gpu_share < 1 and not row.swaps:
        layout = f"{row.gpu_share:g} of a GPU"
    on = f" · on {row.on}" if row.on else ""
    return _text(f" · {document.model} · {layout}{on}", style="dim")


# Lines of a service that its row has no room for
_TROUBLES = ("  load", "  start", "  silent", "  restarts", "  standby")


def _service_load(load: ServiceLoad) -> str:
    parts = [] if load.requests_per_s is None else [f"{load.requests_per_s:.2f} requests/s"]
    for name, found in (("TTFT", load.first_token), ("request", load.request)):
        if found:
            parts.append(f"{name} {' / '.join(f'{each:.2f}' for each in found.values())} s")
    parts.append(f"{load.failed:.0f} errors, {load.aborted:.0f} aborted")
    since = (
        "since vLLM started" if load.seconds is None else f"of the last {duration(load.seconds)}"
    )
    return f"{' · '.join(parts)} · p50 / p95 {since}"


def _load_lines(rows: Sequence[HostRow]) -> list[Text]:
    """Return a line for each host's CPUs and memory, and one for each of its GPUs."""
    lines = []
    for row in rows:
        if load := row.load:
            used = f"{size(load.memory_used)} of {size(load.memory)} used"
            lines.append(_text(f"{row.name}  load {load.load:.1f} on {load.cpus} CPUs · {used}"))
            for gpu in load.gpus:
                parts = [
                    f"{gpu.use:.0%} busy" if gpu.use is not None else "",
                    f"{gpu.celsius:.0f} °C" if gpu.celsius is not None else "",
                    f"{size(gpu.memory_used)} of {size(gpu.memory)} used"
                    if gpu.memory_used is not None and gpu.memory
                    else "",
                ]
                lines.append(_text(f"  GPU {gpu.index}  {' · '.join(filter(None, parts))}"))
    return [*lines, Text()] if lines else []


def _gateway_lines(status: ClusterStatus) -> list[Text]:
    gateway = status.gateway
    if gateway is None:
        return []
    first = _text("gateway", style="bold")
    first.append(" · ").append(_word(gateway.state))
    tls = " · https" if gateway.tls else ""
    if status.certificate_days is not None:
        tls += f", {count(status.certificate_days, 'day')} left"
    first.append(_text(f" · {', '.join(gateway.listens) or 'no address'}{tls}", style="dim"))
    counts = (
        f"  requests   {gateway.served} answered, {gateway.retried} of them sent again · "
        f"{gateway.failed} failed, {gateway.refused} refused"
    )
    # What a standby waits for is in a line of its service.
    out = [member for member in gateway.members if not (member.admitted or member.standby)]
    lines = [first, _text(counts)]
    for member in out:
        who = f"{member.service} replica {member.replica} on {member.host}"
        lines.append(_text(f"  gets none  {who}: {member.why}", style="yellow"))
    return lines


def _standby_document(row: ServiceRow) -> dict[str, Any] | None:
    state = row.standby
    if state is None:
        return None
    return {
        "name": state.name,
        "state": state.state,
        "detail": state.detail,
        "requests_running": state.running,
        "requests_waiting": state.waiting,
        "ranks": [asdict(rank) for rank in state.ranks],
        "sleep": asdict(state.sleep),
    }


def status_document(status: ClusterStatus) -> dict[str, Any]:
    """Return the status as a JSON document."""
    return {
        "cluster": status.cluster,
        "healthy": status.healthy,
        "problems": list(status.problems),
        "gateway": asdict(status.gateway) if status.gateway else None,
        "ray_version": status.ray_version,
        "vllm_version": status.vllm_version,
        "hosts": [asdict(row) for row in status.hosts],
        "services": [
            {
                "name": row.name,
                "service": row.document.service,
                "host": row.host,
                "on": row.on,
                "draining": row.drained,
                "state": row.condition,
                "model": row.document.model,
                "served_name": row.document.served_name,
                "endpoint": row.endpoint,
                "tensor_parallel": row.document.tensor_parallel,
                "pipeline_parallel": row.document.pipeline_parallel,
                "detail": row.state.detail if row.state else "",
                "restarts": row.state.restarts if row.state else 0,
                "silence": row.state.silence if row.state else "",
                "last_failure": row.state.last_failure if row.state else "",
                "last_failure_seconds_ago": row.failed_ago,
                "cause": row.cause,
                "requests_running": row.state.running if row.state else 0.0,
                "requests_waiting": row.state.waiting if row.state else 0.0,
                "tokens_per_second": row.state.tokens_per_second if row.state else 0.0,
                "kv_cache_use": row.state.kv_cache_use if row.state else 0.0,
                "ranks": [asdict(rank) for rank in row.state.ranks] if row.state else [],
                "load": asdict(row.load) if row.load else None,
                "start_seconds": row.state.start if row.state else {},
                "sleep": asdict(row.state.sleep) if row.state else None,
                "standby": _standby_document(row),
                "swaps_with": row.swaps_with,
            }
            for row in status.services
        ],
    }
