"""`packages`: gather packages for hosts without internet access, on a machine that has it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty
from clusterctl.cli.program import Commands
from clusterctl.errors import UsageError

if TYPE_CHECKING:
    from clusterctl.packages.making import Made

app = Commands("Bundle packages for hosts without internet access.")


@app.command("bundle")
@guarded
def bundle(
    target: Annotated[
        str,
        typer.Option(
            "--for", metavar="SYSTEM", help="Hosts' system: debian12, ubuntu24.04, rocky9, ..."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="PATH", help="Directory to write; a file if it ends in .tar."
        ),
    ],
    arch: Annotated[
        str,
        typer.Option("--arch", metavar="ARCH", help="Hosts' processors: x86_64 or aarch64."),
    ] = "x86_64",
    engine_only: Annotated[
        bool, typer.Option("--engine-only", help="Leave out NVIDIA's container toolkit.")
    ] = False,
    toolkit: Annotated[
        str | None,
        typer.Option(
            "--toolkit", metavar="VERSION", help="NVIDIA toolkit version, such as 1.19.1-1."
        ),
    ] = None,
    docker: Annotated[
        str | None,
        typer.Option(
            "--docker",
            metavar="URL",
            help="URL of Docker's repository; on Debian, installs docker-ce.",
        ),
    ] = None,
    docker_key: Annotated[
        Path | None,
        typer.Option(
            "--docker-key", metavar="FILE", help="Signing key of --docker; default: Docker's."
        ),
    ] = None,
    nvidia: Annotated[
        str | None, typer.Option("--nvidia", metavar="URL", help="Mirror of NVIDIA's repository.")
    ] = None,
    nvidia_key: Annotated[
        Path | None,
        typer.Option(
            "--nvidia-key", metavar="FILE", help="Signing key of --nvidia; default: NVIDIA's."
        ),
    ] = None,
    mirror: Annotated[
        str | None,
        typer.Option("--mirror", metavar="URL", help="Mirror of the system's own packages."),
    ] = None,
    keyring: Annotated[
        Path | None,
        typer.Option("--keyring", metavar="FILE", help="Signing keys of the system's packages."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Download the engine, NVIDIA's toolkit and their dependencies."""
    from clusterctl.packages.making import make
    from clusterctl.packages.target import (
        DEBIAN_ARCHITECTURES,
        TOOLKIT_VERSION,
        BundleRequest,
        target_named,
    )
    from clusterctl.reporting.text import count, size

    try:
        system = target_named(target)
    except ValueError as error:
        raise UsageError(f"--for: {error}", hint="--for ubuntu24.04") from error
    if arch not in DEBIAN_ARCHITECTURES:
        raise UsageError(f"--arch: {arch} is neither x86_64 nor aarch64", hint="--arch aarch64")
    wanted = BundleRequest(
        target=system,
        architecture=arch,
        toolkit=None if engine_only else toolkit or TOOLKIT_VERSION,
        docker_url=docker,
        docker_key=docker_key,
        nvidia_url=nvidia,
        nvidia_key=nvidia_key,
        mirror=mirror,
        keyring=keyring,
    )
    made = make(wanted, output, lambda text: print(f"  · {text}", file=sys.stderr))
    if as_json:
        document = {"for": system.name, "architecture": arch, **_document(made)}
        print(pretty(document))
    else:
        what = f"{count(len(made.files), 'package')}, {size(made.size)}, for {system.name}"
        print(f"{what}: name it in the inventory")
        print(f"packages: {{offline: {made.path}, sums: [{made.sums}]}}")


def _document(made: Made) -> dict[str, object]:
    return {
        "path": str(made.path),
        "bytes": made.size,
        "files": list(made.files),
        "sums": made.sums,
    }
