"""The services declared on the head: declare one and wait until it is ready, or stop it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from clusterctl import deadlines
from clusterctl.engine.events import (
    EventSink,
    Note,
    StageFinished,
    StageStarted,
    StepFinished,
    StepStarted,
)
from clusterctl.engine.step import Change
from clusterctl.errors import ClusterctlError, RequirementsNotMet, StepFailed, UsageError
from clusterctl.inventory.model import Inventory
from clusterctl.node.documents import NodeState, ServiceDocument, from_json, to_json
from clusterctl.node.files import NodePaths
from clusterctl.serving.watch import (
    ChangedByOthers,
    ContactLost,
    PatientReader,
    StageEvents,
    await_ready,
    followed,
)
from clusterctl.survey.survey import read_head_state
from clusterctl.transport.base import Transport
from clusterctl.transport.lock import ClusterLock


def service_file(cluster: str, name: str) -> str:
    """Return the path on the head of the file that declares the service `name`."""
    return str(NodePaths(cluster).services / f"{name}.json")


def require_service(name: str, declared: Mapping[str, ServiceDocument]) -> ServiceDocument:
    """Return the service `name`. Raises UsageError with the names of those declared."""
    if name in declared:
        return declared[name]
    have = ", ".join(sorted(declared)) or "none"
    raise UsageError(f"no service named {name}; services: {have}", hint="clusterctl status")


@dataclass(frozen=True)
class HeadServices:
    """The services declared on the head; progress is reported to `sink`."""

    inventory: Inventory
    head: Transport
    sink: EventSink

    def declare(
        self,
        lock: ClusterLock,
        document: ServiceDocument,
        old: ServiceDocument | None,
        file: bytes | None,
    ) -> None:
        """Write the document if the file on the head still holds `file` (compare-and-swap), and
        wait until the service is ready. If it fails, restore `old`, again only if nobody else has
        written the file and `lock` is held: a run that was suspended must not undo others' changes.

        Losing contact with the head does not count as a failure: the service keeps loading. Raises
        ContactLost then, otherwise as `await_ready`.
        """
        path = service_file(self.inventory.cluster, document.name)
        written = to_json(document).encode()
        lock.replace(path, written, before=file)
        try:
            self.follow(document)
        except (ContactLost, ChangedByOthers):
            raise
        except ClusterctlError:
            name, before = document.name, to_json(old).encode() if old else None
            try:
                lock.replace(path, before, before=written)
            except ClusterctlError as error:
                note = f"{name} stays declared: {error}; to end it: clusterctl stop {name}"
            else:
                was = "its previous declaration is restored" if old else "it would fail again"
                note = f"{name} is withdrawn: {was}"
            self.sink(Note(note))
            raise

    def follow(self, document: ServiceDocument) -> None:
        """Report the stages of a declared service until it is ready. Raises as `declare`."""

        def look() -> NodeState | None:
            state = read_head_state(self.inventory, self.head)
            if state is not None and not followed(state, document):
                self._ensure_declared(document)
            return state

        await_ready(document, PatientReader(look), StageEvents(self.head.host.name, self.sink))

    def _ensure_declared(self, document: ServiceDocument) -> None:
        """Raise ChangedByOthers if the head's file of the service was deleted or changed."""
        path = service_file(self.inventory.cluster, document.name)
        text = (self.head.read_file(path) or b"").decode(errors="replace")
        try:
            same = text and from_json(ServiceDocument, text).fingerprint == document.fingerprint
        except ValueError:
            return  # unreadable: the supervisor reports it, and keeps the last good version
        if not same:
            raise ChangedByOthers(
                f"{document.name} was {'changed' if text else 'stopped'} by someone else "
                "meanwhile, and is left as it is",
                host=self.head.host.name,
                hint="clusterctl status",
            )

    def stop(self, lock: ClusterLock, document: ServiceDocument, file: bytes | None) -> None:
        """Delete the service's file, which must still hold `file`, and wait until the supervisor
        reports that the service has stopped.

        Raises StepFailed if it still runs `deadlines.STOP_SLACK` s after its shutdown timeout.
        """
        started, host = time.monotonic(), self.head.host.name
        title = f"Stop {document.name}"
        self.sink(StageStarted(title, (host,)))
        self.sink(StepStarted(host, title, Change("let running requests finish, then end vLLM")))
        lock.replace(service_file(self.inventory.cluster, document.name), None, before=file)

        def stopped() -> bool | None:
            state = read_head_state(self.inventory, self.head)
            if state is None:
                raise RequirementsNotMet(
                    "no supervisor reports from the head, so nothing there can stop the service",
                    hint="clusterctl status",
                )
            runs = [it for it in state.services if it.name == document.name]
            return all(it.state == "stopped" for it in runs) or None

        limit = document.shutdown_timeout + deadlines.STOP_SLACK
        if not deadlines.wait_until(stopped, limit, every=0.3):
            raise StepFailed(
                f"{document.name} still runs after {limit:.0f} s",
                host=host,
                hint=f"clusterctl logs {document.name}",
            )
        self.sink(StepFinished(host, title, "changed", time.monotonic() - started))
        self.sink(StageFinished(title, time.monotonic() - started))


def read_key(inventory: Inventory, head: Transport) -> str:
    """Return the API key from its file on the head, read over SSH."""
    path = str(NodePaths(inventory.cluster).api_key)
    key = head.read_file(path)
    if key is None:
        raise StepFailed(
            "the API key cannot be read",
            host=head.host.name,
            hint=f"clusterctl bootstrap {inventory.file}",
            detail=f"{path} does not exist",
        )
    return key.decode().strip()
