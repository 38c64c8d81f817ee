"""`lab`: whole Debian hosts on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty
from clusterctl.cli.init import IMAGE
from clusterctl.cli.program import Commands
from clusterctl.errors import UsageError

app = Commands("Create Debian test hosts on this machine, with CPUs or its GPUs.")


def _say(text: str) -> None:
    print(f"  · {text}", file=sys.stderr)


@app.command()
@guarded
def up(
    hosts: Annotated[
        int, typer.Option("--hosts", metavar="N", min=1, max=20, help="Number of hosts.")
    ] = 2,
    link_rate: Annotated[
        str | None,
        typer.Option("--link-rate", metavar="RATE", help="Rate of each link, both ways: 200mbit."),
    ] = None,
    model: Annotated[
        Literal["tiny", "qwen2.5-1.5b"],
        typer.Option("--for", metavar="MODEL", help="Model that must fit into memory."),
    ] = "tiny",
    gpus: Annotated[
        bool, typer.Option("--gpus", help="Divide this machine's GPUs among the hosts.")
    ] = False,
    image: Annotated[
        str | None,
        typer.Option("--image", metavar="IMAGE", help=f"With --gpus: the image. Default: {IMAGE}."),
    ] = None,
    image_archive: Annotated[
        Path | None,
        typer.Option("--image-archive", metavar="FILE", help="With --gpus: the image as a file."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Create bare hosts, with systemd and sshd, two NICs each. A second run changes nothing."""
    from clusterctl.lab import lifecycle

    if not gpus and (image or image_archive):
        raise UsageError(
            "--image and --image-archive are for hosts with GPUs", hint="clusterctl lab up --gpus"
        )
    gpu_image = lifecycle.GpuImage(image or IMAGE, image_archive) if gpus else None
    made = lifecycle.up(hosts, link_rate=link_rate, model=model, gpu_image=gpu_image, say=_say)
    if as_json:
        print(pretty({"changes": made.changes, "inventory": str(made.inventory)}))
        return
    print("the lab is up" if made.changes else "the lab is up: nothing to change")
    print(f"inventory: {made.inventory}")
    if made.missing_image:
        saved = f"docker save {image or IMAGE} -o {made.missing_image}"
        print(f"before `bootstrap`, save the image: {saved}")


@app.command()
@guarded
def status(as_json: options.Json = False) -> None:
    """Show the lab's hosts and whether they run."""
    from clusterctl.lab import lifecycle

    found = lifecycle.status()
    print(pretty(found.document()) if as_json else "\n".join(found.lines()))


@app.command()
@guarded
def down(
    purge: Annotated[
        bool, typer.Option("--purge", help="Also remove caches: the next `up` starts from nothing.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Remove hosts, networks and processes; only caches are kept."""
    from clusterctl.lab import lifecycle

    changes = lifecycle.down(purge=purge, say=_say)
    if as_json:
        print(pretty({"changes": changes}))
        return
    print("the lab is down" if changes else "there was no lab: nothing to change")
