"""`fit --probe`: the image's own vLLM is asked, in the node containers, and starts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from clusterctl.containers.docker_driver import DockerDriver
from clusterctl.errors import RequirementsNotMet, StepFailed, UsageError, raise_all
from clusterctl.inventory.model import Inventory
from clusterctl.planning.exact import (
    Answer,
    Exact,
    exact,
    hosts_to_ask,
    question,
    read_answer,
    script,
)
from clusterctl.planning.request import FitReport, Question
from clusterctl.ray_cluster.nodes import container_name
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import failures, fan_out, values

PROBE_TIMEOUT = 300.0
"""Seconds. Importing vLLM took 10 to 40 s on two CPU cores, a stage under one."""


def ask_images(
    inventory: Inventory,
    transports: Mapping[str, Transport],
    asked: Question,
    report: FitReport,
    config: Mapping[str, Any] | None,
) -> Exact:
    """One host of each GPU type is asked. Raises UsageError without a config.json,
    RequirementsNotMet where no node container runs, StepFailed where vLLM does not answer."""
    if config is None:
        raise UsageError(
            "--probe needs the model's config.json, and no host has it",
            hint="give a directory with config.json, or bring the model to the hosts",
        )
    hosts = hosts_to_ask(report.plan)
    text = question(report.plan, config, asked.arguments, asked.env)
    chosen = {host: transports[host] for host in hosts.values()}
    found = fan_out(chosen, partial(_ask, inventory, text))
    raise_all(failures(found))
    answers = values(found)
    return exact(report.plan, {gpu: answers[host] for gpu, host in hosts.items()})


def _ask(inventory: Inventory, text: bytes, transport: Transport) -> Answer:
    driver, host = DockerDriver(transport), transport.host.name
    container = container_name(inventory.cluster)
    there = driver.find(container)
    if there is None or not there.running:
        raise RequirementsNotMet(
            "the node container does not run, and --probe asks the vLLM in it",
            host=host,
            hint=f"clusterctl bootstrap {inventory.file}",
        )
    argv = ["python3", "-c", script()]
    result = driver.exec(container, argv, stdin=text, timeout=PROBE_TIMEOUT)
    try:
        return read_answer(result.stdout)
    except ValueError:
        raise StepFailed(
            "the image's vLLM could not be asked; what was predicted stands",
            host=host,
            hint="clusterctl fit without --probe",
            detail=result.last_lines(),
        ) from None
