"""`init`: probe hosts and write their inventory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clusterctl.accelerators.names import DEFAULT, MODULES
from clusterctl.cli.guard import guarded

IMAGE = "vllm/vllm-openai:v0.33.0"  # The image used in README and docs

_AS_SSH = "default: from ssh's configuration"

_Hosts = Annotated[
    list[str],
    typer.Argument(
        metavar="HOST",
        help="An address, a name, or an alias of ~/.ssh/config; USER@HOST, HOST:PORT.",
    ),
]
_Output = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE", help="File to write; - prints it.")
]
_User = Annotated[str | None, typer.Option("--user", metavar="NAME", help=f"SSH user; {_AS_SSH}.")]
_Port = Annotated[
    int | None,
    typer.Option("--port", metavar="N", min=1, max=65535, help=f"SSH port; {_AS_SSH}."),
]
_Identity = Annotated[
    Path | None, typer.Option("--identity", metavar="FILE", help=f"Private key; {_AS_SSH}.")
]
_KnownHosts = Annotated[
    Path | None,
    typer.Option("--known-hosts", metavar="FILE", help=f"File of host keys; {_AS_SSH}."),
]
_AcceptNew = Annotated[
    bool,
    typer.Option(
        "--accept-new-host-keys",
        "--accept-new",
        help="Save unknown host keys without asking; a changed key still fails.",
    ),
]
_Cluster = Annotated[str, typer.Option("--cluster", metavar="NAME", help="Name of the cluster.")]
_Image = Annotated[str, typer.Option("--image", metavar="IMAGE", help="Container image with vLLM.")]
_Models = Annotated[
    str, typer.Option("--models", metavar="PATH", help="Directory of models, on every host.")
]
if TYPE_CHECKING:
    _AcceleratorName = str
else:
    _AcceleratorName = Literal[tuple(MODULES)]
_Accelerator = Annotated[
    _AcceleratorName,
    typer.Option("--accelerator", help="Device that models run on; cpu is for experiments."),
]
_Subnet = Annotated[
    str | None,
    typer.Option("--subnet", metavar="CIDR", help="Network between hosts; default: chosen."),
]


@guarded
def init(
    hosts: _Hosts,
    output: _Output = Path("inventory.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    user: _User = None,
    port: _Port = None,
    identity: _Identity = None,
    known_hosts: _KnownHosts = None,
    accept_new: _AcceptNew = False,
    cluster: _Cluster = "demo",
    image: _Image = IMAGE,
    models: _Models = "/data/models",
    accelerator: _Accelerator = DEFAULT,
    subnet: _Subnet = None,
) -> None:
    """Probe hosts over SSH and write their inventory. Comments explain every choice."""
    from clusterctl.cli.discovery import deliver, insist_on_room, look
    from clusterctl.commands.init import ssh_of
    from clusterctl.survey.inventory_text import InitOptions

    insist_on_room(output, force=force)
    ssh = ssh_of(user=user, port=port, identity_file=identity, known_hosts=known_hosts)
    asked = InitOptions(cluster, image, models, accelerator, subnet, ssh)
    deliver(asked, look(hosts, asked, accept_new=accept_new), output)
