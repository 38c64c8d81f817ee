"""The command line: the list of commands. Each has its own file beside this one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from clusterctl.cli import (
    apply,
    batch,
    bench,
    bootstrap,
    check,
    diagnose,
    down,
    drain,
    exec_,
    fit,
    image,
    init,
    key,
    lab,
    logs,
    metrics,
    model,
    packages,
    remove,
    report,
    restart,
    run,
    serve,
    shell,
    soak,
    status,
    stop,
    tunnel,
    version,
)
from clusterctl.cli.program import Commands, VllmCommand
from clusterctl.inventory.current import VARIABLE

app = Commands(
    "Bare Linux GPU hosts become a Ray cluster that serves models with vLLM, over SSH.",
    name="clusterctl",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(version.version_line())
        raise typer.Exit(0)


@app.callback()
def _root(
    _version_wanted: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    inventory: Annotated[
        Path | None,
        typer.Option(
            "-i",
            "--inventory",
            metavar="FILE",
            help="Inventory for any command; a command's own -i overrides it.",
        ),
    ] = None,
) -> None:
    """Put the program's -i into the environment, from which commands read it; their own -i wins."""
    if inventory is not None:
        os.environ[VARIABLE] = str(inventory)


app.command("init")(init.init)
app.command("bootstrap")(bootstrap.bootstrap)
app.command("plan")(bootstrap.plan)
app.command("check")(check.check)
app.command("fit", cls=VllmCommand)(fit.fit)
app.command("serve", cls=VllmCommand)(serve.serve)
app.command("apply")(apply.apply)
app.command("batch")(batch.batch)
app.command("bench")(bench.bench)
app.command("soak")(soak.soak)
app.command("run", context_settings={"allow_interspersed_args": False})(run.run)
app.command("status")(status.status)
app.command("restart")(restart.restart)
app.command("stop")(stop.stop)
app.command("drain")(drain.drain)
app.command("undrain")(drain.undrain)
app.command("remove")(remove.remove)
app.command("down")(down.down)
app.command("logs")(logs.logs)
app.command("metrics")(metrics.metrics)
app.command("report")(report.report)
app.command("diagnose")(diagnose.diagnose)
app.command("version")(version.version)
app.command("exec", context_settings={"allow_interspersed_args": False})(exec_.exec_)
app.command("ssh", context_settings={"allow_interspersed_args": False})(shell.ssh)
app.command("tunnel")(tunnel.tunnel)
app.add_typer(image.app, name="image")
app.add_typer(packages.app, name="packages")
app.add_typer(model.app, name="model")
app.add_typer(key.app, name="key")
app.add_typer(lab.app, name="lab")
