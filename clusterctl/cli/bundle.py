"""`bundle`: what hosts without a way out need, gathered on a machine that has one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded
from clusterctl.errors import UsageError

if TYPE_CHECKING:
    from clusterctl.packages.making import Made
    from clusterctl.packages.target import Target
    from clusterctl.packages.wanted import Wanted

app = typer.Typer(
    help="What hosts without a way out need, gathered on a machine that has one.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _group() -> None:
    """What hosts without a way out need, gathered on a machine that has one."""


@app.command("packages")
@guarded
def packages(
    target: Annotated[str, typer.Option("--for", help="debian12, ubuntu24.04, rocky9, ...")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="A directory; a file if it ends in .tar.")
    ],
    arch: Annotated[str, typer.Option("--arch", help="x86_64 or aarch64.")] = "x86_64",
    engine_only: Annotated[
        bool, typer.Option("--engine-only", help="Without NVIDIA's container toolkit.")
    ] = False,
    toolkit: Annotated[
        str | None, typer.Option("--toolkit", help="Version of NVIDIA's toolkit: 1.19.1-1.")
    ] = None,
    docker: Annotated[
        str | None,
        typer.Option("--docker", help="URL of Docker's repository, for docker-ce on Debian."),
    ] = None,
    docker_key: Annotated[
        Path | None, typer.Option("--docker-key", help="Key of a mirror that has its own.")
    ] = None,
    nvidia: Annotated[
        str | None, typer.Option("--nvidia", help="URL of a mirror of NVIDIA's repository.")
    ] = None,
    nvidia_key: Annotated[
        Path | None, typer.Option("--nvidia-key", help="Key of a mirror that has its own.")
    ] = None,
    mirror: Annotated[
        str | None, typer.Option("--mirror", help="URL of the system's own packages.")
    ] = None,
    keyring: Annotated[
        Path | None, typer.Option("--keyring", help="Keys of the system's own packages.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Gather the container engine and NVIDIA's toolkit with all that they need."""
    from clusterctl.packages.making import make
    from clusterctl.packages.wanted import TOOLKIT_VERSION, Wanted

    wanted = Wanted(
        target=_target(target),
        architecture=_architecture(arch),
        toolkit=None if engine_only else toolkit or TOOLKIT_VERSION,
        docker_url=docker,
        docker_key=docker_key,
        nvidia_url=nvidia,
        nvidia_key=nvidia_key,
        mirror=mirror,
        keyring=keyring,
    )
    made = make(wanted, output, lambda text: print(f"  · {text}", file=sys.stderr))
    print(json.dumps(_document(wanted, made), indent=2) if as_json else _sentence(wanted, made))


def _target(name: str) -> Target:
    from clusterctl.packages.target import target_named

    try:
        return target_named(name)
    except ValueError as error:
        raise UsageError(f"--for: {error}") from error


def _architecture(name: str) -> str:
    from clusterctl.packages.target import DEBIAN_ARCHITECTURES

    if name not in DEBIAN_ARCHITECTURES:
        raise UsageError(f"--arch: {name} is neither x86_64 nor aarch64")
    return name


def _sentence(wanted: Wanted, made: Made) -> str:
    from clusterctl.reporting.text import count, size

    what = f"{count(len(made.files), 'package')}, {size(made.size)}, for {wanted.target.name}"
    return f"{what}: name it in the inventory\npackages: {{offline: {made.path}}}"


def _document(wanted: Wanted, made: Made) -> dict[str, object]:
    return {
        "for": wanted.target.name,
        "architecture": wanted.architecture,
        "path": str(made.path),
        "bytes": made.size,
        "files": list(made.files),
    }
