"""`model`: the models that have a short name, where they are, and how they get there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded

if TYPE_CHECKING:
    from clusterctl.workflows.model_push import Pushed

app = typer.Typer(
    help="Models: which have a short name, which host has which, and bringing them there.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _group() -> None:
    """Models: which have a short name, which host has which, and bringing them there."""


@app.command("ls")
@guarded
def ls(
    hub: Annotated[bool, typer.Option("--hub", help="Only the names on the Hub.")] = False,
    as_json: options.Json = False,
) -> None:
    """List the models that `serve` knows by a short name, with the flags that each needs."""
    from clusterctl.reporting.text import columns
    from clusterctl.serving.catalogue import CATALOGUE

    if as_json:
        rows = [
            {"name": e.alias, "hub_id": e.hub_id, "flags": list(e.tokens(None))} for e in CATALOGUE
        ]
        print(json.dumps(rows, indent=2))
    elif hub:
        print("\n".join(entry.hub_id for entry in CATALOGUE))
    else:
        table = [(e.alias, e.hub_id, " ".join(e.tokens(None))) for e in CATALOGUE]
        print("\n".join(columns(table, indent="")))


@app.command("push")
@guarded
def push(
    directory: Annotated[
        str, typer.Argument(help="Model directory here; with --from, its name or path there.")
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="What hosts call it; default: as it is called.")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", help="host:NAME, a host that has the model.")
    ] = None,
    inventory: options.Inventory = None,
    limit: options.Limit = None,
    limit_rate: options.LimitRate = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Bring a model's directory to every host. A second run moves nothing."""
    from clusterctl.cli.agreement import agreement, show_plan
    from clusterctl.cli.session import session
    from clusterctl.workflows.model_push import Push, make_plan, run
    from clusterctl.workflows.model_source import holder_named, supplying

    rate = options.rate_of(limit_rate)
    with session("model-push", inventory, limit=limit, quiet=as_json) as opened:
        holder = holder_named(source, opened.inventory)
        find = supplying(directory, name, holder, opened.inventory.models, opened.progress)
        wanted = Push(opened.inventory, tuple(opened.hosts), find, holder, rate)
        if dry_run:
            plan = make_plan(wanted, opened.credentials)
            raise show_plan(plan, as_json=as_json, nothing=NOTHING)
        agree = agreement(opened.progress, yes=yes, as_json=as_json)
        done = run(wanted, opened.credentials, agree=agree, sink=opened.progress)
    print(json.dumps(pushed_document(done), indent=2) if as_json else pushed_sentence(done))


NOTHING = "Nothing to move: every host has the model, whole."


def pushed_sentence(done: Pushed) -> str:
    """What came of it, and the command that comes next."""
    from clusterctl.reporting.text import count, duration, size

    hosts = f"on {count(len(done.hosts), 'host')} at {done.path}"
    if not done.changed:
        return f"nothing to move: {done.manifest.name} is {hosts} already"
    moved = f"{size(done.sent)} sent from here in {duration(done.seconds)}"
    return f"{done.manifest.name}, {size(done.manifest.size)}, is {hosts}; {moved}"


def pushed_document(done: Pushed) -> dict[str, object]:
    """The same for machines; sizes in bytes, times in seconds."""
    return {
        "model": done.manifest.name,
        "path": done.path,
        "origin": done.manifest.origin,
        "identity": done.manifest.identity,
        "bytes": done.manifest.size,
        "hosts": list(done.hosts),
        "changed": done.changed,
        "sent": done.sent,
        "seconds": round(done.seconds, 3),
    }
