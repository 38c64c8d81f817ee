"""`key`: named API keys, which the gateway accepts besides the cluster's own."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from clusterctl import deadlines
from clusterctl.errors import StepFailed
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
from clusterctl.serving.keys import digest, new_secret, with_key, without_key
from clusterctl.survey.survey import connected, read_reported_state, take_survey
from clusterctl.transport.base import Transport
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.lock import ClusterLock


@dataclass(frozen=True)
class ListedKey:
    """A named key, and what was asked with it."""

    key: NamedKey
    use: KeyUse


def create(
    inventory: Inventory,
    name: str,
    credentials: Credentials,
    *,
    requests_per_minute: int,
    tokens_per_day: int,
) -> tuple[str, GatewayState]:
    """Make a key and return it with the gateway's state. It is kept nowhere; its hash is.

    Raises UsageError for a name that is taken, StepFailed if the gateway does not follow.
    """
    key = new_secret()
    named = NamedKey(name, digest(key), time.time(), requests_per_minute, tokens_per_day)
    return key, _change(inventory, credentials, lambda document: with_key(document, named))


def revoke(inventory: Inventory, name: str, credentials: Credentials) -> GatewayState:
    """Remove a key, and wait until the gateway refuses it. Raises as `create`."""
    return _change(inventory, credentials, lambda document: without_key(document, name))


def list_keys(inventory: Inventory, credentials: Credentials) -> list[ListedKey]:
    """Return the keys by name, with the gateway's counts."""
    with connected((inventory.head,), credentials) as transports:
        head = transports[inventory.head.name]
        document, _ = _read(inventory, head)
        state = read_reported_state(inventory, head)
    uses = {use.name: use for use in (state.gateway.keys if state else ())}
    return [ListedKey(key, uses.get(key.name, KeyUse(key.name))) for key in document.keys]


def _change(
    inventory: Inventory,
    credentials: Credentials,
    change: Callable[[KeysDocument], KeysDocument],
) -> GatewayState:
    with connected((inventory.head,), credentials) as transports:
        head = transports[inventory.head.name]
        take_survey(inventory, transports).require_supervised_head()
        change(_read(inventory, head)[0])  # refuse a wrong name without waiting for the lock
        with ClusterLock(head, f"{inventory.cluster}-keys", "key") as lock:
            document, before = _read(inventory, head)
            changed = change(document)
            path = str(NodePaths(inventory.cluster).keys)
            lock.replace(path, to_json(changed).encode(), before=before)
        wanted = hashlib.sha256(to_json(changed).encode()).hexdigest()

        def in_effect() -> GatewayState | None:
            state = read_reported_state(inventory, head)
            if state and (state.gateway.state != "up" or state.gateway.keys_in_effect == wanted):
                return state.gateway
            return None

        gateway = deadlines.wait_until(in_effect, deadlines.KEY_IN_EFFECT, every=0.2)
        if not gateway:
            raise StepFailed(
                "the keys are written, but the gateway does not follow them within "
                f"{deadlines.KEY_IN_EFFECT:.0f} s",
                host=head.host.name,
                hint="clusterctl status; revoke a key that was made and not shown",
            )
        return gateway


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
            hint=f"remove it, and make the keys anew: clusterctl exec --limit {head.host.name} "
            f"--sudo -- rm {path}",
        ) from error
