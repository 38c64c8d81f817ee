"""`diagnose`: causes of failures, with evidence and fix."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty
from clusterctl.errors import DEGRADED, ClusterctlError, UsageError


@guarded
def diagnose(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME|FILE|DIR",
            help="A service, logs, directories (`-`: stdin) or a bundle; default: the cluster.",
            show_default=False,
        ),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            metavar="FILE.tar.zst",
            help="Also write a support bundle, with secrets and prompts removed.",
            show_default=False,
        ),
    ] = None,
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Name causes of failures in logs, with evidence and fix. Exit 0 no failure, 8 a failure."""
    from clusterctl.commands.diagnose import of_cluster, of_files
    from clusterctl.reporting.diagnosis_view import cause_lines, unfinished_lines
    from clusterctl.reporting.error_view import error_document, error_lines

    names = what or []
    missed: tuple[ClusterctlError, ...] = ()
    unfinished: dict[str, str] = {}
    paths = [Path(name) for name in names if name == "-" or "/" in name or Path(name).exists()]
    if names and len(paths) == len(names):
        if bundle:
            raise UsageError("--bundle is for a cluster, not for files", hint="omit the files")
        causes, unfinished = of_files(paths)
    elif len(names) > 1:
        raise UsageError(
            f"there is no file {next(name for name in names if not Path(name).exists())}",
            hint="clusterctl diagnose NAME for a service, or only paths of logs",
        )
    else:
        from clusterctl.cli.session import session

        with session("diagnose", inventory, quiet=as_json) as opened:
            service = names[0] if names else None
            causes, missed = of_cluster(opened, service, bundle)
    if bundle:
        size = bundle.stat().st_size / 2**20
        print(f"wrote {bundle}, {size:.1f} MiB: read it before you send it", file=sys.stderr)
    if as_json:
        unread = {"unread": [error_document(error) for error in missed]} if missed else {}
        print(pretty({"causes": [asdict(cause) for cause in causes], **unread}))
    else:
        for error in missed:
            print("\n".join(error_lines(error)), file=sys.stderr)
        print("\n".join(cause_lines(causes)) or "no failure found")
        if not causes:
            print("".join(f"{line}\n" for line in unfinished_lines(unfinished)), end="")
    present = [cause for cause in causes if not cause.over and not cause.by_clients]
    raise typer.Exit(DEGRADED if present or missed else 0)
