"""`init`: look at hosts and write their inventory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from clusterctl.cli.guard import guarded

IMAGE = "vllm/vllm-openai:v0.33.0"
"""What README and docs run."""


@guarded
def init(
    hosts: Annotated[
        list[str],
        typer.Argument(
            help="HOST, USER@HOST or HOST:PORT; HOST: an address, a name, or an alias of "
            "~/.ssh/config."
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write; - prints.")] = Path(
        "inventory.yaml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    user: Annotated[str | None, typer.Option("--user", help="SSH user.")] = None,
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535, help="SSH port.")] = None,
    identity: Annotated[Path | None, typer.Option("--identity", help="Private key.")] = None,
    known_hosts: Annotated[
        Path | None, typer.Option("--known-hosts", help="File with the hosts' keys.")
    ] = None,
    accept_new: Annotated[
        bool,
        typer.Option(
            "--accept-new-host-keys",
            "--accept-new",
            help="Remember the key of a host never seen, unasked; a changed key still fails.",
        ),
    ] = False,
    cluster: Annotated[str, typer.Option("--cluster", help="Name of the cluster.")] = "demo",
    image: Annotated[str, typer.Option("--image", help="Container image with vLLM.")] = IMAGE,
    models: Annotated[
        str, typer.Option("--models", help="Directory of models, on every host.")
    ] = "/data/models",
    accelerator: Annotated[
        Literal["nvidia", "cpu"], typer.Option("--accelerator", help="cpu is for trying out.")
    ] = "nvidia",
    subnet: Annotated[
        str | None, typer.Option("--subnet", help="The network to use; default: chosen.")
    ] = None,
) -> None:
    """Look at hosts over SSH and write their inventory, every choice explained in it."""
    from clusterctl.cli.discovery import deliver, insist_on_room, look
    from clusterctl.workflows.init import Wishes, ssh_of

    insist_on_room(output, force=force)
    ssh = ssh_of(user=user, port=port, identity_file=identity, known_hosts=known_hosts)
    wishes = Wishes(cluster, image, models, accelerator, subnet, ssh)
    deliver(wishes, look(hosts, wishes, accept_new=accept_new), output)
