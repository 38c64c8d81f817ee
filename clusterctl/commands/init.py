"""`init`: make an inventory from addresses. One probe per host, then bootstrap's rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from clusterctl.facts.candidates import candidates
from clusterctl.facts.gather import probe
from clusterctl.facts.model import HostFacts
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Host, Inventory, Nics, Ssh
from clusterctl.inventory.values import shown, value_problem
from clusterctl.network.choice import OutsideSubnet, resolve
from clusterctl.network.fabric_choice import Option, Undecided, shared_subnets
from clusterctl.ray_cluster.topology import Topology
from clusterctl.survey.host_names import choose_head, doubts, inventory_names
from clusterctl.survey.inventory_text import Found, Wishes
from clusterctl.transport.connect import Connections
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import Outcome, failures, fan_out, values
from clusterctl.transport.known_hosts import OfferedKey, UnknownHostKey

# Shows the keys of unknown hosts, by host; returns whether the user accepts them
AcceptKeys = Callable[[Mapping[str, OfferedKey]], bool]

Decide = Callable[[Undecided], Option | None]  # Asks the user; None if that is not possible

_NO_SUBNET = "without --subnet, init chooses"


def run(
    wishes: Wishes,
    hosts: Sequence[Host],
    credentials: Credentials,
    *,
    accept_keys: AcceptKeys,
    decide: Decide,
) -> Found:
    """Probe `hosts` and choose. Changes only known_hosts, if `accept_keys` returns True.

    Raises ConnectionFailed of all hosts together, UsageError for wishes that are invalid in an
    inventory, RequirementsNotMet if no network is shared, or a tie that the user does not decide.
    """
    _inventory(wishes, (Host(name="any", address="any", role="head"),))  # before hosts are asked
    answers = _ask(hosts, wishes, credentials, accept_keys)
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
    inventory, topology = settle(_inventory(wishes, renamed), facts, decide)
    return Found(
        inventory,
        facts,
        topology,
        words,
        reason,
        tuple(doubts(words, facts, counted=accelerator_named(wishes.accelerator).counted)),
    )


def _inventory(wishes: Wishes, hosts: Sequence[Host]) -> Inventory:
    try:
        checked = Inventory.model_validate(
            {
                "cluster": wishes.cluster,
                "image": wishes.image,
                "models": wishes.models,
                "accelerator": wishes.accelerator,
                "network": {"subnet": wishes.subnet},
                "hosts": (Host(name="any", address="any"),),
            }
        )
    except ValidationError as error:
        raise_all(_refused(item) for item in error.errors(include_url=False))
        raise
    return checked.model_copy(update={"ssh": wishes.ssh, "hosts": tuple(hosts)})


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
    hosts: Sequence[Host], wishes: Wishes, credentials: Credentials, accept_keys: AcceptKeys
) -> dict[str, Probe]:
    """Probe the hosts, by the word that named them; again those whose key was accepted."""

    def look(names: Sequence[str]) -> dict[str, Outcome[Probe]]:
        asked = {host.name: connections.to(host) for host in hosts if host.name in names}
        disks, gpus = ("/", wishes.models), accelerator_named(wishes.accelerator).gpu_probe
        return fan_out(asked, lambda it: probe(it, disks=disks, gpu_probe=gpus, sudo=False))

    with Connections(credentials) as connections:
        outcomes = look([host.name for host in hosts])
        unknown = [error for error in failures(outcomes) if isinstance(error, UnknownHostKey)]
        offered = {str(error.host): error.offered for error in unknown if error.offered}
        if offered and accept_keys(offered):
            for host, key in offered.items():
                _remember(host, key)
            outcomes.update(look(list(offered)))
    raise_all(_told_for_init(error) for error in failures(outcomes))
    return values(outcomes)


def _remember(host: str, key: OfferedKey) -> None:
    try:
        key.remember()
    except OSError as error:
        raise ConnectionFailed(
            f"its key cannot be added to {key.file}: {error.strerror}",
            host=host,
            hint=f"ls -ld {key.file.parent} {key.file}",
        ) from error


def _told_for_init(error: ClusterctlError) -> ClusterctlError:
    if isinstance(error, UnknownHostKey):
        error.detail = f"it shows {error.offered}"
        error.hint = (
            "compare with the host's own key (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), "
            "then add --accept-new-host-keys; on a terminal, init shows the keys and asks"
        )
    return error


def settle(
    inventory: Inventory, facts: Mapping[str, HostFacts], decide: Decide
) -> tuple[Inventory, Topology]:
    """Return the topology, asking the user about ties; each answer settles at least one host."""
    for _ in facts:
        try:
            return inventory, resolve(inventory, facts)
        except ClusterctlError as error:
            told = _with_other_subnets(inventory, error, facts)
            inventory = _with_answers(inventory, told, decide)
    return inventory, resolve(inventory, facts)


def _with_other_subnets(
    inventory: Inventory, error: ClusterctlError, facts: Mapping[str, HostFacts]
) -> ClusterctlError:
    """Set the hint of OutsideSubnet errors to the values of --subnet that all hosts share."""
    for problem in error.errors if isinstance(error, Problems) else (error,):
        if isinstance(problem, OutsideSubnet):
            shared = shared_subnets({name: candidates(host) for name, host in facts.items()})
            others = [it.subnet for it in shared if it.subnet != inventory.network.subnet]
            said = " or ".join(f"--subnet {other}" for other in others)
            problem.hint = f"{said}; {_NO_SUBNET}" if said else _NO_SUBNET
    return error


def _with_answers(inventory: Inventory, error: ClusterctlError, decide: Decide) -> Inventory:
    """Add the user's answers. Raises `error` if it is not a tie, or remains undecided."""
    found = error.errors if isinstance(error, Problems) else (error,)
    nics: dict[str, str] = {}
    for problem in found:
        if not isinstance(problem, Undecided):
            raise error
        answer = decide(problem)
        if answer is None:
            raise_all(_question_for_init(each) for each in found)
        else:
            nics.update(answer.nics)
    hosts = (
        host.model_copy(update={"nics": Nics(nccl=nics[host.name], gloo=nics[host.name])})
        if host.name in nics
        else host
        for host in inventory.hosts
    )
    return inventory.model_copy(update={"hosts": tuple(hosts)})


def _question_for_init(error: ClusterctlError) -> ClusterctlError:
    if isinstance(error, Undecided):
        subnets = list(dict.fromkeys(option.subnet for option in error.options))
        said = " or ".join(f"--subnet {subnet}" for subnet in subnets)
        asks = "run init on a terminal, where it asks"
        error.hint = f"choose one: {said}; or {asks}" if len(subnets) > 1 else asks
    return error
