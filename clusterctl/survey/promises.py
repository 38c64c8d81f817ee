"""The promises of docs/security.md and their state on a cluster, as far as hosts and the plan show
it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clusterctl.containers.reference import pinned
from clusterctl.engine.plan import Plan
from clusterctl.engine.step import Change
from clusterctl.errors import ClusterctlError, RequirementsNotMet
from clusterctl.network.choice import public_addresses
from clusterctl.ray_cluster.nodes import NON_CARRY_OVER_FILE
from clusterctl.ray_cluster.topology import Topology
from clusterctl.survey.drift import differences
from clusterctl.survey.survey import Survey

TITLES = (
    "No code in a node container changes its host",
    "A compromised host gains nothing on another",
    "What a host says cannot drive your terminal, and every answer has a limit",
    "What is installed is pinned",
    "Ray never runs without its token, vLLM never without its key",
    "The key leaves the head by SSH only",
    "Ports between nodes answer inventory hosts only",
    "No secret and no dangerous switch passes by accident",
    "An unknown or changed key stops, and no password goes to an unverified host",
    "Users of hosts without root do not steer a run",
)

# What bootstrap would change in these stages is what keeps a promise.
_KEPT_BY = {
    "Directories": (1, 10),
    "Firewall": (7,),
    "Ray head": (1,),
    "Ray workers": (1,),
    "Secrets of the cluster": (5, 6),
    "Secrets for workers": (5, 6),
    "Secrets for replicas": (5, 6),
}

# `by design`: no host can show it; the tests that docs/security.md names hold it.
State = Literal["holds", "broken", "by design", "not known"]


@dataclass(frozen=True)
class PromiseState:
    """One promise on one cluster."""

    number: int
    state: State
    words: str  # what was seen, or why nothing was
    problems: tuple[ClusterctlError, ...] = ()  # why it is broken, by host

    @property
    def title(self) -> str:
        return TITLES[self.number - 1]


def promise_states(
    survey: Survey, topology: Topology | None, plan: Plan | None
) -> list[PromiseState]:
    """Return the state of each promise, in order. `plan`: what bootstrap would change on the hosts;
    None if it could not be planned."""
    inventory = survey.inventory
    problems: dict[int, list[ClusterctlError]] = {number: [] for number in range(1, 11)}
    for planned in plan.changes if plan and survey.containers else ():
        if isinstance(planned.change, Change):
            tells = NON_CARRY_OVER_FILE in planned.change.summary
            for number in (6,) if tells else _KEPT_BY.get(planned.stage, ()):
                problems[number].append(
                    RequirementsNotMet(
                        f"bootstrap would {planned.change.summary}",
                        host=planned.host,
                        hint=f"clusterctl bootstrap {inventory.file}",
                    )
                )
    problems[4] += differences(survey)
    if topology:
        problems[7] += public_addresses(inventory, topology)
    if inventory.allow_unauthenticated_ray:
        problems[5].append(
            RequirementsNotMet(
                "allow_unauthenticated_ray: anyone who reaches Ray's ports can run code on hosts",
                hint=f"an image with Ray 2.52 or newer, and without the key in {inventory.file}",
            )
        )
    seen = _seen(survey)
    if not survey.containers or plan is None:
        why = "the plan needs answers from all hosts" if survey.containers else "nothing runs yet"
        for number in {number for numbers in _KEPT_BY.values() for number in numbers} | {4}:
            seen[number] = ("not known", why)
    return [
        PromiseState(number, "broken", "; ".join(map(str, problems[number])), (*problems[number],))
        if problems[number]
        else PromiseState(number, *seen[number])
        for number in problems
    ]


def _seen(survey: Survey) -> dict[int, tuple[State, str]]:
    """Return the state of each promise, unless something contradicts it."""
    inventory = survey.inventory
    if inventory.network.firewall:
        ports: tuple[State, str] = ("holds", "the firewall's rules are loaded on every host")
    elif inventory.network.public:
        ports = ("by design", "network.public: the inventory says that ports are closed elsewhere")
    else:
        ports = ("by design", "no firewall: the network of the node addresses is the boundary")
    trusting = [host.name for host in inventory.hosts if host.ssh.accept_new]
    known = "every key must be in known_hosts"
    first = f"accept_new: the first key of {', '.join(trusting)} is accepted unverified"
    image = "every host has the same image, by its layers"
    digest = next(iter(survey.image_digests.values()), None)
    if digest and "@" not in inventory.image:
        image += f"; to pin it, `image: {pinned(inventory.image, digest)}`"
    return {
        1: ("holds", "every container is as this version creates it"),
        2: ("by design", "answers from hosts are parsed as hostile input"),
        3: ("by design", "output is escaped and limited"),
        4: ("holds", image),
        5: ("holds", "the files are as they should be on every host"),
        6: ("holds", "vLLM requires the key; its file on the head is readable by root only"),
        7: ports,
        8: ("holds", "the inventory has neither"),
        9: ("by design", first if trusting else known),
        10: ("holds", "directories belong to root and have the right modes"),
    }
