"""`check`: validate the inventory, then every host."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty

if TYPE_CHECKING:
    from clusterctl.commands.check import Report
    from clusterctl.network.pairs.model import HostLink
    from clusterctl.survey.promises import PromiseState


@guarded
def check(
    context: typer.Context,
    file: options.InventoryFile = None,
    inventory: options.Inventory = None,
    limit: options.Limit = None,
    as_json: options.Json = False,
    accept_new: options.AcceptNew = False,
    fabric: Annotated[
        bool,
        typer.Option(
            "--fabric", help="Also run all-reduces through the cluster, which must be up."
        ),
    ] = False,
    security: Annotated[
        bool,
        typer.Option(
            "--security", help="Show which promises of docs/security.md hold on this cluster."
        ),
    ] = False,
) -> None:
    """Validate the inventory, then every host. Changes nothing; lists all problems at once."""
    from clusterctl.accelerators.registry import accelerator_named
    from clusterctl.cli.session import session
    from clusterctl.commands.check import run, with_fabric
    from clusterctl.commands.check import security as promises_of
    from clusterctl.errors import raise_all
    from clusterctl.reporting.text import line_width

    path = options.named_inventory(context, file, inventory)
    with session("check", path, limit=limit, quiet=as_json, accept_new=accept_new) as opened:
        if security:
            _show_promises(promises_of(opened), as_json=as_json)
            return
        report = run(opened)
        if fabric:
            report = with_fabric(report, opened)
        if as_json:
            print(pretty(_document(report)))
            if report.errors:
                raise typer.Exit(min(error.exit_code for error in report.errors))
            return
        head = opened.inventory.head.name
        device = accelerator_named(opened.inventory.accelerator).device
        print("\n".join(_lines(report, head, line_width(sys.stdout), device)))
        raise_all(report.errors)


def _show_promises(promises: list[PromiseState], *, as_json: bool) -> None:
    """Print the promises, and raise the errors of broken ones."""
    from clusterctl.errors import Problems, RequirementsNotMet
    from clusterctl.reporting.error_view import error_document
    from clusterctl.reporting.text import each_below_itself, line_width

    errors = [error for promise in promises for error in promise.problems]
    if as_json:
        rows = [
            {
                "number": promise.number,
                "promise": promise.title,
                "state": promise.state,
                "seen": promise.words,
                "problems": error_document(Problems(promise.problems))["problems"],
            }
            for promise in promises
        ]
        print(pretty({"promises": rows}))
        if errors:
            raise typer.Exit(min(error.exit_code for error in errors))
        return
    width = line_width(sys.stdout)
    for promise in promises:
        print(f"{promise.number:>2}. {promise.title}")
        words = [str(problem) for problem in promise.problems] or [promise.words]
        print("\n".join(each_below_itself(f"    {promise.state}: ", words, width)))
    if errors:
        broken = [str(promise.number) for promise in promises if promise.problems]
        raise RequirementsNotMet(
            f"promise{'s' * (len(broken) > 1)} {', '.join(broken)} of {len(promises)} "
            f"{'do' if len(broken) > 1 else 'does'} not hold on this cluster",
            hint=errors[0].hint,
        )


def _lines(report: Report, head: str, width: int | None, device: str = "GPU") -> list[str]:
    """Return the hosts' facts and the choices made; problems are reported when the run ends.
    `width`: of the terminal, in characters."""
    from clusterctl.reporting.text import columns, count, each_below_itself, size
    from clusterctl.survey.status import ray_lines

    rows = []
    for name, facts in report.facts.items():
        models = [gpu.model for gpu in facts.gpus.gpus]
        gpus = ", ".join(f"{models.count(model)} x {model}" for model in dict.fromkeys(models))
        docker = f"docker {facts.engine.version}" if facts.engine.running else "no container engine"
        if facts.engine.closed:
            docker = "docker unknown without root"
        cpus, memory = f"{facts.cpus} CPUs", size(facts.memory)
        rows.append((name, facts.os.pretty, cpus, memory, docker, gpus or "no GPU"))
    lines = columns(rows, indent="", width=width)
    for host, choices in report.choices.items():
        lines += [f"{host}:", *each_below_itself("  ", choices, width)]
    lines += each_below_itself("ray: ", ray_lines(report.ray, head, device), width)
    lines += each_below_itself("fabric: ", report.fabric.lines, width) if report.fabric else []
    lines += each_below_itself("note: ", _once(report.notes, report.facts), width)
    if not report.errors:
        lines.append(f"{count(len(report.facts), 'host')}: no problem found")
    return lines


def _once(notes: Iterable[str], hosts: Collection[str]) -> list[str]:
    """Return the notes, merging those that several hosts share: `gpu1, gpu2: ...`."""
    sharing: dict[str, list[str]] = {}
    for note in notes:
        host, colon, text = note.partition(": ")
        known = bool(colon) and host in hosts
        sharing.setdefault(text if known else note, []).extend([host] if known else [])
    return [f"{', '.join(named)}: {text}" if named else text for text, named in sharing.items()]


def _link_document(link: HostLink) -> dict[str, Any]:
    """Return a link for --json; null where a value was not measured."""
    trip, rate = link.round_trip, link.rate
    return {
        "from": link.sender.host,
        "to": link.receiver.host,
        "for": list(link.lane.purposes),
        "from_nic": link.sender.nic,
        "to_address": link.receiver.ip,
        "leaves_by": link.route,
        "closed_ports": sorted(port for port, word in link.tcp.items() if word != "ok"),
        "round_trip_ms": None if trip is None else round(trip * 1000, 3),
        "mbit_s": None if rate is None else round(rate),
    }


def _document(report: Report) -> dict[str, Any]:
    """Return the result for --json."""
    from dataclasses import asdict

    from clusterctl.errors import Problems
    from clusterctl.reporting.error_view import error_document

    return {
        "hosts": {
            name: {
                "os": facts.os.pretty,
                "architecture": facts.os.architecture,
                "cpus": facts.cpus,
                "memory_bytes": facts.memory,
                "engine": facts.engine.version,
                "gpus": [gpu.model for gpu in facts.gpus.gpus],
                "choices": list(report.choices.get(name, ())),
            }
            for name, facts in report.facts.items()
        },
        "ray": [asdict(node) for node in report.ray],
        "fabric": asdict(report.fabric) if report.fabric else None,
        "pairs": [_link_document(link) for link in report.links],
        "notes": list(report.notes),
        "problems": error_document(Problems(report.errors))["problems"],
    }
