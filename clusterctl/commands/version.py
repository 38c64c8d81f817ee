"""`version --cluster`: which versions every host and service has, and what changed when."""

from __future__ import annotations

from clusterctl.inventory.model import Inventory
from clusterctl.survey.survey import connected, take_survey
from clusterctl.survey.versions import VersionRecord, ledger_file, version_record
from clusterctl.transport.credentials import Credentials


def run(inventory: Inventory, credentials: Credentials) -> VersionRecord:
    """Return the record of all hosts that answer."""
    with connected(inventory.hosts, credentials) as transports:
        return version_record(
            take_survey(inventory, transports, files=(ledger_file(inventory.cluster),))
        )
