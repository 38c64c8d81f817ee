"""`fit` on a cluster: whether a model fits, on which free GPUs, and for how many requests."""

from __future__ import annotations

from clusterctl.inventory.model import Inventory
from clusterctl.planning.asking import asked as ask_engine
from clusterctl.planning.cluster_hardware import measurements
from clusterctl.planning.fit_on_cluster import plan_request
from clusterctl.planning.fit_request import FitArguments, HubShapes, with_edition_note
from clusterctl.planning.planner import plan
from clusterctl.planning.report import FitReport
from clusterctl.survey.survey import Survey, connected, take_survey
from clusterctl.transport.credentials import Credentials


def run(
    inventory: Inventory, asked: FitArguments, credentials: Credentials, hub: HubShapes
) -> FitReport:
    """Return the report for the inventory's hosts, with figures from the image's own vLLM if the
    formulas are not proven, or with `asked.ask`. `hub` is queried for a model that neither a host
    nor the catalogue has. Raises UsageError, DoesNotFit, connection errors, what `hub` raises."""
    asked.request()  # refuse a bad request before contacting any host
    with connected(inventory.hosts, credentials) as transports:
        files = measurements(inventory.cluster)
        return fit_on(take_survey(inventory, transports, files=files), asked, hub)


def fit_on(survey: Survey, asked: FitArguments, hub: HubShapes | None = None) -> FitReport:
    """Plan like `run`, without the hosts that `serve` would also leave out."""
    survey = survey.without_dead().require_answers()
    request, files = plan_request(survey, asked, hub)
    report = with_edition_note(plan(request), asked.request().model, request.hardware)
    if files and (report.unproven or asked.ask):
        report = ask_engine(survey, request, report, files)
    return report
