"""The gateways of several hosts as one, with the requests of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from clusterctl.inventory.model import Inventory
from clusterctl.node.documents import (
    GatewayMember,
    GatewayState,
    KeyUse,
    MembersDocument,
    NodeState,
)
from clusterctl.node.gateway_config import LOOPBACK
from clusterctl.ray_cluster.topology import base_url, reached_at
from clusterctl.survey.survey import Survey, read_reported_state
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import fan_out, values


def hosts_with_gateway(survey: Survey) -> list[str]:
    """Return the hosts that have a gateway now, the head first: a worker's comes with bootstrap."""
    head = survey.inventory.head.name
    states = {one.name: survey.fresh_state(one.name) for one in survey.inventory.gateways}
    return [
        host
        for host, state in states.items()
        if host == head or (state and state.gateway.state != "absent")
    ]


def gateway_url(
    survey: Survey, gateway: GatewayState, listed: MembersDocument, node_ip: str, head_address: str
) -> str:
    """Return the URL of a service at the head's gateway; "" without a gateway.

    node_ip       the head's
    head_address  the head's for clients
    """
    if gateway.state == "absent":
        return ""
    listens = listed.listen or node_ip
    # Its own loopback has no TLS: that is for clients on the head.
    tls = gateway.tls and listens != LOOPBACK
    virtual = "" if listed.listen else str(survey.inventory.gateway.virtual_ip or "")
    return base_url(virtual or reached_at(listens, head_address), listed.port, tls=tls)


def may_have_gateway(survey: Survey) -> dict[str, Transport]:
    """Return the hosts that `key` waits for. Without a node container nothing listens; a new one's
    gateway waits for the head's keys."""
    head = survey.inventory.head.name
    return {
        one.name: survey.transports[one.name]
        for one in survey.inventory.gateways
        if one.name in {head, *survey.running} or one.name not in survey.answers
    }


def gateway_states(
    inventory: Inventory, transports: Mapping[str, Transport]
) -> dict[str, NodeState | None]:
    """Read what the supervisors of all gateways report now, by host; None if a host has no file.
    Hosts that do not answer are left out."""
    hosts = {one.name: transports[one.name] for one in inventory.gateways if one.name in transports}
    return values(fan_out(hosts, lambda host: read_reported_state(inventory, host)))


def as_one(gateways: Sequence[GatewayState]) -> GatewayState:
    """Return the state of the first gateway, the head's, with the addresses and counts of all. A
    member gets requests if any gateway sends it some."""
    head = gateways[0]
    total = {name: sum(getattr(one, name) for one in gateways) for name in _COUNTS}
    return replace(
        head,
        listens=list(dict.fromkeys(address for one in gateways for address in one.listens)),
        members=_members(member for one in gateways for member in one.members),
        keys=_keys(use for one in gateways for use in one.keys),
        **total,
    )


_COUNTS = ("served", "retried", "failed", "refused")


def _members(members: Iterable[GatewayMember]) -> list[GatewayMember]:
    found: dict[tuple[str, int, str, bool], GatewayMember] = {}
    for one in members:
        place = (one.service, one.replica, one.host, one.standby)
        if before := found.get(place):
            found[place] = replace(
                before,
                admitted=before.admitted or one.admitted,
                why="" if before.admitted or one.admitted else before.why,
                in_flight=before.in_flight + one.in_flight,
                requests=before.requests + one.requests,
            )
        else:
            found[place] = one
    return list(found.values())


def _keys(uses: Iterable[KeyUse]) -> list[KeyUse]:
    found: dict[str, KeyUse] = {}
    for one in uses:
        before = found.setdefault(one.name, KeyUse(one.name))
        day = max(before.day, one.day)
        found[one.name] = KeyUse(
            one.name,
            before.requests + one.requests,
            before.prompt_tokens + one.prompt_tokens,
            before.completion_tokens + one.completion_tokens,
            day,
            sum(use.tokens_of_day for use in (before, one) if use.day == day),
        )
    return sorted(found.values(), key=lambda use: use.name)
