"""`fit`: what a model needs, before anything starts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.serving.fit.exact import Exact
    from clusterctl.serving.fit.request import FitReport
    from clusterctl.workflows.fit import Asked


_Probe = Annotated[
    bool,
    typer.Option(
        "--probe",
        help="Ask the vLLM in the running nodes' image too, and say what differs (20 s).",
    ),
]


@guarded
def fit(
    model: Annotated[
        str, typer.Argument(help="Alias, Hub id, a directory with config.json, or that file.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="After --: flags of `vllm serve` to plan for.")
    ] = None,
    tp: Annotated[int | None, typer.Option("--tp", min=1, help="Tensor parallel size.")] = None,
    pp: Annotated[int | None, typer.Option("--pp", min=1, help="Pipeline parallel size.")] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus",
            help="Each host's GPUs: 2xH200, or NAME:GiB. Needs no cluster; "
            "default: the inventory's.",
        ),
    ] = None,
    hosts: Annotated[int, typer.Option("--hosts", help="Hosts with those GPUs.")] = 1,
    vllm: Annotated[
        str | None, typer.Option("--vllm", help="Version whose rules apply: 0.25.1.")
    ] = None,
    network: Annotated[
        str | None, typer.Option("--network", help="Link between hosts: 25Gbit, or 4GB/s.")
    ] = None,
    max_model_len: Annotated[
        str | None, typer.Option("--max-model-len", help="Context: 8192, 32K, auto.")
    ] = None,
    utilization: Annotated[
        str | None, typer.Option("--gpu-memory-utilization", help="Share of each GPU: 0.9.")
    ] = None,
    probe: _Probe = False,
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Memory per rank, KV cache and requests at once; layouts that fit. Starts nothing.

    Exit 11 when it does not fit, with the nearest settings that would.
    """
    from clusterctl.workflows.fit import Asked

    given = [
        *(["--max-model-len", max_model_len] if max_model_len is not None else []),
        *(["--gpu-memory-utilization", utilization] if utilization is not None else []),
        *(arguments or ()),
    ]
    asked = Asked(model, tp, pp, gpus, hosts, vllm, network, tuple(given), probe)
    _show(*_answers(asked, inventory), as_json=as_json)


def _answers(asked: Asked, inventory: Path | None) -> tuple[FitReport, Exact | None]:
    from clusterctl.errors import UsageError

    if asked.gpus is not None:
        from clusterctl.workflows.fit import without_cluster

        if asked.probe:
            raise UsageError(
                "--probe asks hosts, and --gpus means hosts that are not there",
                hint="leave one of them out",
            )
        return without_cluster(asked), None
    from clusterctl.cli.session import credentials, load_inventory
    from clusterctl.workflows.fit_cluster import run

    if asked.hosts != 1:
        raise UsageError("--hosts counts hosts with the GPUs of --gpus", hint="--gpus 2xH200")
    try:
        loaded = load_inventory(inventory)
    except UsageError as none:
        raise UsageError(none.summary, hint=f"--gpus 2xH200, or {none.hint}") from none
    fitted = run(loaded, asked, credentials())
    return fitted.report, fitted.exact


def _show(report: FitReport, exact: Exact | None, *, as_json: bool) -> None:
    """The report on stdout; what keeps it from fitting ends the command."""
    from clusterctl.errors import DoesNotFit

    document = report.to_json() | ({"probe": exact.to_json()} if exact else {})
    if as_json:
        print(json.dumps(document, indent=2))
        if report.refused:
            raise typer.Exit(DoesNotFit.exit_code)
        return
    from clusterctl.reporting.fit_view import fit_lines

    print("\n".join(fit_lines(document)))
    if report.refused:
        raise typer.Exit(DoesNotFit.exit_code)
