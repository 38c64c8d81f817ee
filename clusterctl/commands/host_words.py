"""Hosts as they are named on a command line: `gpu1`, `root@10.0.0.1`, `10.0.0.1:2222`."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import ValidationError

from clusterctl.errors import UsageError, raise_all
from clusterctl.inventory.model import Host, Ssh
from clusterctl.inventory.wording import shown, value_problem
from clusterctl.transport.target import split_port

FORMS = "write HOST, USER@HOST, HOST:PORT or [IPV6]:PORT; HOST may be an alias in ~/.ssh/config"


def named_hosts(words: Iterable[str], ssh: Ssh) -> tuple[Host, ...]:
    """A host for each word, under that word for a name; `ssh` is for what the word leaves out.

    Raises UsageError for every word that names no host, and for a place named twice.
    """
    hosts: list[Host] = []
    problems: list[UsageError] = []
    for word in words:
        try:
            hosts.append(_host(word, ssh))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            problem = value_problem(first, shown(first["input"], None))
            problems.append(UsageError(f"{word!r} names no host: {problem}", hint=FORMS))
    raise_all([*problems, *_named_twice(hosts)])
    return tuple(hosts)


def _host(word: str, ssh: Ssh) -> Host:
    user, _, place = word.rpartition("@")
    address, port = split_port(place)
    own = {"user": user or None, "port": port}
    given = {key: value for key, value in own.items() if value is not None}
    merged = Ssh(**{**ssh.model_dump(exclude_none=True), **given})
    # What errors call it until the host has said its name; names of an inventory are stricter.
    return Host(name="host", address=address, ssh=merged).model_copy(update={"name": word})


def _named_twice(hosts: Iterable[Host]) -> Iterable[UsageError]:
    seen: set[tuple[str, int | None]] = set()
    for host in hosts:
        place = (host.address.lower(), host.ssh.port)
        if place in seen:
            yield UsageError(f"{host.name} is named twice", hint="name every host once")
        seen.add(place)
