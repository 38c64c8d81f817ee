"""`image`: container images on hosts, and in files for sites without a registry."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded
from clusterctl.cli.moving import Flags, Move, Words, move
from clusterctl.cli.program import Commands

if TYPE_CHECKING:
    from clusterctl.transfer.blob_store import StoreUsage


@guarded
def cache(
    clear: Annotated[
        bool,
        typer.Option(
            "--clear", help="Remove all cached layers; they are fetched again when needed."
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Show the cache of image layers on this machine and its size. Needs no cluster."""
    from clusterctl.transfer.blob_store import BlobStore

    store = BlobStore()
    found = store.usage()
    if clear:
        store.clear()
    show = _document if as_json else _text
    print(show(found, cleared=clear))


def _text(found: StoreUsage, *, cleared: bool) -> str:
    from clusterctl.reporting.text import size

    if not found.size:
        return f"{found.directory}: no image layers"
    layers = f"{found.directory}: {size(found.size)} of image layers"
    if cleared:
        return f"{layers} removed"
    return f"{layers}, {size(found.free)} free\nremove them: clusterctl image cache --clear"


def _document(found: StoreUsage, *, cleared: bool) -> str:
    """Return sizes in bytes, from before the layers were removed."""
    return json.dumps(
        {
            "directory": str(found.directory),
            "size": found.size,
            "free": found.free,
            "cleared": cleared,
        },
        indent=2,
    )


if TYPE_CHECKING:
    from clusterctl.cli.session import Session
    from clusterctl.commands.image_bundle import BundledImages
    from clusterctl.commands.image_push import PushedImage

app = Commands("Copy container images to hosts, or into files.")


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
            help="registry, docker (on this machine), host:NAME, or the path of an archive; "
            "default: the nearest place that has it.",
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
    """Bring an image to every host, once over your link. A second run moves nothing."""
    from clusterctl.commands.image_push import ImagePush, make_plan, run

    rate = options.rate_of(limit_rate)

    def prepare(opened: Session) -> Move[PushedImage]:
        reference = image or opened.inventory.image
        wanted = ImagePush(opened.inventory, opened.hosts, reference, source, rate, compress)
        return Move(partial(make_plan, wanted), partial(run, wanted))

    nothing = "Nothing to move: every host has the image."
    words = Words(nothing, pushed_sentence, pushed_document)
    flags = Flags(inventory=inventory, limit=limit, dry_run=dry_run, yes=True, as_json=as_json)
    move("image-push", prepare, words, flags)


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
            help="registry, docker (on this machine), host:NAME, or the path of an archive.",
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
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Write images to one file, for hosts that reach no registry. Needs no cluster."""
    from clusterctl.cli.session import credentials, load_inventory
    from clusterctl.commands.image_bundle import ImageBundle, run
    from clusterctl.engine.events import StepProgress
    from clusterctl.reporting.console import Progress

    wanted = ImageBundle(tuple(dict.fromkeys(images)), output, source, platform)
    with Progress(sys.stderr, quiet=as_json) as progress:
        done = run(
            wanted,
            credentials(progress),
            say=lambda text: progress(StepProgress("", "bundle", text)),
            inventory=lambda: load_inventory(inventory),
        )
    print(json.dumps(bundled_document(done), indent=2) if as_json else bundled_text(done))


app.command("cache")(cache)


def bundled_text(done: BundledImages) -> str:
    """Return the file's contents, and the commands to use it."""
    from clusterctl.reporting.text import count, size

    names = [image.reference for image in done.images]
    first = f"{done.path}: {count(len(names), 'image')}, {size(done.size)}, {_platforms(done)}"
    use = [f"  clusterctl image push {name} --from {done.path}" for name in names]
    return "\n".join((first, "on the site:", *use, f"or on one host: docker load -i {done.path}"))


def bundled_document(done: BundledImages) -> dict[str, object]:
    """Return the result for --json; sizes in bytes."""
    return {
        "file": str(done.path),
        "size": done.size,
        "images": [
            {"image": image.reference, "platform": image.platform, "size": image.size}
            for image in done.images
        ],
    }


def _platforms(done: BundledImages) -> str:
    return ", ".join(sorted({image.platform for image in done.images}))


def pushed_sentence(done: PushedImage) -> str:
    """Return the result as a sentence."""
    from clusterctl.reporting.text import count, duration, size

    hosts = f"on {count(len(done.hosts), 'host')}"
    if not done.changed:
        return f"nothing to move: {done.reference} is {hosts} already"
    moved = f"from {done.origin}, {size(done.sent)} sent from here in {duration(done.seconds)}"
    return f"{done.reference} is {hosts}; {moved}"


def pushed_document(done: PushedImage) -> dict[str, object]:
    """Return the result for --json; sizes in bytes, times in seconds."""
    return {
        "image": done.reference,
        "from": done.origin,
        "hosts": list(done.hosts),
        "changed": done.changed,
        "sent": done.sent,
        "received": dict(done.received),
        "seconds": round(done.seconds, 3),
    }
