"""The documents on hosts, and what supervisors report about them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from clusterctl.facts.claims import checked, plain_ip
from clusterctl.facts.parse import Probe
from clusterctl.node.documents import (
    CHANGED,
    DELETED,
    MembersDocument,
    NodeState,
    ServiceDocument,
    ServiceState,
    UnreadableDocument,
    from_json,
    is_service_name,
    kind_of,
    read_document,
    service_of,
    standby_name,
)
from clusterctl.node.files import NodePaths

# A name of the inventory's, as --node-name has it, or what Ray makes of an address
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


def read_state(data: bytes | None) -> NodeState | None:
    """Parse the supervisor's state; None if it is missing or was written by another version."""
    if data is None:
        return None
    try:
        return credible(checked(from_json(NodeState, data.decode())))
    except ValueError:
        return None


def credible(state: NodeState) -> NodeState:
    """Return a supervisor's report without services, ranks and nodes whose names are invalid: names
    end up in commands that a user pastes, and in files of other programs."""

    def named(services: Iterable[ServiceState], suffix: str = "") -> list[ServiceState]:
        return [
            replace(each, ranks=[r for r in each.ranks if _is_place(r.host, r.node_ip)])
            for each in services
            if each.name.endswith(suffix) and _is_replica_name(each.name.removesuffix(suffix))
        ]

    return replace(
        state,
        services=named(state.services),
        standbys=named(state.standbys, standby_name("")),
        nodes=[each for each in state.nodes if _is_place(each.name, each.node_ip)],
        gateway=replace(
            state.gateway,
            members=[
                each
                for each in state.gateway.members
                if is_service_name(each.service) and _is_place(each.host, "")
            ],
        ),
    )


def _is_replica_name(name: str) -> bool:
    number = name.partition("@")[2]
    return is_service_name(service_of(name)) and (number.isdecimal() or "@" not in name)


def _is_place(name: str, node_ip: str) -> bool:
    """Whether these are a valid host name and node IP; both may be empty."""
    if node_ip:
        try:
            plain_ip(node_ip)
        except ValueError:
            return False
    return not name or bool(_HOST_NAME.fullmatch(name))


def documents_in(directory: str, files: Mapping[str, bytes | None]) -> dict[str, str]:
    """Return the probed files below a directory, by their path in it."""
    found = {}
    for path, data in sorted(files.items()):
        file = path.removeprefix(f"{directory}/")
        if data is not None and file != path and kind_of(file):
            found[file] = ""  # As good as no JSON, if it is no text
            with suppress(UnicodeDecodeError):
                found[file] = data.decode()
    return found


def is_document(file: str, text: str) -> bool:
    try:
        read_document(file, text)
    except ValueError:
        return False
    return True


def members_in(documents: Mapping[str, str]) -> dict[str, MembersDocument]:
    """Return lists of members among the documents, by service; `serve` replaces damaged ones."""
    found = {}
    for file, text in documents.items():
        if file.startswith("members/"):
            with suppress(ValueError):
                document = read_document(file, text)
                found[document.service] = document
    return found


def services_in(
    cluster: str, answer: Probe, written: Mapping[str, str]
) -> dict[str, ServiceDocument]:
    """Return the services in the probed documents, by name. A deleted or unreadable document is
    taken from `written`, which the supervisor still follows."""
    texts = documents_in(str(NodePaths(cluster).config), answer.files)
    for document in unreadable_in(cluster, answer, written):
        if document.why != CHANGED:
            texts[document.file] = document.last_good
    read = [
        read_document(file, text)
        for file, text in texts.items()
        if text and file.startswith("services/")
    ]
    return {document.name: document for document in read}


def unreadable_in(
    cluster: str, answer: Probe, written: Mapping[str, str]
) -> list[UnreadableDocument]:
    """Return a host's documents that are unreadable, deleted, or not what a command wrote.

    `written`: what commands wrote for this host. The container reports a deleted document, but
    cannot say what was in it.
    """
    paths = NodePaths(cluster)
    state = read_state(answer.files.get(str(paths.state)))
    claims = {one.file: one for one in (state.unreadable if state else ())}
    # Written anew by each bootstrap, from the inventory; what the supervisor has is only shown.
    node = claims.get("node.json", UnreadableDocument("node.json", "")).last_good
    good = {"node.json": node, **written}
    found = []
    for file, text in documents_in(str(paths.config), answer.files).items():
        last_good = good.get(file, "")
        try:
            read_document(file, text)
        except ValueError as error:
            found.append(UnreadableDocument(file, str(error), last_good))
        else:
            if file in written and last_good != text:
                found.append(UnreadableDocument(file, CHANGED, last_good))
    gone = {one.file for one in claims.values() if one.why == DELETED}
    gone = {file for file in gone if answer.files.get(f"{paths.config}/{file}") is None}
    return found + [
        UnreadableDocument(file, DELETED, good[file]) for file in sorted(gone & good.keys())
    ]
