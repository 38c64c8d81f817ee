"""`fit`: forecast a model's needs before anything starts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty

if TYPE_CHECKING:
    from clusterctl.models.shape import ModelShape
    from clusterctl.serving.vllm_flags import Argument

_Ask = Annotated[
    bool,
    typer.Option(
        "--ask",
        help="Ask the image's vLLM for weights and KV cache even where the formula is proven.",
    ),
]

_Standby = Annotated[
    bool,
    typer.Option(
        "--standby", help="Leave room for a second engine, which sleeps on the same GPUs."
    ),
]


_Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="Alias, Hub id, a directory with config.json, or that file; default: as in --config.",
        autocompletion=options.complete_models,
    ),
]
_Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- FLAG",
        help="vLLM flags; -- is needed only where names clash.",
    ),
]
_Gpus = Annotated[
    list[str] | None,
    typer.Option(
        "--gpus",
        metavar="GPUS",
        help="A host's GPUs, without a cluster: 2xH200, or NAME:GiB; repeat for different hosts.",
    ),
]
_Vllm = Annotated[
    str | None,
    typer.Option(
        "--vllm",
        metavar="VERSION",
        help="vLLM version to plan for, such as 0.25.1; default: the cluster's.",
    ),
]
_Network = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="RATE",
        help="Link speed between hosts: 25Gbit; default: measured, or 4GB/s.",
    ),
]
_MaxModelLen = Annotated[
    str | None,
    typer.Option(
        "--max-model-len",
        metavar="TOKENS",
        help="Context: 8192, 32K, auto; default: the model's.",
    ),
]
_Utilization = Annotated[
    str | None,
    typer.Option(
        "--gpu-memory-utilization",
        metavar="SHARE",
        help="Share of each GPU's memory, such as 0.9; default: vLLM's.",
    ),
]


@guarded
def fit(
    model: _Model = None,
    arguments: _Arguments = None,
    tp: options.TensorParallel = None,
    pp: options.PipelineParallel = None,
    gpus: _Gpus = None,
    hosts: Annotated[
        int, typer.Option("--hosts", metavar="N", help="Number of hosts, with --gpus.")
    ] = 1,
    vllm: _Vllm = None,
    network: _Network = None,
    on: options.On = None,
    max_model_len: _MaxModelLen = None,
    utilization: _Utilization = None,
    config: options.VllmConfig = None,
    ask: _Ask = False,
    standby: _Standby = False,
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Show memory per rank, KV cache and layouts that fit. Starts nothing.

    Exit 11 when it does not fit, with the nearest settings that would; 12 when the figures are not
    proven for this kind of model.
    """
    from clusterctl.errors import UNPROVEN, DoesNotFit, UsageError
    from clusterctl.planning.fit_request import FitArguments, without_cluster

    given = [
        *(["--max-model-len", max_model_len] if max_model_len is not None else []),
        *(["--gpu-memory-utilization", utilization] if utilization is not None else []),
        *(arguments or ()),
    ]
    named = tuple(gpus) if gpus else None
    file: tuple[Argument, ...] = ()
    if config:
        from clusterctl.serving.config_file import read_config_file

        file = read_config_file(config)
    asked = FitArguments(
        model or "", tp, pp, named, hosts, vllm, network, tuple(given), on, ask, file, standby
    )
    if gpus and ask:
        raise UsageError(
            "--ask asks the cluster's hosts, but --gpus plans without a cluster",
            hint="omit one of them",
        )
    if gpus and on:
        raise UsageError(
            "--on names hosts of a cluster, but --gpus plans without a cluster",
            hint="omit one of them",
        )
    if gpus:
        report = without_cluster(asked, _shape_on_hub)
    elif hosts != 1:
        raise UsageError("--hosts needs --gpus", hint="--gpus 2xH200")
    else:
        from clusterctl.cli.session import credentials, load_inventory
        from clusterctl.commands.fit import run

        try:
            loaded = load_inventory(inventory)
        except UsageError as none:
            raise UsageError(none.summary, hint=f"--gpus 2xH200, or {none.hint}") from none
        report = run(loaded, asked, credentials(), _shape_on_hub)
    document = report.to_json()
    if as_json:
        print(pretty(document))
    else:
        from clusterctl.reporting.fit_view import fit_lines
        from clusterctl.reporting.text import line_width

        print("\n".join(fit_lines(document, width=line_width(sys.stdout))))
    if report.refused:  # vLLM certainly cannot start like this
        raise typer.Exit(DoesNotFit.exit_code)
    if report.unproven:
        raise typer.Exit(UNPROVEN)


def _shape_on_hub(model_id: str) -> ModelShape:
    """Return the shape of a model on the Hub, and print to stderr what was read."""
    from clusterctl.models.config_json import describe
    from clusterctl.planning.weights import compared_with_files
    from clusterctl.transfer.weights.huggingface import config_on_hub

    found = config_on_hub(model_id)
    print(f"config.json of {model_id}: from {found.origin}", file=sys.stderr)
    return compared_with_files(describe(found.config, model_id), found.weights)
