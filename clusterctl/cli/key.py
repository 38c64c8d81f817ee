"""`key`: named API keys."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty
from clusterctl.cli.program import Commands

if TYPE_CHECKING:
    from clusterctl.commands.key import KeysInEffect
    from clusterctl.survey.survey import Survey

app = Commands("Named API keys of the gateway: create, list and revoke them.")

_Name = Annotated[str, typer.Argument(metavar="NAME", help="User or program that the key is for.")]


@app.command("create")
@guarded
def create(
    name: _Name,
    requests: Annotated[
        str | None,
        typer.Option("--requests", metavar="N/min", help="Requests per minute; default: no limit."),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option("--tokens", metavar="N/day", help="Tokens per day (UTC): 1M/day."),
    ] = None,
    models: Annotated[
        str,
        typer.Option(
            "--models", metavar="A,B", help="Models and adapters it is for; default: all."
        ),
    ] = "",
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Create an API key and print it once; only its hash is stored."""
    from clusterctl.cli.session import session
    from clusterctl.commands.key import create as run
    from clusterctl.serving.keys import limit

    of_requests = limit(requests, "--requests", "min") if requests is not None else 0
    of_tokens = limit(tokens, "--tokens", "day") if tokens is not None else 0
    named = models.split(",") if models else []
    with session("key", inventory, quiet=True) as opened:
        key, followed = run(opened, name, of_requests, of_tokens, named)
    for model in named:
        if model not in followed.served:
            print(f"note: nothing is served as {model} now", file=sys.stderr)
    print(pretty({"name": name, "key": key}) if as_json else key)
    _note(followed)


_HEADS = (
    "NAME", "REQUESTS/MIN", "TOKENS/DAY", "REQUESTS", "TOKENS READ", "GENERATED", "TODAY", "MODELS",
)  # fmt: skip


@app.command("ls")
@guarded
def ls(inventory: options.Inventory = None, as_json: options.Json = False) -> None:
    """List the keys with their limits and usage."""
    from clusterctl.cli.session import session
    from clusterctl.commands.key import list_keys
    from clusterctl.reporting.text import columns

    with session("key", inventory, quiet=True) as opened:
        found = list_keys(opened)
    if as_json:
        shown = [
            {
                **{name: value for name, value in asdict(one.key).items() if name != "sha256"},
                **asdict(one.use),
            }
            for one in found
        ]
        print(pretty(shown))
        return
    if not found:
        print("No keys.")
        return
    rows: list[tuple[str, ...]] = [_HEADS]
    rows += [
        (
            one.key.name,
            str(one.key.requests_per_minute or "any"),
            str(one.key.tokens_per_day or "any"),
            str(one.use.requests),
            str(one.use.prompt_tokens),
            str(one.use.completion_tokens),
            f"{one.use.tokens_of_day} on {one.use.day}" if one.use.day else "-",
            ",".join(one.key.models) or "any",
        )
        for one in found
    ]
    print("\n".join(columns(rows, indent="")))


@app.command("revoke")
@guarded
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Key name, as shown by `key ls`.")],
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Revoke an API key: the gateway rejects it from now on."""
    from clusterctl.cli.session import session
    from clusterctl.commands.key import revoke as run

    with session("key", inventory, quiet=True) as opened:
        followed = run(opened, name)
    print(pretty({"revoked": name}) if as_json else f"{name} is revoked")
    _note(followed)


@app.command("rotate")
@guarded
def rotate(
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Replace the cluster's own key; services restart with it.

    Replicas restart one at a time: services with several lose no request.
    """
    from clusterctl.cli.session import require_consent, session, show_changes
    from clusterctl.commands.key import replace_own
    from clusterctl.operations.restarting import plan_restart
    from clusterctl.operations.restarting import run as restart

    with session("key", inventory, quiet=as_json) as opened:

        def agree(survey: Survey) -> None:
            plans = [plan_restart(survey, name) for name in survey.services]
            lines = ["replace api.key", *(line for plan in plans for line in plan.lines)]
            show_changes(lines, {"changes": lines}, dry_run=dry_run, as_json=as_json)
            if any(plan.interrupts for plan in plans):
                question = "Services without other replicas stop meanwhile"
                declined = "a service would be unavailable"
                require_consent(question, declined, yes=yes, progress=opened.progress)

        names = replace_own(opened, agree=agree)
        for name in names:
            restart(opened, name, agree=lambda _: None)
    if as_json:
        print(pretty({"restarted": list(names)}))
    else:
        print("the cluster has a new api.key; the old one is refused")


def _note(followed: KeysInEffect) -> None:
    """Print where keys have no effect: without a gateway, and on hosts that do not answer."""
    for host in followed.away:
        print(
            f"note: {host} does not answer; if it is only disconnected, its gateway uses the "
            "previous keys until it reaches the head again",
            file=sys.stderr,
        )
    gateway = followed.gateway
    if gateway.state == "up":
        return
    if gateway.state == "absent":
        text = "the node image has no HAProxy, so there is no gateway: see docs/gateway.md"
    elif gateway.state == "idle":
        text = "no service is declared, so the gateway does not run yet"
    else:
        why = f" ({gateway.detail})" if gateway.detail else ""
        text = f"the gateway is {gateway.state}{why} and will use the keys once it is up"
    print(f"note: {text}", file=sys.stderr)
