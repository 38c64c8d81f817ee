"""Names of the hosts of a new inventory, from the command line and from the hosts' own. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import ValidationError

from clusterctl.errors import UsageError, raise_all
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Host, Ssh
from clusterctl.inventory.values import shown, value_problem
from clusterctl.transport.target import split_port

_LONGEST = 60  # characters: a name has at most 63, and a number may be added

FORMS = "write HOST, USER@HOST, HOST:PORT or [IPV6]:PORT; HOST may be an alias in ~/.ssh/config"


def named_hosts(words: Iterable[str], ssh: Ssh) -> tuple[Host, ...]:
    """Parse a host from each word, which becomes its name; `ssh` fills in what the word leaves out.

    Raises UsageError for every malformed word, and for a host named twice.
    """
    hosts: list[Host] = []
    problems: list[UsageError] = []
    for word in words:
        try:
            hosts.append(_host(word, ssh))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            problem = value_problem(first, shown(first["input"], None))
            problems.append(UsageError(f"{word!r} is not a valid host: {problem}", hint=FORMS))
    raise_all([*problems, *_named_twice(hosts)])
    return tuple(hosts)


def _host(word: str, ssh: Ssh) -> Host:
    user, _, place = word.rpartition("@")
    address, port = split_port(place)
    own = {"user": user or None, "port": port}
    given = {key: value for key, value in own.items() if value is not None}
    merged = Ssh(**{**ssh.model_dump(exclude_none=True), **given})
    # The name for errors until the host's own is known; names in an inventory are stricter.
    return Host(name="host", address=address, ssh=merged).model_copy(update={"name": word})


def _named_twice(hosts: Iterable[Host]) -> Iterable[UsageError]:
    seen: set[tuple[str, int | None]] = set()
    for host in hosts:
        place = (host.address.lower(), host.ssh.port)
        if place in seen:
            yield UsageError(f"{host.name} is named twice", hint="name every host once")
        seen.add(place)


def inventory_names(found: Mapping[str, HostFacts]) -> dict[str, str]:
    """Return by word the host's own name, without its domain, and with a number if an earlier host
    has the same name."""
    names: dict[str, str] = {}
    for word, facts in found.items():
        base = _plain(facts.hostname.partition(".")[0]) or f"host-{_plain(word)}".rstrip("-")
        name, number = base, 1
        while name in names.values():
            number += 1
            name = f"{base}-{number}"
        names[word] = name
    return names


def _plain(text: str) -> str:
    """Reduce to lower case letters, digits and dashes; `localhost`, which is not unique, to ""."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_LONGEST].strip("-")
    return "" if plain == "localhost" else plain


def choose_head(names: Sequence[str], found: Mapping[str, HostFacts]) -> tuple[str, str]:
    """Return the head and the reason: the first host that has GPUs, else the first one. The head
    has little more to do than the others: Ray's tables, and the process that answers requests."""
    with_gpus = [name for name in names if found[name].gpus.gpus]
    if not with_gpus or with_gpus[0] == names[0]:
        return names[0], "the first host named"
    return with_gpus[0], f"the first host named that has GPUs ({names[0]} has none)"


def doubts(words: Mapping[str, str], found: Mapping[str, HostFacts], *, counted: bool) -> list[str]:
    """Return one sentence for each thing that the user should check before using the inventory.

    words    host name to the word that named the host
    counted  hosts report how many devices they have
    """
    twins = _twins(found)
    said = [*_namesakes(words, found, twins), *_about_twins(words, twins)]
    if counted:
        said += [
            f"{name} shows no GPU: {why_no_gpu(facts)}"
            for name, facts in found.items()
            if not facts.gpus.gpus
        ]
    return said


def why_no_gpu(facts: HostFacts) -> str:
    """Reason why nvidia-smi lists no GPU of the host."""
    seen = facts.gpus.pci_devices
    on_bus = f", and its PCI bus shows {seen}" if seen else ""
    return f"{facts.gpus.error or 'nvidia-smi names none'}{on_bus}"


def _namesakes(
    words: Mapping[str, str], found: Mapping[str, HostFacts], twins: Mapping[str, str]
) -> Iterator[str]:
    firsts: dict[str, str] = {}
    for name, facts in found.items():
        first = firsts.setdefault(facts.hostname.lower(), name)
        if first != name and name not in twins:
            yield (
                f"{words[name]} calls itself {facts.hostname}, as {words[first]} does, and is "
                f"{name} here; on it: sudo hostnamectl set-hostname {name}"
            )


def _twins(found: Mapping[str, HostFacts]) -> dict[str, str]:
    """Return for each host the earlier name of the same machine, if there is one."""
    firsts: dict[tuple[str, str], str] = {}
    seen = {name: (facts.machine_id, facts.boot_id) for name, facts in found.items()}
    known = {name: firsts.setdefault(identity, name) for name, identity in seen.items()}
    return {name: first for name, first in known.items() if name != first and seen[name][1]}


def _about_twins(words: Mapping[str, str], twins: Mapping[str, str]) -> Iterator[str]:
    for name, first in twins.items():
        yield (
            f"{name} ({words[name]}) seems to be the same machine as {first} ({words[first]}): "
            "machine ID and boot ID are equal"
        )
