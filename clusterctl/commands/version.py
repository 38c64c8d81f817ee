"""`version --cluster`: the versions on every host and service, and what changed when."""

from __future__ import annotations

from dataclasses import replace

from clusterctl.inventory.model import Inventory
from clusterctl.serving.vulnerabilities import vulnerability_notes
from clusterctl.survey.survey import connected, take_survey
from clusterctl.survey.versions import (
    VersionRecord,
    engine_versions,
    ledger_file,
    version_record,
)
from clusterctl.transport.credentials import Credentials


def run(inventory: Inventory, credentials: Credentials) -> VersionRecord:
    """Return the record of all hosts that answer."""
    with connected(inventory.hosts, credentials) as transports:
        survey = take_survey(inventory, transports, files=(ledger_file(inventory.cluster),))
        found = vulnerability_notes(engine_versions(survey))
        return replace(version_record(survey), vulnerabilities=found)
