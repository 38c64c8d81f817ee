"""`fit` on a cluster: does it fit, how many requests at once, on which of the free GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.inventory.model import Inventory
from clusterctl.planning.cluster_hardware import measurements
from clusterctl.planning.fit_on_cluster import ask_images, plan_request
from clusterctl.planning.fit_request import FitArguments
from clusterctl.planning.image_probe import ProbeResult
from clusterctl.planning.planner import FitReport, plan
from clusterctl.survey.survey import connected, take_survey
from clusterctl.transport.credentials import Credentials


@dataclass(frozen=True)
class Fitted:
    """A report, and what the image's own vLLM said if it was asked."""

    report: FitReport
    probed: ProbeResult | None = None


def run(inventory: Inventory, asked: FitArguments, credentials: Credentials) -> Fitted:
    """The report for the inventory's hosts. Raises UsageError, DoesNotFit, what connections raise,
    and with `asked.probe` what `ask_images` raises."""
    asked.request()  # a bad request is refused before any host is asked
    with connected(inventory.hosts, credentials) as transports:
        files = measurements(inventory.cluster)
        survey = take_survey(inventory, transports, files=files).require_answers()
        request, config = plan_request(survey, asked)
        report = plan(request)
        if not asked.probe:
            return Fitted(report)
        return Fitted(report, ask_images(survey, request, report, config))
