"""`metrics`: what Prometheus and Grafana need to watch a cluster. Changes nothing on hosts."""

from __future__ import annotations

import time
from functools import partial

from clusterctl import deadlines
from clusterctl.monitoring.samples import samples
from clusterctl.monitoring.targets import monitoring_files
from clusterctl.operations.session import Session
from clusterctl.survey.drift import drift
from clusterctl.survey.status import assess
from clusterctl.survey.survey import look_twice, take_survey


def configuration(session: Session) -> dict[str, str]:
    """Return the files by their paths below the target directory.

    Raises RequirementsNotMet or ConnectionFailed if a host does not report what listens on it.
    """
    with session.connected() as transports:
        survey = take_survey(session.inventory, transports)
        survey.require_answers()
        return monitoring_files(survey, assess(survey))


def state(session: Session) -> bytes:
    """Return the status as samples in Prometheus' text format."""
    with session.connected(connect_timeout=deadlines.STATUS_CONNECT) as transports:
        look = partial(take_survey, session.inventory, limit=2, timeout=deadlines.STATUS_LOOK)
        survey = look_twice(look, transports)
        return samples(assess(survey, drift(survey)), time.time())
