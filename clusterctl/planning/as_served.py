"""The planner's forecast for a service as it is served now."""

from __future__ import annotations

from clusterctl.errors import ClusterctlError
from clusterctl.node.documents import ServiceDocument
from clusterctl.planning.fit_on_cluster import plan_request
from clusterctl.planning.fit_request import FitArguments
from clusterctl.planning.memory import FitPlan
from clusterctl.planning.planner import one_service, plan
from clusterctl.planning.report import PlanRequest
from clusterctl.serving.vllm_flags import parse_arguments, render, without
from clusterctl.survey.survey import Survey

# Decided by the layout, or not part of a plan
_DECIDED = ("tensor-parallel-size", "pipeline-parallel-size")


def plan_as_served(survey: Survey, document: ServiceDocument) -> tuple[PlanRequest, FitPlan] | None:
    """Return what was planned, and the plan; None where the planner has none."""
    if len(document.argv) < 3:  # A host may have any document
        return None
    tp, pp = document.tensor_parallel, document.pipeline_parallel
    try:
        flags = render(without(parse_arguments(document.argv[3:]), _DECIDED))
        asked = FitArguments(document.argv[2], tp, pp, arguments=tuple(flags))
        request, _ = plan_request(survey.require_answers(), asked)
        return request, one_service(plan(request), request).plan
    except ClusterctlError:
        return None
