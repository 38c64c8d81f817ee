"""`key`: named API keys, which the gateway accepts besides the cluster's own."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clusterctl import deadlines
from clusterctl.errors import StepFailed, raise_all
from clusterctl.inventory.model import Inventory
from clusterctl.node.documents import (
    GatewayState,
    KeysDocument,
    KeyUse,
    NamedKey,
    from_json,
    to_json,
)
from clusterctl.node.files import NodePaths
from clusterctl.operations.session import Session
from clusterctl.serving.keys import digest, new_secret, with_key, without_key
from clusterctl.survey.gateways import as_one, gateway_states, may_have_gateway
from clusterctl.survey.survey import Survey, take_survey
from clusterctl.transport.base import Transport
from clusterctl.transport.lock import ClusterLock


@dataclass(frozen=True)
class KeysInEffect:
    """The head's gateway, once all gateways use the keys, except those of dead hosts."""

    gateway: GatewayState
    away: tuple[str, ...]  # Hosts with a gateway that neither answer nor are in Ray
    served: frozenset[str]  # Models and adapters that requests may name now


@dataclass(frozen=True)
class ListedKey:
    """A named key and its usage."""

    key: NamedKey
    use: KeyUse


def create(
    session: Session, name: str, requests_per_minute: int, tokens_per_day: int, models: list[str]
) -> tuple[str, KeysInEffect]:
    """Create a key, and return it once it is in effect. Only its hash is stored. Limits: 0 for
    none; `models`: empty for all.

    Raises UsageError for a name that is taken or cannot be one, StepFailed if a gateway does not
    load it.
    """
    key = new_secret()
    named = NamedKey(name, digest(key), time.time(), requests_per_minute, tokens_per_day, models)
    return key, _change(session, lambda document: with_key(document, named))


def revoke(session: Session, name: str) -> KeysInEffect:
    """Remove a key, and wait until all gateways refuse it. Raises what `create` raises."""
    return _change(session, lambda document: without_key(document, name))


def replace_own(session: Session, *, agree: Callable[[Survey], None]) -> tuple[str, ...]:
    """Replace the cluster's own key on the head and on hosts with a gateway; return the services
    that must restart with it. The gateway accepts both until no replica requires the old one.

    `agree` gets the cluster first, and raises if the user declines.
    """
    inventory = session.inventory
    with session.connected() as transports:
        survey = take_survey(inventory, transports).require_answers()
        agree(survey)
        head = transports[inventory.head.name]
        with ClusterLock(head, inventory.cluster, "key rotate") as lock:
            lock.ensure_held()
            path, key = str(NodePaths(inventory.cluster).api_key), new_secret().encode()
            for host in (inventory.head, *inventory.gateways):
                transports[host.name].put(key, path, mode=0o600, sudo=True)
    return tuple(name for name, service in survey.services.items() if service.replicas)


def list_keys(session: Session) -> list[ListedKey]:
    """Return the keys by name, with the gateway's counts."""
    inventory = session.inventory
    with session.connected(inventory.gateways) as transports:
        document, _ = _read(inventory, transports[inventory.head.name])
        states = gateway_states(inventory, transports)
    gateways = [state.gateway for state in states.values() if state]
    uses = {use.name: use for use in (as_one(gateways).keys if gateways else ())}
    return [ListedKey(key, uses.get(key.name, KeyUse(key.name))) for key in document.keys]


def _change(session: Session, change: Callable[[KeysDocument], KeysDocument]) -> KeysInEffect:
    inventory = session.inventory
    keepers = [host for host in inventory.keepers if host not in inventory.gateways]
    with (
        session.connected(inventory.gateways) as transports,
        session.connected(keepers) as others,
    ):
        head = transports[inventory.head.name]
        survey = take_survey(inventory, transports)
        survey.require_supervised_head()
        alive = survey.without_dead()
        following = may_have_gateway(alive)
        change(_read(inventory, head)[0])  # refuse a wrong name without waiting for the lock

        known, name = {**others, **transports}, f"{inventory.cluster}-keys"
        with ClusterLock.of(inventory, known, "key", name=name) as lock:
            document, before = _read(inventory, head)
            data = to_json(change(document)).encode()
            lock.replace(str(NodePaths(inventory.cluster).keys), data, before=before)
            # Under the lock: with another change meanwhile, this one would never be seen.
            followed = _await_gateways(inventory, following, hashlib.sha256(data).hexdigest())

    away = tuple(host for host in transports if host not in alive.transports)
    listed = [service.listed for service in survey.services.values() if service.listed]
    names = (name for each in listed for name in (*each.served_names, *each.adapters))
    return KeysInEffect(followed[head.host.name], away, frozenset(names))


def _await_gateways(
    inventory: Inventory, following: Mapping[str, Transport], wanted: str
) -> dict[str, GatewayState]:
    """Return the gateway of each host once all have loaded the keys with the SHA-256 `wanted`.
    Raises StepFailed for those that do not."""
    followed: dict[str, GatewayState] = {}

    def in_effect() -> bool | None:
        for host, state in gateway_states(inventory, following).items():
            gateway = state.gateway if state else GatewayState()
            if state and (gateway.state != "up" or gateway.keys_in_effect == wanted):
                followed[host] = gateway
        return len(followed) == len(following) or None

    deadlines.wait_until(in_effect, deadlines.KEY_IN_EFFECT, every=0.2)
    raise_all(
        StepFailed(
            "the keys were saved, but the gateway did not load them within "
            f"{deadlines.KEY_IN_EFFECT:.0f} s",
            host=host,
            # An older release that knows fewer limits never reports the whole file as read.
            hint=f"clusterctl status; clusterctl bootstrap {inventory.file}, if an older "
            "clusterctl started it; if a key was created but not printed, revoke it",
        )
        for host in following
        if host not in followed
    )
    return followed


def _read(inventory: Inventory, head: Transport) -> tuple[KeysDocument, bytes | None]:
    """Return the keys, and the file's bytes. Raises StepFailed for a damaged file."""
    path = str(NodePaths(inventory.cluster).keys)
    data = head.read_file(path)
    if data is None:
        return KeysDocument(), None
    try:
        return from_json(KeysDocument, data.decode()), data
    except ValueError as error:
        raise StepFailed(
            f"{path} cannot be read: {error}",
            host=head.host.name,
            hint=f"remove it, and create the keys again: clusterctl exec --limit {head.host.name} "
            f"--sudo -- rm {path}",
        ) from error
