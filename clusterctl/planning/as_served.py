"""The planner's forecast for a service as it is served now."""

from __future__ import annotations

from clusterctl.errors import ClusterctlError
from clusterctl.node.documents import ServiceDocument
from clusterctl.planning.memory import FitPlan
from clusterctl.planning.planner import one_service, plan
from clusterctl.planning.question import question_again
from clusterctl.planning.report import PlanRequest
from clusterctl.survey.survey import Survey


def plan_as_served(survey: Survey, document: ServiceDocument) -> tuple[PlanRequest, FitPlan] | None:
    """Return what was planned, and the plan; None where the planner has none."""
    try:
        asked = question_again(survey.require_answers(), document)
        if asked.shape is None:
            return None
        request = asked.to_plan(asked.shape)
        return request, one_service(plan(request), request).plan
    except ClusterctlError:
        return None
