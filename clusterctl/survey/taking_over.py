"""Another host is the head now: which documents of the earlier one it gets, and from where.

The inventory says who the head is, and node.json on that host, which root wrote, that it is a
worker yet, and of whom. A head that is only replaced in the inventory has its documents itself; of
one that is lost, other hosts keep copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from clusterctl.errors import RequirementsNotMet
from clusterctl.node.documents import (
    Member,
    MembersDocument,
    NodeDocument,
    config_dir,
    declared_dir,
    from_json,
    read_document,
    replica_name,
    to_json,
)
from clusterctl.node.files import NodePaths
from clusterctl.node.gateway_config import LOOPBACK
from clusterctl.ray_cluster.topology import client_address
from clusterctl.survey.declared_documents import documents_in, is_document
from clusterctl.transport.head_copy import (
    HeadCopy,
    copy_file,
    read_copy,
    read_serial,
    serial_file,
)

if TYPE_CHECKING:
    from clusterctl.survey.survey import Survey

EVERYWHERE = ("0.0.0.0", "::", LOOPBACK)  # noqa: S104 - nothing binds


@dataclass(frozen=True)
class TakeOver:
    """What the new head lacks."""

    before: str  # The earlier head
    keeper: str  # Whose copy it is; the earlier head itself, if it answers
    age: float  # Seconds since the copy was written
    files: Mapping[str, bytes] = field(repr=False)  # By path on the new head
    gone: tuple[str, ...]  # Documents that the new head has from a time when it was the head
    lost: Mapping[str, tuple[Member, ...]]  # Members on hosts that left the inventory, by service


def taking_over(survey: Survey) -> TakeOver | None:
    """Return what the inventory's head needs that is a worker of another one yet; None if it is
    the head, is no node yet, or nobody has documents of that head."""
    head = survey.inventory.head.name
    own = _node_of(survey, head)
    if own is None or own.role == "head":
        return None
    before = next((one.host for one in own.expected if one.node_ip == own.head_ip), "")
    copies = {
        name: copy
        for name, copy in {**survey.copies, **_own_of(survey, before)}.items()
        if copy.head == before
    }
    if not copies:
        return None
    keeper = max(copies, key=lambda name: copies[name].serial)
    return _from_copy(survey, own, keeper, copies[keeper])


def rivals(survey: Survey) -> list[RequirementsNotMet]:
    """Return an error for each host that took over from the inventory's head while that was away:
    its documents are newer."""
    inventory, cluster = survey.inventory, survey.inventory.cluster
    head = inventory.head.name
    if (node := _node_of(survey, head)) is None or node.role != "head":
        return []

    def serial(name: str) -> int:
        return read_serial(survey.answers[name].files.get(serial_file(cluster)))

    return [
        RequirementsNotMet(
            f"became the head while {head} was away, and has newer documents than {head}",
            host=name,
            hint=f"write `role: head` for {name} in {inventory.file}, and `role: worker` for "
            f"{head}; clusterctl bootstrap {inventory.file}; then you may change them again",
        )
        for name in survey.answers
        if name != head
        and (other := _node_of(survey, name)) is not None
        and other.role == "head"
        and serial(name) > serial(head)
    ]


def copies_in(survey: Survey) -> dict[str, HeadCopy]:
    """Return the copies of the head's documents that hosts keep, by host."""
    file = copy_file(survey.inventory.cluster)
    found = {name: read_copy(answer.files.get(file)) for name, answer in survey.answers.items()}
    return {name: copy for name, copy in found.items() if copy}


def copy_of_head(survey: Survey) -> HeadCopy:
    """Return the copy of the head's documents that its keepers should have. The head has to have
    answered."""
    head = survey.inventory.head.name
    serial = read_serial(survey.head_file(serial_file(survey.inventory.cluster)))
    late = {file: data.decode() for file, data in survey.not_copied.items()}
    return HeadCopy(head, serial, survey.facts[head].clock, {**late, **survey.written})


def keepers_behind(survey: Survey) -> set[str]:
    """Return the keepers whose copy of the head's documents differs."""
    wanted = copy_of_head(survey)
    nothing = HeadCopy(wanted.head, 0, 0.0)
    kept = {host.name: survey.copies.get(host.name, nothing) for host in survey.inventory.keepers}
    return {
        name
        for name, copy in kept.items()
        if (copy.head, copy.documents) != (wanted.head, wanted.documents)
    }


def _node_of(survey: Survey, host: str) -> NodeDocument | None:
    answer = survey.answers.get(host)
    data = (
        answer.files.get(str(NodePaths(survey.inventory.cluster).node_document)) if answer else None
    )
    try:
        return from_json(NodeDocument, data.decode()) if data else None
    except ValueError:
        return None


def _own_of(survey: Survey, head: str) -> dict[str, HeadCopy]:
    """Return the documents of the earlier head as it has them, if it answers."""
    answer, cluster = survey.answers.get(head), survey.inventory.cluster
    if answer is None:
        return {}
    serial = read_serial(answer.files.get(serial_file(cluster)))
    documents = documents_in(declared_dir(cluster), answer.files)
    # With the number of the last copy, these are still newer
    return {head: HeadCopy(head, serial + 1, answer.facts.clock, documents)}


def _from_copy(survey: Survey, own: NodeDocument, keeper: str, copy: HeadCopy) -> TakeOver:
    cluster, answer = survey.inventory.cluster, survey.answers[survey.inventory.head.name]
    documents = {file: text for file, text in copy.documents.items() if is_document(file, text)}
    lost, replicas = dict[str, tuple[Member, ...]](), set[str]()
    for file in [each for each in documents if each.startswith("members/")]:
        listed, away = _without_gone_hosts(survey, own, read_document(file, documents[file]))
        documents[file] = to_json(listed)
        lost |= {listed.service: away} if away else {}
        replicas |= {replica_name(listed.service, one.replica) for one in listed.members}

    files = {serial_file(cluster): f"{copy.serial + 1}\n".encode()}
    for file, text in documents.items():
        of_replica = file.startswith("services/")
        if of_replica and file.rpartition("/")[2].removesuffix(".json") not in replicas:
            continue
        files[f"{declared_dir(cluster)}/{file}"] = text.encode()
        if not of_replica:
            files[f"{config_dir(cluster)}/{file}"] = text.encode()

    there = [
        f"{directory}/{file}"
        for directory in (config_dir(cluster), declared_dir(cluster))
        for file in documents_in(directory, answer.files)
        if file != "node.json"
        and not (directory == config_dir(cluster) and file.startswith("services/"))
    ]
    gone = tuple(path for path in there if path not in files)
    age = max(0.0, answer.facts.clock - copy.written)
    return TakeOver(copy.head, keeper, age, files, gone, lost)


def _without_gone_hosts(
    survey: Survey, own: NodeDocument, listed: MembersDocument
) -> tuple[MembersDocument, tuple[Member, ...]]:
    """Return the list with the members on hosts of the inventory, at an address that the new head
    has, and the other members."""
    head, hosts = survey.inventory.head, {host.name for host in survey.inventory.hosts}
    facts, listens = survey.answers[head.name].facts, listed.listen
    if listens and listens not in EVERYWHERE and not facts.nic_with(listens):
        listens = client_address(head, facts, own.node_ip)
    here = [one for one in listed.members if one.host in hosts]
    away = tuple(one for one in listed.members if one.host not in hosts)
    return replace(listed, members=here, listen=listens), away
