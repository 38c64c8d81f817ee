"""`serve`: serve a model on the cluster."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty

if TYPE_CHECKING:
    from clusterctl.operations.serving import Changes, Served
    from clusterctl.serving.endpoint import ServiceAnswer


_Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="Alias, Hub id, or path on the hosts; default: `model` of the --config file.",
        autocompletion=options.complete_models,
    ),
]
_Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- FLAG", help="vLLM flags; -- is needed only where names clash."),
]
_Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Name of the service; default: the model's."),
]
_Port = Annotated[
    int | None,
    typer.Option(
        "--port",
        metavar="N",
        min=1,
        max=65535,
        help="Port of the API; default: the first free from 8000.",
    ),
]
_StallTimeout = Annotated[
    float | None,
    typer.Option(
        "--stall-timeout",
        metavar="SECONDS",
        min=10,
        help="Restart vLLM if pending requests make no progress for this long; default: 50.",
    ),
]


_Replicas = Annotated[
    str | None,
    typer.Option(
        "--replicas",
        metavar="N|max|N..M",
        help="Number of replicas; 1..4: at least 1 awake, others as needed. Default: the "
        "current number, or 1.",
    ),
]
_TimeToFirstToken = Annotated[
    float | None,
    typer.Option(
        "--ttft",
        metavar="SECONDS",
        min=0.1,
        help="With --replicas N..M: wake more if first tokens take longer than this.",
    ),
]


_DataParallel = Annotated[
    int | None,
    typer.Option(
        "--dp",
        metavar="N",
        min=1,
        help="Data parallel size (vLLM's own), for mixtures of experts; default: 1.",
    ),
]
_ExpertParallel = Annotated[
    bool, typer.Option("--ep", help="Split the experts over all ranks (expert parallel).")
]
_GpuShare = Annotated[
    float | None,
    typer.Option(
        "--gpu-share",
        metavar="PART",
        help="Share of one GPU to use, such as 0.3; others share the rest; default: all.",
    ),
]


_Idle = Annotated[
    str | None,
    typer.Option(
        "--idle",
        metavar="TIME",
        help="Sleep after this time without a request, such as 10m; the next one wakes it.",
    ),
]

_Standby = Annotated[
    bool,
    typer.Option(
        "--standby",
        help="Keep a second engine asleep on the same GPUs, which takes over when the first fails.",
    ),
]

_Swap = Annotated[
    bool,
    typer.Option(
        "--swap",
        help="Let another service have its GPUs in turn: one sleeps while the other has requests.",
    ),
]

_SwapWith = Annotated[
    str | None,
    typer.Option(
        "--swap-with",
        metavar="NAME",
        help="Have the GPUs of the service NAME, which has --swap, in turn with it.",
    ),
]


@guarded
def serve(
    model: _Model = None,
    arguments: _Arguments = None,
    tp: options.TensorParallel = None,
    pp: options.PipelineParallel = None,
    replicas: _Replicas = None,
    ttft: _TimeToFirstToken = None,
    on: options.On = None,
    dp: _DataParallel = None,
    ep: _ExpertParallel = False,
    gpu_share: _GpuShare = None,
    idle: _Idle = None,
    standby: _Standby = False,
    swap: _Swap = False,
    swap_with: _SwapWith = None,
    name: _Name = None,
    port: _Port = None,
    config: options.VllmConfig = None,
    stall_timeout: _StallTimeout = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Serve MODEL with vLLM and verify that it answers. A second run changes nothing."""
    from clusterctl.cli.session import require_consent, session
    from clusterctl.commands.serve import run
    from clusterctl.errors import CHANGES_PENDING
    from clusterctl.serving.config_file import read_config_file
    from clusterctl.serving.request import Options, read_request
    from clusterctl.serving.vllm_flags import parse_arguments

    given = Options(
        model=model,
        tensor_parallel=tp,
        pipeline_parallel=pp,
        name=name,
        port=port,
        stall_timeout=stall_timeout,
        replicas=replicas,
        ttft=ttft,
        on=on,
        data_parallel=dp,
        expert_parallel=ep,
        gpu_share=gpu_share,
        idle=idle,
        standby=standby,
        swap=swap,
        swap_with=swap_with,
    )
    file = read_config_file(config) if config else ()
    request = read_request(given, file, parse_arguments(arguments or ()))
    with session("serve", inventory, quiet=as_json) as opened:

        def agree(changes: Changes) -> None:
            if not as_json:
                lines = ["Nothing to change: the service already runs like this."]
                if changes.lines:
                    head = "This restarts the service:" if changes.restarts else "To do:"
                    lines = [head, *(f"  {line}" for line in changes.lines)]
                print("\n".join(lines), file=sys.stderr)
            if dry_run:
                _show_plan(changes, as_json=as_json)
                raise typer.Exit(CHANGES_PENDING if changes.lines else 0)
            if changes.restarts or changes.drops:
                without = f" without {', '.join(changes.drops)}" if changes.drops else ""
                question = f"This restarts the service{without}"
                declined = f"the service would restart{without}"
                hint = "add --yes; to change only the number of replicas: clusterctl scale"
                require_consent(question, declined, yes=yes, progress=opened.progress, hint=hint)

        served = run(opened, request, agree=agree)
    if as_json:
        print(pretty(_document(served)))
    else:
        _print(served)


def _document(served: Served) -> dict[str, Any]:
    """Return the result for --json."""
    from clusterctl.ray_cluster.topology import base_url

    plan, proof, location = served.plan, served.proof, served.plan.location
    replicas = []
    for each in plan.replicas:
        document, own = each.document, served.proofs[each.document.name]
        replicas.append(
            {
                "name": document.name,
                "host": each.layout.hosts[0],
                "endpoint": f"{base_url(document.host, document.port)}/v1",
                "ranks": [asdict(rank) for rank in own.ranks],
                "ready_seconds": own.ready_seconds,
            }
        )
    return {
        "service": plan.document.service,
        "endpoint": f"{plan.endpoint.url}/v1",
        "changed": served.changed,
        "ranks": [asdict(rank) for rank in proof.ranks],
        "answer": asdict(proof.answer),
        "replicas": replicas,
        "ready_seconds": proof.ready_seconds,
        "random_weights": bool(location and location.random_weights),
        "predicted": plan.fit.plan.to_json() if plan.fit else None,
        "reported": served.outcome.to_json() if served.outcome else [],
        "notices": list(served.notices),
    }


def _print(served: Served) -> None:
    from clusterctl.ray_cluster.topology import base_url

    plan, proof, location = served.plan, served.proof, served.plan.location
    print(f"{plan.document.service} is served at {plan.endpoint.url}/v1")
    for url in plan.other_urls:
        print(f"  also at     {url}/v1")
    if location and location.note:
        print(f"  weights     {location.note}")
    for each in plan.replicas:
        name = each.document.name
        own = base_url(each.document.host, each.document.port)
        print(f"  replica     {name}: {own}/v1, {served.proofs[name].placement}")
    print(f"  {_answer(proof.answer)}")
    if served.outcome and served.outcome.sentence:
        print(f"  KV cache    {served.outcome.sentence}")
    print(f"  ready       {proof.ready_seconds:.0f} s after vLLM started")
    for notice in served.notices:
        print(f"  note        {notice}")
    _print_lines_to_paste(served)


def _print_lines_to_paste(served: Served) -> None:
    from clusterctl.serving.endpoint import (
        certificate_line,
        curl_line,
        key_line,
        models_line,
        python_client,
    )

    plan = served.plan
    print("\nTry it yourself (the key is not printed):")
    print(key_line(served.head, served.key_file, sudo=served.sudo))
    if trust := plan.endpoint.trust:
        print(certificate_line(served.head, served.certificate_file, trust, sudo=served.sudo))
    print(models_line(plan.endpoint))
    print(curl_line(replace(plan.endpoint, kind=served.proof.kind)))
    print(f"In Python: {python_client(plan.endpoint)}")


def _show_plan(changes: Changes, *, as_json: bool) -> None:
    """Print the prediction and the notes; with `as_json`, one document that also has the changes,
    which otherwise go to stderr."""
    report = changes.fit.to_json() if changes.fit else None
    if as_json:
        document = {
            "changes": list(changes.lines),
            "restarts": changes.restarts,
            "notes": list(changes.notes),
            "fit": report,
        }
        print(pretty(document))
        return
    from clusterctl.reporting.fit_view import plan_lines
    from clusterctl.reporting.text import each_below_itself, line_width

    width = line_width(sys.stdout)
    lines = plan_lines(report, width=width) if report else []
    print("\n".join([*lines, *each_below_itself("note: ", changes.notes, width)]))


def _answer(answer: ServiceAnswer) -> str:
    """Return the answer that proved the service, as a line."""
    from clusterctl.kinds.known import kind_named

    kind = kind_named(answer.kind)
    if kind.name != "text":
        return f"answers     {kind.result}, {answer.text}, in {answer.seconds:.2f} s"
    # With random weights an answer may contain anything.
    text = "".join(char if char.isprintable() else " " for char in answer.text)
    short = repr(text if len(text) <= 60 else text[:57] + "...")
    return f"completion  {answer.tokens} tokens in {answer.seconds:.1f} s: {short}"
