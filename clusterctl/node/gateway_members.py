"""The members of services from the gateway's view: who gets requests, for the model itself and for
each of its adapters. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Dict, FrozenSet, Iterator, Mapping, Tuple

from clusterctl.node.documents import Member, MembersDocument
from clusterctl.node.endpoint import Reading
from clusterctl.node.gateway_config import GatewayServer, GatewayService


@dataclass(frozen=True)
class MemberProof:
    """What is known about a member: whether it answers, and why not."""

    ready: bool
    why: str = ""
    silent: bool = False  # It was ready, and shows no sign of life
    key: str = ""  # Mark of the api.key that it was started with, if that is known here
    kind: str = ""  # Of its model, once it has answered
    adapters: FrozenSet[str] = frozenset()  # That it has loaded
    reading: Reading = field(default_factory=Reading)  # Of its metrics


def servers_of(document: MembersDocument) -> Iterator[Tuple[Member, GatewayServer]]:
    """Yield the servers of each member, by replica: itself, then its standby."""
    for member in sorted(document.members, key=lambda one: one.replica):
        own = GatewayServer(server_name(member), member.address, member.port)
        yield member, own
        if member.standby_port:
            name, port = f"{own.name}-standby", member.standby_port
            yield member, GatewayServer(name, member.address, port, standby=True)


def admission(
    document: MembersDocument, proofs: Mapping[str, MemberProof]
) -> Dict[str, MemberProof]:
    """Return which servers of a service get requests, by name, and why others get none.

    A silent one stays if no other could answer: it may only be slow.
    """
    found = {}
    for member, server in servers_of(document):
        proof = proofs.get(server.name, MemberProof(ready=False, why="it is not watched yet"))
        if member.draining:
            proof = MemberProof(ready=False, why="it is drained")
        found[server.name] = proof
    if not any(proof.ready and not proof.silent for proof in found.values()):
        return found
    return {
        name: replace(proof, ready=False) if proof.silent else proof
        for name, proof in found.items()
    }


def gateway_services(
    documents: Mapping[str, MembersDocument],
    keys: Mapping[str, str],
    spare: Mapping[str, FrozenSet[str]],
) -> Tuple[GatewayService, ...]:
    """Return the services behind the gateway, by name. `keys`: what their members require; `spare`:
    their servers that are not needed now."""
    found = []
    for name, document in sorted(documents.items()):
        unneeded = spare.get(name, frozenset())
        servers = tuple(
            replace(server, spare=server.name in unneeded) for _, server in servers_of(document)
        )
        models = {name: tuple(document.served_names)}
        models.update({adapter_service(name, each): (each,) for each in document.adapters})
        found += [
            GatewayService(each, names, servers, keys.get(name, ""), name if each != name else "")
            for each, names in models.items()
            if servers
        ]
    return tuple(found)


def adapter_service(service: str, adapter: str) -> str:
    """Return the gateway's name for an adapter: a service whose members are those that have it."""
    return f"{service}:{adapter}"


def with_adapters(
    document: MembersDocument, admitted: Mapping[str, MemberProof]
) -> Dict[str, Dict[str, MemberProof]]:
    """Return which servers get requests, for the service and for each of its adapters."""
    found = {document.service: dict(admitted)}
    for adapter in document.adapters:
        found[adapter_service(document.service, adapter)] = {
            server: proof if adapter in proof.adapters else replace(proof, ready=False)
            for server, proof in admitted.items()
        }
    return found


def server_name(member: Member) -> str:
    return f"replica-{member.replica}"


def of_member(counts: Mapping[str, int], service: str, server: str) -> int:
    """Return the sum over a member's own name and those of its adapters."""
    own, adapter = f"service-{service}/{server}", f"service-{adapter_service(service, '')}"
    return counts.get(own, 0) + sum(
        count
        for name, count in counts.items()
        if name.startswith(adapter) and name.endswith(f"/{server}")
    )
