"""The command line: the list of commands. Each has its own file in this directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from clusterctl.cli import (
    adapter,
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
    scale,
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
    """Put the program's -i into the environment, where commands read it; their own -i wins."""
    if inventory is not None:
        os.environ[VARIABLE] = str(inventory)


SET_UP, SERVE, INSPECT, MAINTAIN = "Set up", "Serve", "Inspect", "Maintain"
FILES = "Images, models and packages"

# What follows the command's first word is another program's
RAW = {"allow_interspersed_args": False}

app.command("init", rich_help_panel=SET_UP)(init.init)
app.command("check", rich_help_panel=SET_UP)(check.check)
app.command("plan", rich_help_panel=SET_UP)(bootstrap.plan)
app.command("bootstrap", rich_help_panel=SET_UP)(bootstrap.bootstrap)
app.command("down", rich_help_panel=SET_UP)(down.down)
app.add_typer(lab.app, name="lab", rich_help_panel=SET_UP)
app.command("fit", cls=VllmCommand, rich_help_panel=SERVE)(fit.fit)
app.command("serve", cls=VllmCommand, rich_help_panel=SERVE)(serve.serve)
app.command("apply", rich_help_panel=SERVE)(apply.apply)
app.command("scale", rich_help_panel=SERVE)(scale.scale)
app.command("restart", rich_help_panel=SERVE)(restart.restart)
app.command("stop", rich_help_panel=SERVE)(stop.stop)
app.command("batch", rich_help_panel=SERVE)(batch.batch)
app.command("run", context_settings=RAW, rich_help_panel=SERVE)(run.run)
app.add_typer(adapter.app, name="adapter", rich_help_panel=SERVE)
app.add_typer(key.app, name="key", rich_help_panel=SERVE)
app.command("status", rich_help_panel=INSPECT)(status.status)
app.command("logs", rich_help_panel=INSPECT)(logs.logs)
app.command("bench", rich_help_panel=INSPECT)(bench.bench)
app.command("soak", rich_help_panel=INSPECT)(soak.soak)
app.command("metrics", rich_help_panel=INSPECT)(metrics.metrics)
app.command("report", rich_help_panel=INSPECT)(report.report)
app.command("version", rich_help_panel=INSPECT)(version.version)
app.command("tunnel", rich_help_panel=INSPECT)(tunnel.tunnel)
app.command("diagnose", rich_help_panel=MAINTAIN)(diagnose.diagnose)
app.command("drain", rich_help_panel=MAINTAIN)(drain.drain)
app.command("undrain", rich_help_panel=MAINTAIN)(drain.undrain)
app.command("remove", rich_help_panel=MAINTAIN)(remove.remove)
app.command("exec", context_settings=RAW, rich_help_panel=MAINTAIN)(exec_.exec_)
app.command("ssh", context_settings=RAW, rich_help_panel=MAINTAIN)(shell.ssh)
app.add_typer(image.app, name="image", rich_help_panel=FILES)
app.add_typer(model.app, name="model", rich_help_panel=FILES)
app.add_typer(packages.app, name="packages", rich_help_panel=FILES)
