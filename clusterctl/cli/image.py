"""`image`: container images on hosts, and in files for sites without a registry."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty
from clusterctl.cli.program import Commands

if TYPE_CHECKING:
    from clusterctl.commands.image_list import ImageList
    from clusterctl.commands.image_push import PushedImage

app = Commands("List container images, and copy them to hosts or into files.")

_SOURCES = "registry, docker (on this machine), host:NAME, or the path of an archive"


@app.command("push")
@guarded
def push(
    image: Annotated[
        str | None,
        typer.Argument(
            metavar="IMAGE", help="Such as vllm/vllm-openai:v0.33.0; default: the inventory's."
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SOURCE",
            help=f"{_SOURCES}; default: the nearest place that has it.",
        ),
    ] = None,
    inventory: options.Inventory = None,
    limit: options.Limit = None,
    limit_rate: options.LimitRate = None,
    compress: Annotated[
        bool | None,
        typer.Option(
            "--compress/--no-compress",
            help="Compress uncompressed layers before sending them; default: with a "
            "--limit-rate under 500 Mbit/s.",
        ),
    ] = None,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Copy an image to every host, over your link at most once. A second run transfers nothing."""
    from clusterctl.cli.session import agreement, session, show_plan
    from clusterctl.commands.image_push import ImagePush, make_plan, run

    rate = options.rate_of(limit_rate)
    with session("image-push", inventory, limit=limit, quiet=as_json) as opened:
        reference = image or opened.inventory.image
        wanted = ImagePush(opened, reference, source, rate, compress)
        if dry_run:
            nothing = "Nothing to transfer: every host has the image."
            plan = make_plan(wanted)
            raise show_plan(plan, as_json=as_json, nothing=nothing)
        agree = agreement(opened.progress, yes=True, as_json=as_json)
        done = run(wanted, agree=agree)
    print(pretty(_document(done)) if as_json else _sentence(done))


def _sentence(done: PushedImage) -> str:
    from clusterctl.reporting.text import count, duration, size

    hosts = f"on {count(len(done.hosts), 'host')}"
    digest = f"; in its registry: {done.digest}" if done.digest else ""
    if not done.changed:
        return f"nothing to transfer: {done.reference} is already {hosts}{digest}"
    moved = f"from {done.origin}, {size(done.sent)} sent from here in {duration(done.seconds)}"
    return f"{done.reference} is {hosts}; {moved}{digest}"


def _document(done: PushedImage) -> dict[str, object]:
    """Return the result for --json; sizes in bytes, times in seconds."""
    return {
        "image": done.reference,
        "digest": done.digest,
        "from": done.origin,
        "hosts": list(done.hosts),
        "changed": done.changed,
        "sent": done.sent,
        "received": dict(done.received),
        "seconds": round(done.seconds, 3),
    }


@app.command("ls")
@guarded
def ls(
    inventory: options.Inventory = None, limit: options.Limit = None, as_json: options.Json = False
) -> None:
    """List the images on the hosts: size, digest, and which are in use."""
    from clusterctl.cli.session import session
    from clusterctl.commands.image_list import run
    from clusterctl.reporting.error_view import error_lines

    with session("image-ls", inventory, limit=limit, quiet=True) as opened:
        found = run(opened)
    if as_json:
        rows = [
            {
                "names": sorted(one.names),
                "size": one.size,
                "digests": sorted(one.digests),
                "hosts": one.hosts,
                "used": one.used,
            }
            for one in found.images
        ]
        errors = [{"host": error.host, "error": error.summary} for error in found.errors]
        print(pretty({"images": rows, "errors": errors}))
        return
    for line in _list_lines(found, len(opened.hosts)):
        print(line)
    for error in found.errors:
        print("\n".join(error_lines(error, None)), file=sys.stderr)


def _list_lines(found: ImageList, hosts: int) -> list[str]:
    """Return an image's names, one per line, then what is known about it."""
    from clusterctl.reporting.text import columns, size

    def where(names: list[str]) -> str:
        return f"all {hosts} hosts" if len(names) == hosts > 1 else ", ".join(names)

    lines = []
    for one in found.images:
        digests = sorted({each.rpartition("@")[2] for each in one.digests})
        rows = [("size", f"{size(one.size)} unpacked"), ("on", where(one.hosts))]
        rows += [("in use", where(one.used))] if one.used else []
        lines += [*(sorted(one.names) or ["an image without a name"]), *columns(rows)]
        lines += [f"  {each}" for each in digests]
    return lines if lines or found.errors else ["no host has an image"]


@app.command("bundle")
@guarded
def bundle(
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE", help="Such as vllm/vllm-openai:v0.33.0.")
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE", help="File to write.", dir_okay=False),
    ],
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="SOURCE",
            help=f"{_SOURCES}.",
        ),
    ] = "registry",
    platform: Annotated[
        str | None,
        typer.Option(
            "--platform",
            metavar="PLATFORM",
            help="Such as linux/arm64; default: the source's; from a registry, linux/amd64.",
        ),
    ] = None,
    with_ray: Annotated[
        bool,
        typer.Option(
            "--with-ray",
            help="Add Ray where an image has none, as bootstrap would; with Docker here or --from "
            "host:NAME.",
        ),
    ] = False,
    pip_index: Annotated[
        str | None,
        typer.Option(
            "--pip-index", metavar="URL", help="Package index for --with-ray; default: PyPI."
        ),
    ] = None,
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Write images to one file, for hosts without access to a registry. Needs no cluster."""
    from clusterctl.cli.session import credentials, load_inventory
    from clusterctl.commands.image_bundle import ImageBundle, run
    from clusterctl.engine.events import StepProgress
    from clusterctl.reporting.console import Progress
    from clusterctl.reporting.text import count, size

    named = tuple(dict.fromkeys(images))
    wanted = ImageBundle(named, output, source, platform, with_ray, pip_index)
    with Progress(sys.stderr, quiet=as_json) as progress:
        done = run(
            wanted,
            credentials(progress),
            say=lambda text: progress(StepProgress("", "bundle", text)),
            inventory=lambda: load_inventory(inventory),
        )
    if as_json:
        written = [
            {"image": each.reference, "platform": each.platform, "size": each.size}
            for each in done.images
        ]
        document = {"file": str(done.path), "size": done.size, "images": written}
        print(pretty(document))
        return
    platforms = ", ".join(sorted({each.platform for each in done.images}))
    print(f"{done.path}: {count(len(done.images), 'image')}, {size(done.size)}, {platforms}")
    if with_ray:
        print("in the inventory, for a bootstrap without downloads:")
        print(f"  image: {done.images[0].reference}\n  image_archive: {done.path.name}")
        return
    print("on the site:")
    for each in done.images:
        print(f"  clusterctl image push {each.reference} --from {done.path}")
    print(f"or on one host: docker load -i {done.path}")


@app.command("cache")
@guarded
def cache(
    clear: Annotated[
        bool,
        typer.Option(
            "--clear", help="Remove all cached layers; they are downloaded again when needed."
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Show the cache of image layers on this machine and its size. Needs no cluster."""
    from clusterctl.reporting.text import size
    from clusterctl.transfer.blob_store import BlobStore

    store = BlobStore()
    found = store.usage()  # From before the layers are removed, if they are
    if clear:
        store.clear()
    directory = str(found.directory)
    if as_json:
        figures = {"size": found.size, "free": found.free, "cleared": clear}
        print(pretty({"directory": directory, **figures}))
    elif not found.size:
        print(f"{directory}: no image layers")
    elif clear:
        print(f"{directory}: {size(found.size)} of image layers removed")
    else:
        print(f"{directory}: {size(found.size)} of image layers, {size(found.free)} free")
        print("remove them: clusterctl image cache --clear")
