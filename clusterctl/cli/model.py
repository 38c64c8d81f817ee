"""`model`: the models that have an alias, their locations, and their delivery to hosts."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty
from clusterctl.cli.program import Commands
from clusterctl.errors import UsageError

if TYPE_CHECKING:
    from clusterctl.planning.hardware import GpuModel
    from clusterctl.transfer.weights.delivery import PushedModel

NOTHING = "Nothing to transfer: every host has the complete model."  # A dry run's plan

app = Commands("Copy models to hosts, and list the models on each host.")


@app.command("ls")
@guarded
def ls(
    hub: Annotated[bool, typer.Option("--hub", help="Print only Hub ids, one per line.")] = False,
    inventory: options.Inventory = None,
    limit: options.Limit = None,
    as_json: options.Json = False,
) -> None:
    """List the models with an alias, and the models on each host."""
    from clusterctl.cli.model_view import list_lines, listed_document
    from clusterctl.models.catalogue import CATALOGUE
    from clusterctl.reporting.error_view import error_lines

    if hub:
        print("\n".join(entry.hub_id for entry in CATALOGUE))
        return
    from clusterctl.cli.session import session
    from clusterctl.commands.model_list import run
    from clusterctl.inventory.current import current

    try:
        current(inventory)
    except UsageError:  # no inventory is named or current: the catalogue needs none
        listed = None
    else:
        with session("model-ls", inventory, limit=limit, quiet=True) as opened:
            listed = run(opened)
    if as_json:
        print(pretty(listed_document(listed)))
        return
    print("\n".join(list_lines(listed)))
    for error in listed.errors if listed else ():
        print("\n".join(error_lines(error, None)), file=sys.stderr)


@app.command("search")
@guarded
def search_(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="Words of the alias, Hub id or kind.")
    ] = "",
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", metavar="LIST", help="Only what fits these GPUs: 2xRTX5090."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Include models that do not fit the cluster's GPUs.")
    ] = False,
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Search the models with an alias that fit --gpus or the cluster."""
    from clusterctl.cli.model_view import search_document, search_lines
    from clusterctl.planning.editions import search
    from clusterctl.planning.hardware import parse_gpus

    wanted: tuple[GpuModel, ...] = ()
    if gpus:
        wanted = parse_gpus(gpus)
    elif not everything:
        wanted = _gpus_of_cluster(inventory)
    found = search(text, wanted)
    print(pretty(search_document(found)) if as_json else "\n".join(search_lines(found)))


def _gpus_of_cluster(path: Path | None) -> tuple[GpuModel, ...]:
    """Return the GPUs of the current cluster, and note that on stderr; none without a cluster."""
    from clusterctl.inventory.current import current

    try:
        current(path)
    except UsageError:  # no inventory is named or current: the catalogue needs none
        return ()
    from clusterctl.cli.session import session
    from clusterctl.commands.model_list import gpus_of_cluster

    with session("model-search", path, quiet=True) as opened:
        cluster = opened.inventory.cluster
        found = gpus_of_cluster(opened)
    if not found:
        print(f"all models, since no host of {cluster} reports a GPU", file=sys.stderr)
        return ()
    counts = Counter(gpu.name for gpu in found)
    named = ", ".join(f"{count} x {name}" for name, count in counts.items())
    print(f"models that fit {named} of {cluster}; --all lists all", file=sys.stderr)
    return found


@app.command("push")
@guarded
def push(
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIRECTORY",
            help="Local model directory; with --from, its name or path on that host.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name on the hosts; default: the directory's."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="host:NAME", help="A host that has the model."),
    ] = None,
    inventory: options.Inventory = None,
    limit: options.Limit = None,
    limit_rate: options.LimitRate = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Copy a model's directory to every host. A second run transfers nothing."""
    from clusterctl.cli.session import agreement, session, show_plan
    from clusterctl.commands.model_push import find_model, holder_named
    from clusterctl.transfer.weights.delivery import Destination, deliver, make_plan

    rate = options.rate_of(limit_rate)
    with session("model-push", inventory, limit=limit, quiet=as_json) as opened:
        holder = holder_named(source, opened.inventory)
        to = Destination(opened.inventory, opened.hosts, holder, rate)
        find = find_model(directory, name, to, opened.progress)
        if dry_run:
            plan = make_plan(to, find, opened.credentials)
            raise show_plan(plan, as_json=as_json, nothing=NOTHING)
        agree = agreement(opened.progress, yes=yes, as_json=as_json)
        done = deliver(to, find, opened.credentials, agree=agree, sink=opened.progress)
    print(pretty(pushed_document(done)) if as_json else pushed_sentence(done))


@app.command("pull")
@guarded
def pull(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Alias, or ORGANISATION/NAME.",
            autocompletion=options.complete_models,
        ),
    ],
    source: Annotated[str, typer.Option(metavar="HUB", help="hf or modelscope.")] = "hf",
    revision: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Branch, tag or commit; default: the hub's."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name on the hosts; default: the hub's.")
    ] = None,
    include: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Only weights that match, such as '*Q4_K_M*'."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            help="Host that downloads, with your token; default: one that needs no token.",
            autocompletion=options.complete_hosts,
        ),
    ] = None,
    inventory: options.Inventory = None,
    limit: options.Limit = None,
    limit_rate: options.LimitRate = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Download a model from a hub and copy it to every host. A second run transfers nothing."""
    from clusterctl.cli.session import agreement, session, show_plan
    from clusterctl.commands.model_pull import hub_model, make_plan, run
    from clusterctl.transfer.weights.delivery import Destination

    rate = options.rate_of(limit_rate)
    with session("model-pull", inventory, limit=limit, quiet=as_json) as opened:
        known = [host.name for host in opened.inventory.hosts]
        if on is not None and on not in known:
            raise UsageError(f"--on {on} is not a host of the inventory", hint=f"--on {known[0]}")
        models = opened.inventory.models
        wanted = hub_model(model, models, source, revision, name, include)
        to = Destination(opened.inventory, opened.hosts, on, rate)
        if dry_run:
            plan = make_plan(wanted, to, opened.credentials)
            raise show_plan(plan, as_json=as_json, nothing=NOTHING)
        agree = agreement(opened.progress, yes=yes, as_json=as_json)
        done = run(wanted, to, opened.credentials, agree=agree, sink=opened.progress)
    print(pretty(pushed_document(done)) if as_json else pushed_sentence(done))


def pushed_sentence(done: PushedModel) -> str:
    """Return the result as a sentence."""
    from clusterctl.reporting.text import count, duration, size

    hosts = f"on {count(len(done.hosts), 'host')} at {done.path}"
    if not done.changed:
        return f"nothing to transfer: {done.manifest.name} is already {hosts}"
    moved = f"{size(done.sent)} sent from here in {duration(done.seconds)}"
    return f"{done.manifest.name}, {size(done.manifest.size)}, is {hosts}; {moved}"


def pushed_document(done: PushedModel) -> dict[str, object]:
    """Return the result for --json; sizes in bytes, times in seconds."""
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
