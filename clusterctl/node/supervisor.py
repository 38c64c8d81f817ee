"""The node's supervisor: Ray, and the services declared on this node.

One loop that never blocks checks each part in turn. Work that may block, such as reading logs and
sending requests, has its own threads.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import replace
from typing import Dict, List, Optional

from clusterctl import __version__
from clusterctl.node.documents import (
    GatewayState,
    NodeDocument,
    NodeState,
    ServiceDocument,
    SharedGateway,
    from_json,
    to_json,
)
from clusterctl.node.endpoint import Reading
from clusterctl.node.evidence import HangEvidence
from clusterctl.node.files import Declared, Journal, NodePaths, StateFile, why_not_written
from clusterctl.node.gateway import Gateway, write_private
from clusterctl.node.gateway_members import MemberProof
from clusterctl.node.gcs_store import GcsStore
from clusterctl.node.hosts_file import HostsFile
from clusterctl.node.ledger import NODE, Ledger, node_versions, service_versions
from clusterctl.node.probes import GpuCount, Links, installed_versions, version_labels
from clusterctl.node.ray_process import RayProcess
from clusterctl.node.ray_watch import RayView, own_argv
from clusterctl.node.recorder import Recorder
from clusterctl.node.secret_files import marks
from clusterctl.node.service import RayConditions, SupervisedService
from clusterctl.node.standby import EnginePair, engines_of, first_of
from clusterctl.node.timing import Timing
from clusterctl.node.turns import Turn


class Supervisor:
    """`run` returns after `stop` was called, from a signal handler or another thread."""

    def __init__(
        self,
        paths: NodePaths,
        document: NodeDocument,
        timing: Timing,
        journal: Journal,
        watch_argv: Optional[List[str]] = None,
        image: str = "",
    ) -> None:
        """`watch_argv` replaces the command line of ray-watch, for tests. `image`: ID of the
        container's image, for the ledger."""
        self._document = document
        self._timing = timing
        self._paths = paths
        self._journal = journal
        self._hosts_file = HostsFile(paths, journal)
        self._hosts_file.tick()
        self._versions = installed_versions()
        self._ledger = Ledger(paths.ledger, document.host)
        self._image = image
        self._record_versions(time.monotonic())
        self._declared = Declared(paths, journal)
        labels = version_labels(self._versions)
        self._evidence = HangEvidence(paths, document.host, timing, journal)
        env = self._evidence.env
        store = GcsStore(paths.tables, self._versions.ray, journal)
        self._state_file = StateFile(paths.state, timing.state_every)
        before = self._state_file.before()
        was_up = before.time + timing.state_every if before and before.ray == "up" else 0.0
        self._ray = RayProcess(document, paths, timing, journal, labels, env, store, was_up)
        self._watch_argv = watch_argv
        self._view = self._new_view()
        self._gpus = GpuCount(document.gpu_listing, timing)
        self._links = Links(timing)
        self._recorder = Recorder(paths, document.gpu_listing, timing, journal)
        self._services: Dict[str, SupervisedService] = {}
        self._wanted: Dict[str, ServiceDocument] = {}
        self._pairs: Dict[str, EnginePair] = {}  # By name of the second engine
        self._gateway = self._new_gateway()
        self._shared, self._shared_text = SharedGateway(), ""
        self._recorded: Dict[str, ServiceDocument] = {}  # In the ledger as they are
        # Restarts and failures counted before the container was restarted.
        self._before = {each.name: each for each in before.engines} if before else {}
        self._stopping = threading.Event()

    def _new_view(self) -> RayView:
        document, paths, timing = self._document, self._paths, self._timing
        argv = self._watch_argv
        if argv is None:
            ip = f"[{document.head_ip}]" if ":" in document.head_ip else document.head_ip
            head = document.role == "head"
            every = timing.watch_interval if head else timing.worker_watch_interval
            address = ["--address", f"{ip}:{document.gcs_port}"]
            argv = [*own_argv(), "ray-watch", *address, "--interval", str(every)]
            argv += ["--asked", str(paths.asked)]
            # A worker tells nothing, also if it was the head before.
            shared = str(paths.shared_gateway) if head else os.devnull
            argv += ["--gateway", shared] if document.gateway else []
        return RayView(argv, document.host, timing)

    def _new_gateway(self) -> Optional[Gateway]:
        document, head = self._document, self._document.role == "head"
        if not head and not document.gateway:
            return None
        return Gateway(
            document.host,
            document.node_ip,
            self._paths,
            self._timing,
            self._journal,
            listens="" if head else document.gateway,
        )

    def _change_gateway(self) -> None:
        """Start or stop leading the gateways of other hosts, or having a gateway that is led."""
        if self._document.role != "head":
            # What was told before may be old: a key may have been revoked since.
            self._shared, self._shared_text = SharedGateway(), ""
            if self._gateway:
                self._gateway.stop()
            self._gateway = self._new_gateway()
        elif not self._document.gateway:
            return  # This view still tells the others that there is nothing to follow
        self._view.stop()
        self._view = self._new_view()

    def stop(self) -> None:
        """Make `run` stop the services, then Ray, and return."""
        self._stopping.set()

    def run(self) -> None:
        self._journal.write("supervisor", "started", f"version {__version__}")
        while not self._stopping.wait(self._timing.tick):
            self._round(time.monotonic())
        # Services stop in parallel, each within its own deadline; then ray-watch and Ray.
        until = time.monotonic() + self._timing.stop_limit
        for service in self._services.values():
            service.stop(time.monotonic())
        while not all(service.stopped for service in self._services.values()):
            now = time.monotonic()
            for service in self._services.values():
                service.finish_stop(now)
            self._state_file.write(self.state())
            time.sleep(self._timing.tick)
        if self._gateway:
            # After the services, whose last answers pass through it, as others' do
            self._gateway.stop(until - time.monotonic())
        self._view.stop()
        self._ray.stop()
        self._recorder.close()
        self._state_file.write(self.state())
        self._journal.write("supervisor", "stopped")

    def _round(self, now: float) -> None:
        document = self._declared.node()
        if document and document != self._document:
            before, self._document = self._document, document
            self._ray.follow(document)
            if document.gateway != before.gateway:
                self._change_gateway()
        self._hosts_file.tick()
        # Only the head replaces a GCS that does not answer; workers then lose theirs.
        silent_gcs = self._view.unanswered(now) if self._document.role == "head" else ""
        self._ray.tick(now, self._view.unlisted(now), silent_gcs)
        self._view.tick(now, self._ray.state == "up", self._document.env)
        if self._view.snapshot:
            self._evidence.heard(self._view.snapshot.asked)
        self._gpus.tick(now)
        self._links.tick(now, self._document)
        self._recorder.tick(now, self._links.broken)
        if now >= self._versions_due:
            self._record_versions(now)
        self._tick_services(now)
        if self._gateway:
            self._lead_gateway(self._gateway)
        self._state_file.write(self.state())

    def _record_versions(self, now: float) -> None:
        """Compare what is installed with the ledger: someone may install a library in a running
        container."""
        self._versions_due = now + self._timing.versions_every
        self._all_versions = node_versions(self._image)
        self._ledger.record(NODE, self._all_versions)

    def _tick_services(self, now: float) -> None:
        declared = self._declared.services()
        for name, service_document in declared.items():
            if service_document != self._recorded.get(name):
                self._recorded[name] = service_document
                self._ledger.record(name, service_versions(service_document))
        engines = [each for document in declared.values() for each in engines_of(document)]
        wanted = self._wanted = {each.name: each for each in engines}
        for name, service_document in wanted.items():
            if name not in self._services:
                before = self._before.pop(name, None)
                self._services[name] = SupervisedService(
                    service_document,
                    self._paths,
                    self._timing,
                    self._journal,
                    before,
                    self._evidence,
                )
        conditions = RayConditions(
            self._document.expected,
            self._view.fresh(),
            self._ray.state == "up",
            {**self._document.env, **self._evidence.env},
            self._view.taken,
            self._document.node_ip,
            self._view.rejoined(now),
            self._document.store_ports,
        )
        turns = self._turns(now)
        for name, service in list(self._services.items()):
            others = (other for other, each in self._services.items() if each.measures)
            measuring = next((other for other in others if other != name), "")
            turn = turns.get(name, Turn())
            own = replace(conditions, measuring=measuring, turn=turn)
            service.tick(now, wanted.get(name), own)
            if service.forgotten:
                del self._services[name]

    def _turns(self, now: float) -> Dict[str, Turn]:
        """Have engines on the same GPUs take turns; return these by name."""
        pairs: Dict[str, EnginePair] = {}
        turns: Dict[str, Turn] = {}
        for name, second in self._services.items():
            first = first_of(second.document, self._services.values())
            if first and first.name not in turns:
                pairs[name] = self._pairs.get(name) or EnginePair(self._timing, self._journal)
                turns[first.name], turns[name] = pairs[name].tick(now, first, second)
            elif swap_with := second.document.swap_with:
                serve = f"clusterctl serve MODEL --name {swap_with} --swap"
                turns[name] = Turn(f"for {swap_with}, with which it swaps: {serve}")
        self._pairs = pairs
        return turns

    def _lead_gateway(self, gateway: Gateway) -> None:
        """Pass the gateway what is declared, and what is known about the services on this node."""
        local = {}
        for name, document in self._wanted.items():
            service = self._services.get(name)
            state = service.state() if service else None
            why = f"it is {state.state}" if state else "it is not started"
            ready = state is not None and state.state == "ready"
            silence = state.silence if state else ""
            key = state.key if state else ""
            kind = state.kind if state else ""
            has = frozenset(
                n for n, missing in (state.adapters if state else {}).items() if not missing
            )
            local[document.port] = MemberProof(
                ready,
                silence or why,
                bool(silence),
                key,
                kind,
                has,
                service.reading if service else Reading(),
            )
        virtual_ip = self._document.virtual_ip
        if self._document.role != "head":
            snapshot = self._view.snapshot
            if snapshot and snapshot.gateway not in ("", self._shared_text):
                self._shared_text = snapshot.gateway
                with contextlib.suppress(ValueError):  # Of another version
                    self._shared = from_json(SharedGateway, snapshot.gateway)
            members = {document.service: document for document in self._shared.members}
            gateway.follow(members, self._shared.keys, local, virtual_ip)
            return
        members, keys = self._declared.members(), self._declared.keys()
        gateway.follow(members, keys, local, virtual_ip)
        if self._document.gateway:
            self._share(SharedGateway(list(members.values()), keys))
        elif self._shared_text:
            self._share(SharedGateway())

    def _share(self, shared: SharedGateway) -> None:
        text = to_json(shared)
        if text != self._shared_text:
            with contextlib.suppress(OSError):
                write_private(self._paths.shared_gateway, text)
                self._shared_text = text

    def state(self) -> NodeState:
        snapshot = self._view.snapshot if self._document.role == "head" else None
        secrets, problems = marks(self._paths)
        return NodeState(
            host=self._document.host,
            role=self._document.role,
            time=time.time(),
            version=__version__,
            ray=self._ray.state,
            ray_since=self._ray.since,
            ray_restarts=self._ray.restarts,
            ray_detail=self._ray.detail,
            keeps_tables=self._ray.keeps_tables,
            ray_version=self._versions.ray,
            python_version=self._versions.python,
            vllm_version=self._versions.vllm,
            versions=self._all_versions,
            gpus_visible=self._gpus.visible,
            gpus_said=self._gpus.said,
            broken_nics=self._links.broken,
            lasting=self._recorder.lasting(),
            nodes=snapshot.nodes if snapshot else [],
            nodes_time=snapshot.time if snapshot else 0.0,
            services=[each.state() for each in self._services.values() if not each.is_standby],
            standbys=[each.state() for each in self._services.values() if each.is_standby],
            gateway=self._gateway.state if self._gateway else GatewayState(),
            unreadable=self._declared.unreadable(),
            secrets=secrets,
            secret_problems=problems,
            logs_problem=why_not_written(self._paths.logs),
        )
