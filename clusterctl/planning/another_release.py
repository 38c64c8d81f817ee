"""What another release of vLLM makes of the services as they are declared: flags that it refuses,
and memory by its own rules. Asked before a container gets that release."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from clusterctl.errors import ClusterctlError
from clusterctl.models.version import Version, parse_version, show_version
from clusterctl.planning.forecast import refusal
from clusterctl.planning.planner import one_service, plan
from clusterctl.planning.question import Question, question_again
from clusterctl.planning.report import FitReport
from clusterctl.planning.rules import OLDEST, too_old
from clusterctl.serving.release_flags import refused_flags
from clusterctl.serving.vllm_flags import parse_arguments
from clusterctl.survey.services import Service
from clusterctl.survey.survey import Survey

_log = logging.getLogger("clusterctl.planning")


@dataclass(frozen=True)
class AnotherRelease:
    """The services of a cluster, and a release of vLLM: `0.34.0+cpu`, or an image's name."""

    survey: Survey
    vllm: str

    def refusals(self) -> list[ClusterctlError]:
        """Return why services would not start with it, all reasons of all services. None if all
        hosts run it already, or no release has that name."""
        version = parse_version(self.vllm)
        running = {parse_version(state.vllm_version) for state in self.survey.states.values()}
        if version is None or running == {version}:
            return []
        if version < OLDEST:
            return [too_old(version)]
        found = list[ClusterctlError]()
        for service in self.survey.services.values():
            found += self._refused(service, version) or self._does_not_fit(service, version)
        return found

    def _refused(self, service: Service, version: Version) -> list[ClusterctlError]:
        """Return an error for each flag that the release lacks, whoever gave it: a replica keeps
        its command line when its container is replaced."""
        found = dict[str, ClusterctlError]()
        for document in service.documents:
            arguments = parse_arguments(document.argv[3:], origin=f"of {service.name}")
            for error in refused_flags(arguments, version):
                error.hint = f"{error.hint}; serve {service.name} again so, then bootstrap"
                found[error.summary] = error
        return list(found.values())

    def _does_not_fit(self, service: Service, version: Version) -> list[ClusterctlError]:
        """Return an error if memory certainly does not suffice, while it does for the release that
        runs: where the planner contradicts what serves, the planner is wrong."""
        then, now = self._planned(service, self.vllm), self._planned(service, None)
        if not then or not now or not then[1].refused or now[1].refused:
            return []
        asked, report = then
        error = refusal(report, asked.launch, asked.hardware.held)
        error.summary = f"with vLLM {show_version(version)}, {error.summary}"
        return [error]

    def _planned(self, service: Service, vllm: str | None) -> tuple[Question, FitReport] | None:
        """Return what the planner says of the service; None where it knows too little."""
        if not service.documents:
            return None
        try:
            asked = question_again(self.survey, service.documents[0], vllm=vllm)
            request = asked.known_request()
            return (asked, one_service(plan(request), request)) if request else None
        except ClusterctlError:
            return None
        except Exception:  # a bug in the planner must not prevent a change
            _log.exception("the planner failed at %s with vLLM %s", service.name, vllm)
            return None
