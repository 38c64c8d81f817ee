"""`init`: create an inventory from addresses: one probe per host, then bootstrap's rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.errors import (
    ClusterctlError,
    ConnectionFailed,
    Problems,
    UsageError,
    raise_all,
)
from clusterctl.facts.gather import probe
from clusterctl.facts.model import HostFacts
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Host, Inventory, Nics, Ssh
from clusterctl.inventory.values import shown, value_problem
from clusterctl.network.choice import resolve
from clusterctl.network.fabric_choice import NoNetwork, Option, Undecided
from clusterctl.ray_cluster.topology import Topology
from clusterctl.survey.inventory_text import (
    Found,
    InitOptions,
    choose_head,
    doubts,
    inventory_names,
)
from clusterctl.transport.connect import Connections
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import Outcome, failures, fan_out, values
from clusterctl.transport.known_hosts import OfferedKey, UnknownHostKey

# Shows the keys of unknown hosts, by host; returns whether the user accepts them
AcceptKeys = Callable[[Mapping[str, OfferedKey]], bool]

Decide = Callable[[Undecided], Option | None]  # Asks the user; None if that is not possible

_NO_SUBNET = "without --subnet, init chooses"


def run(
    options: InitOptions,
    hosts: Sequence[Host],
    credentials: Credentials,
    *,
    accept_keys: AcceptKeys,
    decide: Decide,
) -> Found:
    """Probe `hosts` and choose. Changes only known_hosts, if `accept_keys` returns True.

    Raises ConnectionFailed of all hosts together, UsageError for options that are invalid in an
    inventory, RequirementsNotMet if no network is shared, or if the user leaves a tie undecided.
    """
    _inventory(options, (Host(name="any", address="any", role="head"),))  # before hosts are asked
    answers = _ask(hosts, options, credentials, accept_keys)
    names = inventory_names({word: answer.facts for word, answer in answers.items()})
    facts = {names[word]: answer.facts for word, answer in answers.items()}
    words = {name: word for word, name in names.items()}
    head, reason = choose_head(tuple(facts), facts)
    renamed = [
        host.model_copy(
            update={
                "name": names[host.name],
                "role": "head" if names[host.name] == head else "worker",
            }
        )
        for host in hosts
    ]
    inventory, topology = choose_networks(_inventory(options, renamed), facts, decide)
    return Found(
        inventory,
        facts,
        topology,
        words,
        reason,
        tuple(doubts(words, facts, counted=accelerator_named(options.accelerator).counted)),
    )


def _inventory(options: InitOptions, hosts: Sequence[Host]) -> Inventory:
    try:
        checked = Inventory.model_validate(
            {
                "cluster": options.cluster,
                "image": options.image,
                "models": options.models,
                "accelerator": options.accelerator,
                "network": {"subnet": options.subnet},
                "hosts": (Host(name="any", address="any"),),
            }
        )
    except ValidationError as error:
        raise_all(_refused(item) for item in error.errors(include_url=False))
        raise
    return checked.model_copy(update={"ssh": options.ssh, "hosts": tuple(hosts)})


def ssh_of(**values: str | int | Path | None) -> Ssh:
    """Return the SSH options that were given. Relative paths become absolute: in an inventory they
    would be relative to its file. Raises UsageError."""
    given = {
        key: value.expanduser().absolute() if isinstance(value, Path) else value
        for key, value in values.items()
        if value is not None
    }
    try:
        return Ssh.model_validate(given)
    except ValidationError as error:
        raise_all(_refused(item) for item in error.errors(include_url=False))
        raise


def _refused(error: Mapping[str, Any]) -> UsageError:
    option = str(error["loc"][-1])
    problem = value_problem(error, shown(error["input"], None))
    hint = _NO_SUBNET if option == "subnet" else "clusterctl init --help"
    return UsageError(f"--{option}: {problem}", hint=hint)


def _ask(
    hosts: Sequence[Host], options: InitOptions, credentials: Credentials, accept_keys: AcceptKeys
) -> dict[str, Probe]:
    """Probe the hosts, and those whose key the user accepts a second time. Return the answers by
    the word that named each host."""

    def look(names: Collection[str]) -> dict[str, Outcome[Probe]]:
        asked = {host.name: connections.to(host) for host in hosts if host.name in names}
        disks, gpus = ("/", options.models), accelerator_named(options.accelerator).gpu_probe
        return fan_out(asked, lambda it: probe(it, disks=disks, gpu_probe=gpus, sudo=False))

    with Connections(credentials) as connections:
        outcomes = look([host.name for host in hosts])
        unknown = [error for error in failures(outcomes) if isinstance(error, UnknownHostKey)]
        offered = {str(error.host): error.offered for error in unknown if error.offered}
        if offered and accept_keys(offered):
            for host, key in offered.items():
                try:
                    key.remember()
                except OSError as error:
                    raise ConnectionFailed(
                        f"its key cannot be added to {key.file}: {error.strerror}",
                        host=host,
                        hint=f"ls -ld {key.file.parent} {key.file}",
                    ) from error
            outcomes.update(look(offered))
    failed = failures(outcomes)
    for refused in failed:
        if isinstance(refused, UnknownHostKey):
            refused.detail = f"it shows {refused.offered}"
            refused.hint = (
                "compare with the host's own key (ssh-keygen -lf "
                "/etc/ssh/ssh_host_ed25519_key.pub), then add --accept-new-host-keys; "
                "on a terminal, init shows the keys and asks"
            )
    raise_all(failed)
    return values(outcomes)


def choose_networks(
    inventory: Inventory, facts: Mapping[str, HostFacts], decide: Decide
) -> tuple[Inventory, Topology]:
    """Return the topology, asking the user about ties; each answer settles at least one host.

    Raises the errors of the choice, unless the user settles all ties.
    """
    for _ in facts:
        try:
            return inventory, resolve(inventory, facts)
        except ClusterctlError as error:
            found = error.errors if isinstance(error, Problems) else (error,)
            for problem in found:
                if isinstance(problem, NoNetwork) and inventory.network.subnet:
                    said = " or ".join(f"--subnet {subnet}" for subnet in problem.subnets)
                    problem.hint = f"{said}; {_NO_SUBNET}" if said else _NO_SUBNET
            ties = [problem for problem in found if isinstance(problem, Undecided)]
            if len(ties) < len(found):
                raise
            inventory = _with_answers(inventory, ties, decide)
    return inventory, resolve(inventory, facts)


def _with_answers(inventory: Inventory, ties: Sequence[Undecided], decide: Decide) -> Inventory:
    """Add the user's answers. Raises all `ties` if one remains undecided."""
    nics: dict[str, str] = {}
    for tie in ties:
        answer = decide(tie)
        if answer is None:
            for each in ties:
                subnets = list(dict.fromkeys(option.subnet for option in each.options))
                said = " or ".join(f"--subnet {subnet}" for subnet in subnets)
                asks = "run init on a terminal, where it asks"
                each.hint = f"choose one: {said}; or {asks}" if len(subnets) > 1 else asks
            raise_all(ties)
        else:
            nics.update(answer.nics)

    def with_answer(host: Host) -> Host:
        nic = nics.get(host.name)
        return host.model_copy(update={"nics": Nics(nccl=nic, gloo=nic)}) if nic else host

    return inventory.model_copy(update={"hosts": tuple(map(with_answer, inventory.hosts))})
