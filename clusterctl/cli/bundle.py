"""`bundle`: gather packages for hosts without internet, on a machine with it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded
from clusterctl.cli.program import Commands
from clusterctl.errors import UsageError

app = Commands("Download packages for hosts without internet access.")

_Target = Annotated[
    str,
    typer.Option(
        "--for", metavar="SYSTEM", help="Hosts' system: debian12, ubuntu24.04, rocky9, ..."
    ),
]
_Output = Annotated[
    Path,
    typer.Option(
        "-o", "--output", metavar="PATH", help="Directory to write; a file if it ends in .tar."
    ),
]
_Arch = Annotated[
    str,
    typer.Option("--arch", metavar="ARCH", help="Hosts' processors: x86_64 or aarch64."),
]
_EngineOnly = Annotated[
    bool, typer.Option("--engine-only", help="Leave out NVIDIA's container toolkit.")
]
_Toolkit = Annotated[
    str | None,
    typer.Option("--toolkit", metavar="VERSION", help="NVIDIA toolkit version, such as 1.19.1-1."),
]
_Docker = Annotated[
    str | None,
    typer.Option("--docker", metavar="URL", help="Docker's repository; on Debian, for docker-ce."),
]
_DockerKey = Annotated[
    Path | None,
    typer.Option(
        "--docker-key", metavar="FILE", help="Signing key of --docker; default: Docker's."
    ),
]
_Nvidia = Annotated[
    str | None, typer.Option("--nvidia", metavar="URL", help="Mirror of NVIDIA's repository.")
]
_NvidiaKey = Annotated[
    Path | None,
    typer.Option(
        "--nvidia-key", metavar="FILE", help="Signing key of --nvidia; default: NVIDIA's."
    ),
]
_Mirror = Annotated[
    str | None,
    typer.Option("--mirror", metavar="URL", help="Mirror of the system's own packages."),
]
_Keyring = Annotated[
    Path | None,
    typer.Option("--keyring", metavar="FILE", help="Signing keys of the system's packages."),
]


@app.command("packages")
@guarded
def packages(
    target: _Target,
    output: _Output,
    arch: _Arch = "x86_64",
    engine_only: _EngineOnly = False,
    toolkit: _Toolkit = None,
    docker: _Docker = None,
    docker_key: _DockerKey = None,
    nvidia: _Nvidia = None,
    nvidia_key: _NvidiaKey = None,
    mirror: _Mirror = None,
    keyring: _Keyring = None,
    as_json: options.Json = False,
) -> None:
    """Download the engine, NVIDIA's toolkit and what they need."""
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
        document = {
            "for": system.name,
            "architecture": arch,
            "path": str(made.path),
            "bytes": made.size,
            "files": list(made.files),
        }
        print(json.dumps(document, indent=2))
    else:
        what = f"{count(len(made.files), 'package')}, {size(made.size)}, for {system.name}"
        print(f"{what}: name it in the inventory\npackages: {{offline: {made.path}}}")
