"""The gateway of this node: an HAProxy that this supervisor configures, starts and keeps.

It balances over the members of services, admits those that are proven, accepts the named keys, and
counts what it answered. Members and keys change over HAProxy's own socket, without a reload.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Dict, FrozenSet, Iterable, Mapping, Optional, Set, Tuple

from clusterctl.kinds.known import kind_named
from clusterctl.node.children import Child
from clusterctl.node.documents import (
    GatewayMember,
    GatewayState,
    KeysDocument,
    MembersDocument,
    from_json,
    to_json,
)
from clusterctl.node.endpoint import EndpointError, EndpointWatch, LocalApi
from clusterctl.node.files import Journal, NodePaths, read_file
from clusterctl.node.gateway_config import (
    KEEP_ALIVE,
    GatewayMaps,
    GatewayPlan,
    gateway_config,
    map_text,
    models_document,
    models_map,
)
from clusterctl.node.gateway_counts import GatewayCounts
from clusterctl.node.gateway_lua import USAGE_FILTER
from clusterctl.node.gateway_members import (
    MemberProof,
    admission,
    gateway_services,
    of_member,
    servers_of,
    with_adapters,
)
from clusterctl.node.gateway_socket import (
    ask,
    refused_so_far,
    replace_map,
    requests_in_flight,
    valid_until,
)
from clusterctl.node.haproxy import (
    NOBODY,
    connections_allowed,
    find_haproxy,
    may_change_user,
    may_listen_anywhere,
)
from clusterctl.node.scaling import Scaling, ScalingTarget
from clusterctl.node.secret_files import SecretUnusable, mark, read_secret
from clusterctl.node.timing import Backoff, Timing

CLUSTER_KEY = "cluster"  # The name under which the cluster's own key is counted

_MOST_THREADS = 4  # One passes on thousands of requests a second

_CLOSED_LATE = 2.0  # Seconds, of connections that have been idle for KEEP_ALIVE
_LINE_LIMIT = 4096
_LARGEST_COUNTS = 16 * 2**20  # Bytes


def key_maps(
    document: KeysDocument, cluster_keys: Iterable[str], counts: GatewayCounts, today: str
) -> GatewayMaps:
    """Return what HAProxy has to know about keys today. `cluster_keys`: the cluster's own, and the
    previous one while members still require it."""
    own = (hashlib.sha256(key.encode()).hexdigest().upper() for key in cluster_keys)
    maps = GatewayMaps(names=dict.fromkeys(own, CLUSTER_KEY))
    for key in document.keys:
        maps.names[key.sha256.upper()] = key.name
        if key.models:
            own_models = (f"{key.name}/{model}" for model in key.models)
            maps.models.update(dict.fromkeys((key.name, *own_models), "1"))
        if key.requests_per_minute:
            maps.requests[key.name] = str(key.requests_per_minute)
        if key.tokens_per_day:
            maps.counted[key.name] = "1"
            use = counts.keys.get(key.name)
            if use and use.day == today and use.tokens_of_day >= key.tokens_per_day:
                maps.spent[key.name] = "1"
    return maps


class Gateway:
    """Runs in its own thread, since HAProxy and members may be slow to answer."""

    def __init__(
        self,
        host: str,
        node_ip: str,
        paths: NodePaths,
        timing: Timing,
        journal: Journal,
        listens: str = "",
    ) -> None:
        """`host`: the inventory's name of this node. `listens`: its own address, in place of the
        head's in documents."""
        self._host = host
        self._node_ip = node_ip
        self._listens = listens
        self._paths = paths
        self._timing = timing
        self._journal = journal
        self._binary, self._version = find_haproxy()
        self._documents: Dict[str, MembersDocument] = {}
        self._keys = KeysDocument()
        self._local: Mapping[int, MemberProof] = {}
        self._virtual_ip = ""
        # By address, port and model of the member, and by the key that it is asked with
        self._watches: Dict[Tuple[str, int, str, str], EndpointWatch] = {}
        self._key = ""
        self._in_use: Dict[str, str] = {}  # The key that a service's members ask for
        self._plan: Optional[GatewayPlan] = None
        self._child: Optional[Child] = None
        self._restart_at = 0.0
        self._first_at: Optional[float] = None  # When the first start is due, ready members or not
        self._backoff = Backoff(timing.gateway_backoff_first, timing.gateway_backoff_max)
        self._scalings: Dict[str, Scaling] = {}  # Of services that do not ask all replicas
        self._spare: Dict[str, FrozenSet[str]] = {}  # Servers that these do not need now
        self._told: Dict[str, str] = {}  # Commands in effect, by what they are about
        self._offers: Dict[str, str] = {}  # By backend; kept while none of its members answers
        self._maps: Optional[GatewayMaps] = None
        self._keys_told = KeysDocument()  # Those that HAProxy follows
        self._told_at = 0.0
        self._reloaded_at = -KEEP_ALIVE
        self._in_flight: Dict[str, int] = {}  # Requests, by backend/server
        self._looked_at = 0.0
        self._tls_until = 0.0
        self._deaf_since: Optional[float] = None
        self._hung = ""  # Why it was ended, if it was
        self._refused_before = 0
        self._counting = threading.Lock()
        self._counts = self._counts_before()
        self._counts_kept_at = 0.0
        self._ended = threading.Event()
        self.state = GatewayState("idle" if self._binary else "absent", version=self._version)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def follow(
        self,
        documents: Dict[str, MembersDocument],
        keys: KeysDocument,
        local: Mapping[int, MemberProof],
        virtual_ip: str = "",
    ) -> None:
        """Apply what is declared now. `local`: what this supervisor knows about the services that
        it runs itself, by port; `virtual_ip`: shared with the gateways of other hosts."""
        self._documents, self._keys, self._local = documents, keys, local
        self._virtual_ip = virtual_ip

    def stop(self, patience: float = 0.0) -> None:
        """End HAProxy, whose requests get `patience` seconds. Blocks until it has ended."""
        self._ended.set()
        self._thread.join(self._timing.gateway_stop)
        for watch in self._watches.values():
            watch.stop()
        if self._child:
            self._child.finish()
            until = time.monotonic() + patience
            while self._child.exit_status() is None and time.monotonic() < until:
                time.sleep(self._timing.tick)
            self._child.kill_all()
        self._keep_counts(time.monotonic(), at_once=True)

    def _run(self) -> None:
        while not self._ended.wait(self._timing.tick):
            try:
                self._round(time.monotonic())
            # A full file system, or no more threads: members and keys are followed again later.
            except (OSError, RuntimeError, ValueError) as error:
                self._turn("backing-off", str(error))

    def _round(self, now: float) -> None:
        if not self._binary:
            return
        documents = self._documents
        try:
            self._key = read_secret(self._paths.api_key)
        except SecretUnusable as error:
            if not self._key:
                self._turn("backing-off", str(error))
                return
        watched = set(self._watches)
        admitted = {
            name: self._admission(name, document, watched) for name, document in documents.items()
        }
        self._in_use = {name: self._in_use[name] for name in documents}
        for document in documents.values():
            admitted.update(with_adapters(document, admitted[document.service]))
        for name, proofs in admitted.items():
            kinds = [proof.kind for proof in proofs.values() if proof.kind]
            if kinds:
                self._offers[f"service-{name}"] = kind_named(kinds[0]).offers
        for place in watched:  # Of members that are gone: others may come at the same place
            self._watches.pop(place).stop()
        self._spare = self._unneeded(now, documents, admitted)
        plan = self._wanted(documents)
        if plan is None:
            self._end("idle", "")
            self._plan = None
        else:
            self._keep_running(now, plan, admitted)
        self._keep_counts(now)
        self._report(documents, admitted)

    def _admission(
        self, name: str, document: MembersDocument, watched: Set[Tuple[str, int, str, str]]
    ) -> Dict[str, MemberProof]:
        """Return which members get requests, and note the key that most of them require: after
        api.key is replaced, they restart with the new one at different times. A standby counts
        only among equals: it refuses requests while its first engine serves."""
        keys = dict.fromkeys((self._key, self._in_use.get(name, self._key)))
        found = {key: admission(document, self._proofs(document, watched, key)) for key in keys}
        first = {server.name for _, server in servers_of(document) if not server.standby}

        def ready(key: str) -> Tuple[int, int]:
            names = {server for server, proof in found[key].items() if proof.ready}
            return len(names & first), len(names)

        most = max(found, key=ready)
        self._in_use[name] = most
        return found[most]

    def _unneeded(
        self,
        now: float,
        documents: Mapping[str, MembersDocument],
        admitted: Mapping[str, Mapping[str, MemberProof]],
    ) -> Dict[str, FrozenSet[str]]:
        """Return the servers that are not needed now, by service."""
        found = {}
        for name, document in documents.items():
            if document.least < 0:
                continue
            scaling = self._scalings.setdefault(name, Scaling(self._timing))
            proofs = {server: proof for server, proof in admitted[name].items() if proof.ready}
            readings = {server: proof.reading for server, proof in proofs.items()}
            target = ScalingTarget(document.least, document.ttft)
            asked = scaling.asked(now, target, list(proofs), readings)
            found[name] = frozenset(admitted[name].keys() - asked)
            if scaling.event:
                self._journal.write(name, "scales", scaling.event)
        self._scalings = {name: self._scalings[name] for name in found}
        return found

    def _wanted(self, documents: Mapping[str, MembersDocument]) -> Optional[GatewayPlan]:
        services = gateway_services(documents, self._in_use, self._spare)
        if not services:
            return None
        listens = {(self._address(one.listen), one.port) for one in documents.values()}
        if self._virtual_ip and may_listen_anywhere():
            listens |= {
                (self._virtual_ip, one.port) for one in documents.values() if not one.listen
            }
        path = self._paths.certificate
        try:
            found = path.stat()
            certificate, version = str(path), f"{found.st_ino} {found.st_mtime_ns}"
        except OSError:
            certificate, version = "", ""
        return GatewayPlan(
            tuple(sorted(listens)),
            services,
            str(self._paths.gateway),
            certificate,
            version,
            NOBODY if may_change_user() else 0,
            min(_MOST_THREADS, os.cpu_count() or 1),
            connections_allowed(),
        )

    def _address(self, listen: str) -> str:
        """Return where to listen: the head's address stands for this host's own, and what serves
        clients on the head serves clients on this host."""
        every_host_has = ("0.0.0.0", "::", "127.0.0.1", "::1", "localhost")  # noqa: S104
        if self._listens and listen not in every_host_has:
            return self._listens
        return listen or self._node_ip

    def _proofs(
        self, document: MembersDocument, watched: Set[Tuple[str, int, str, str]], key: str
    ) -> Dict[str, MemberProof]:
        """Return what is known about each member that requires `key`: for those on this node, the
        supervisor's own proof; others are queried from here, and removed from `watched`."""
        found, name = {}, (document.served_names or [""])[0]
        for member, server in servers_of(document):
            if member.host == self._host:
                missing = MemberProof(ready=False, why="it is not declared on this host")
                proof = self._local.get(server.port, missing)
                if proof.key not in ("", mark(key)):
                    proof = MemberProof(ready=False, why="it was started with another api.key")
                found[server.name] = proof
                continue
            place = (server.address, server.port, name, key)
            watched.discard(place)
            if place not in self._watches:
                api = LocalApi(server.address, server.port, name, key)
                listed = partial(_listed, api, self._timing.http_timeout)
                self._watches[place] = EndpointWatch(api, self._timing, listed)
            reading, now = self._watches[place].reading, time.monotonic()
            if document.least >= 0:
                self._watches[place].look_again(now // self._timing.scale_every)
            silence = reading.silence
            silent = silence is not None and now - silence.since >= self._timing.silence_shown
            why = silence.text(now) if silence and silent else reading.error
            has = reading.adapters.items() & document.adapters.items()
            found[server.name] = MemberProof(
                reading.ready,
                why,
                silent,
                "",
                reading.kind,
                frozenset(name for name, _ in has),
                reading,
            )
        return found

    def _keep_running(
        self, now: float, plan: GatewayPlan, admitted: Mapping[str, Mapping[str, MemberProof]]
    ) -> None:
        child = self._child
        if child is not None and child.exit_status() is not None:
            child.kill_all()
            child.drain()
            why, self._hung = self._hung or _why_it_ended(child), ""
            self._child, self._restart_at = None, now + self._backoff.failed()
            self._turn("backing-off", why)
        if self._child is None and now < self._restart_at:
            return
        if self._first_at is None:
            self._first_at = now + self._timing.gateway_first
        if self._plan is None and now < self._first_at and not _any_ready(admitted):
            return
        if self._child is None or plan != self._plan:
            self._begin(now, plan, admitted)
            return
        if self._tell(now, plan, admitted):
            self._deaf_since = None
            if self.state.state != "up":
                self._turn("up", "")
            if now - self._child.started > self._timing.gateway_steady:
                self._backoff.succeeded()
        else:
            self._deaf_since = self._deaf_since or now
            if now - self._deaf_since > self._timing.gateway_silence:
                self._deaf_since = None
                silence = self._timing.gateway_silence
                self._hung = f"HAProxy did not answer for {silence:g} s, so another is started"
                self._child.kill_all()  # The next round starts another

    def _begin(
        self, now: float, plan: GatewayPlan, admitted: Mapping[str, Mapping[str, MemberProof]]
    ) -> None:
        """Start HAProxy with this plan, or make the running one apply it; no request is lost."""
        directory = self._paths.gateway
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        ready = [
            (service.backend, server)
            for service in plan.services
            for server, proof in admitted.get(service.name, {}).items()
            if proof.ready
        ]
        self._maps = self._wanted_maps(self._keys)
        texts = {name: map_text(entries) for name, entries in self._maps.files().items()}
        texts["models.map"] = map_text(models_map(plan.services))
        texts["models.json"] = models_document(plan.services)
        texts["usage.lua"] = USAGE_FILTER
        config = directory / "haproxy.cfg"
        texts[config.name] = gateway_config(plan, ready)
        for name, text in texts.items():
            write_private(directory / name, text)
        # The old process may still be the one that answers: it is all told again soon.
        self._told, self._told_at, self._plan = {}, now, plan
        refused = self._refused(config)
        if refused:
            self._restart_at = now + self._backoff.failed()
            if self._child is None:
                self._turn("backing-off", refused)
            else:
                self._journal.write("gateway", "unchanged", refused)
        elif self._ended.is_set():
            return  # `stop` may wait no longer for this thread
        elif self._child is None:
            self._child = Child(
                [self._binary, "-W", "-db", "-f", str(config)],
                {"PATH": os.environ.get("PATH", "")},
                self._paths.log("gateway"),
                self._count,
            )
            self._turn("starting", f"pid {self._child.pid}")
        else:
            self._child.reload()
            self._reloaded_at = time.monotonic()  # The check of the configuration took its time
            self._journal.write("gateway", "reloaded", ", ".join(s.name for s in plan.services))

    def _refused(self, config: Path) -> str:
        """Return HAProxy's complaint about its configuration, or ""."""
        argv = [self._binary, "-c", "-f", str(config)]
        try:
            ran = subprocess.run(
                argv, capture_output=True, timeout=20, check=False, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            return "HAProxy did not check its configuration within 20 s"
        said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        alerts = [line for line in said if "ALERT" in line] or said or [f"status {ran.returncode}"]
        return alerts[0][:300] if ran.returncode else ""

    def _end(self, state: str, detail: str) -> None:
        if self._child:
            self._child.kill_all()
            self._child = None
        if self.state.state != state:
            self._turn(state, detail)

    def _wanted_maps(self, keys: KeysDocument) -> GatewayMaps:
        with self._counting:
            own = dict.fromkeys((self._key, *self._in_use.values()))
            maps = key_maps(keys, own, self._counts, _today())
        return replace(maps, offers=dict(self._offers))

    def _tell(
        self, now: float, plan: GatewayPlan, admitted: Mapping[str, Mapping[str, MemberProof]]
    ) -> bool:
        """Set which members get requests and which keys are valid. Return whether HAProxy answers.
        Settings are repeated from time to time, since a reload starts with an older state."""
        if now - self._told_at > self._timing.gateway_repeat:
            self._told, self._told_at, self._maps = {}, now, None
        commands = {}
        for service in plan.services:
            for name, proof in admitted.get(service.name, {}).items():
                server = f"{service.backend}/{name}"
                state = "ready" if proof.ready else "maint"
                commands[server] = f"set server {server} state {state}"
        changed = [words for about, words in commands.items() if self._told.get(about) != words]
        keys, admin = self._keys, self._paths.gateway / "admin.sock"
        maps = self._wanted_maps(keys)
        old = self._maps.files() if self._maps else {}
        try:
            if changed or not self._told:
                ask(admin, changed or ["show version"])
            for name, entries in maps.files().items():
                if entries != old.get(name):
                    replace_map(admin, self._paths.gateway / name, entries)
            if changed or now - self._looked_at > self._timing.gateway_look:
                self._in_flight, self._looked_at = requests_in_flight(admin), now
                self._tls_until = valid_until(admin, plan.certificate)
                self._count_refused(refused_so_far(admin))
        except (OSError, ValueError):
            return False
        self._told, self._maps = commands, maps
        # A process that a reload replaced knows the keys of then, and has idle connections, which
        # it closes late on a busy host
        revoked = {key.sha256 for key in self._keys_told.keys} - {key.sha256 for key in keys.keys}
        if not revoked or now - self._reloaded_at > KEEP_ALIVE + _CLOSED_LATE:
            self._keys_told = keys
        return True

    def _count(self, line: str) -> None:
        if line.startswith("{") and len(line) < _LINE_LIMIT:
            with self._counting:
                self._counts.take(line, _today())

    def _count_refused(self, so_far: int) -> None:
        """Count what HAProxy refused since the last call; after a reload it starts at 0."""
        new = so_far - self._refused_before if so_far >= self._refused_before else so_far
        self._refused_before = so_far
        with self._counting:
            self._counts.refused += new

    def _counts_before(self) -> GatewayCounts:
        try:
            return from_json(
                GatewayCounts, read_file(self._paths.gateway_counts, _LARGEST_COUNTS).decode()
            )
        except (OSError, ValueError):
            return GatewayCounts()

    def _keep_counts(self, now: float, *, at_once: bool = False) -> None:
        if now - self._counts_kept_at < self._timing.gateway_counts_every and not at_once:
            return
        self._counts_kept_at = now
        with self._counting:
            text = to_json(self._counts)
        with contextlib.suppress(OSError):
            if self._binary and (self._counts.keys or self._counts.refused):
                write_private(self._paths.gateway_counts, text)

    def _turn(self, state: str, detail: str) -> None:
        if (state, detail) == (self.state.state, self.state.detail):
            return
        restarts = self.state.restarts + (state == "backing-off" and self.state.state == "up")
        self._journal.write("gateway", state, detail)
        self.state = replace(
            self.state, state=state, detail=detail, since=time.time(), restarts=restarts
        )

    def _report(
        self,
        documents: Mapping[str, MembersDocument],
        admitted: Mapping[str, Mapping[str, MemberProof]],
    ) -> None:
        plan = self._plan
        with self._counting:
            counts = replace(self._counts, keys=dict(self._counts.keys))
            by_member = dict(self._counts.members)
        members = [
            GatewayMember(
                name,
                member.replica,
                member.host,
                proof.ready
                or self._told.get(f"service-{name}/{server.name}", "").endswith(" ready"),
                "" if proof.ready else proof.why,
                of_member(self._in_flight, name, server.name),
                of_member(by_member, name, server.name),
                server.standby,
                proof.ready and server.name in self._spare.get(name, ()),
            )
            for name, document in sorted(documents.items())
            for member, server in servers_of(document)
            for proof in [admitted[name][server.name]]
        ]
        up = self.state.state == "up"
        self.state = replace(
            self.state,
            listens=[f"{host}:{port}" for host, port in plan.listens] if plan else [],
            tls=self._paths.certificate.exists(),
            tls_until=self._tls_until,
            served=counts.served,
            retried=counts.retried,
            failed=counts.failed,
            refused=counts.refused,
            members=members,
            keys=sorted(counts.keys.values(), key=lambda use: use.name),
            keys_in_effect=hashlib.sha256(to_json(self._keys_told).encode()).hexdigest()
            if up
            else "",
        )


def _listed(api: LocalApi, timeout: float) -> Dict[str, str]:
    """Return the directories of the models that a server offers, by name; none if it is silent."""
    try:
        return api.models(timeout)
    except EndpointError:
        return {}


def _any_ready(admitted: Mapping[str, Mapping[str, MemberProof]]) -> bool:
    """Whether a member is ready. Until then a gateway could only answer 503, while clients of
    several gateways try another one if the connection is refused."""
    return any(proof.ready for proofs in admitted.values() for proof in proofs.values())


def _why_it_ended(child: Child) -> str:
    """Return how HAProxy ended, with its own explanation: its other lines are about requests."""
    status = child.exit_status() or 0
    how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    said = next((line for line in child.tail() if "ALERT" in line), "")
    return f"HAProxy {how}: {said[:300]}" if said else f"HAProxy {how}"


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically, readable only by its owner."""
    fresh = path.with_name(f".{path.name}.new")
    with open(fresh, "w", encoding="utf-8", opener=_private) as file:
        file.write(text)
    os.replace(fresh, path)  # noqa: PTH105 - atomic, also over an existing file


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())
