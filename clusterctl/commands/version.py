"""`version --cluster`: the versions on every host and service, and what changed when."""

from __future__ import annotations

from dataclasses import replace

from clusterctl.operations.session import Session
from clusterctl.serving.vulnerabilities import vulnerability_notes
from clusterctl.survey.survey import take_survey
from clusterctl.survey.versions import (
    VersionRecord,
    engine_versions,
    ledger_file,
    version_record,
)


def run(session: Session) -> VersionRecord:
    """Return the record of all hosts that answer."""
    ledger = ledger_file(session.inventory.cluster)
    with session.connected() as transports:
        survey = take_survey(session.inventory, transports, files=(ledger,))
        found = vulnerability_notes(engine_versions(survey))
        return replace(version_record(survey), vulnerabilities=found)
