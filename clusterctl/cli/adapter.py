"""`adapter`: LoRA adapters of services."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty
from clusterctl.cli.program import Commands

if TYPE_CHECKING:
    from clusterctl.commands.adapter import AdapterPlan

app = Commands("LoRA adapters of services: add, list and remove them while they serve.")

_Service = Annotated[str, typer.Argument(metavar="SERVICE", help="Service, as `status` shows it.")]


@app.command("add")
@guarded
def add(
    service: _Service,
    adapters: Annotated[
        list[str],
        typer.Argument(metavar="NAME=DIR", help="Name in requests, and the adapter's directory."),
    ],
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Copy adapters to all hosts and load them on every replica."""
    from clusterctl.cli.session import session
    from clusterctl.commands.adapter import add as run
    from clusterctl.serving.adapters import parse_adapters, read_adapter

    found = [read_adapter(name, directory) for name, directory in parse_adapters(adapters)]
    with session("adapter-add", inventory, quiet=as_json) as opened:
        plan = run(opened, service, found)
    _print(plan, as_json=as_json)


@app.command("rm")
@guarded
def rm(
    service: _Service,
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Adapters to remove.")],
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Unload adapters of a service."""
    from clusterctl.cli.session import session
    from clusterctl.commands.adapter import remove

    with session("adapter-rm", inventory, quiet=as_json) as opened:
        plan = remove(opened, service, names)
    _print(plan, as_json=as_json)


@app.command("ls")
@guarded
def ls(inventory: options.Inventory = None, as_json: options.Json = False) -> None:
    """List the adapters of all services."""
    from clusterctl.cli.session import session
    from clusterctl.commands.adapter import list_adapters
    from clusterctl.reporting.escaping import one_line
    from clusterctl.reporting.text import columns

    with session("adapter-ls", inventory, quiet=True) as opened:
        found = list_adapters(opened)
    if as_json:
        print(pretty([asdict(each) for each in found]))
        return
    if not found:
        print("No adapters.")
        return
    rows = [("service", "adapter", "replicas", "on hosts")]
    for each in found:
        loaded = f"{each.replicas - len(each.missing)} of {each.replicas}"
        rows.append((each.service, each.name, loaded, each.path))
    print("\n".join(columns(rows, indent="")))
    for each in found:
        for replica, why in each.missing.items():
            print(one_line(f"{each.name} on {replica}: {why}"))


def _print(plan: AdapterPlan, *, as_json: bool) -> None:
    name = plan.service.name
    if as_json:
        document = {"service": name, "changes": plan.lines, "adapters": dict(plan.adapters)}
        print(pretty(document))
        return
    has = ", ".join(plan.adapters) or "none"
    print(f"{name} has the adapters: {has}" if plan.lines else f"Nothing to change: {name}: {has}")
