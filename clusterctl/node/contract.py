"""The Ray contract: every expected node is in Ray exactly once, with its declared GPUs. Pure.

The supervisor checks it before it starts a service, the controller through `ray_cluster.contract`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Callable, List, Sequence

from clusterctl.node.documents import ExpectedNode, RayNode


@dataclass(frozen=True)
class Breach:
    """One way in which Ray differs from the expected nodes."""

    host: str
    summary: str


def breaches(expected: Sequence[ExpectedNode], nodes: Sequence[RayNode]) -> List[Breach]:
    """Return every breach of the contract, with the reason why a missing node died if known."""
    alive = [node for node in nodes if node.alive]
    found: List[Breach] = []
    for wanted in expected:
        same = [node for node in alive if node.name == wanted.host]
        if not same:
            dead = [node for node in nodes if node.name == wanted.host and not node.alive]
            why = f"left Ray: {dead[-1].death_reason or 'no reason given'}" if dead else ""
            found.append(Breach(wanted.host, why or "has not joined Ray"))
        elif len(same) > 1:
            places = ", ".join(sorted(node.node_ip for node in same))
            found.append(Breach(wanted.host, f"is in Ray {len(same)} times ({places})"))
        else:
            (node,) = same
            if node.node_ip != wanted.node_ip:
                text = f"joined Ray as {node.node_ip}, and its node IP is {wanted.node_ip}"
                found.append(Breach(wanted.host, text))
            if node.gpus < wanted.gpus:
                text = f"brought {node.gpus:g} GPUs to Ray, but the inventory declares "
                found.append(Breach(wanted.host, f"{text}{wanted.gpus}"))
    known = {wanted.host for wanted in expected}
    for node in alive:
        if node.name not in known:
            text = f"is in Ray at {node.node_ip}, and not in the inventory"
            found.append(Breach(node.name or node.node_ip, text))
    found.extend(_differing(alive, "Ray", lambda node: node.ray_version))
    found.extend(_differing(alive, "Python", lambda node: minor_release(node.python_version)))
    return found


def minor_release(version: str) -> str:
    """Return `3.12` of `3.12.9`: Ray's nodes need no more than that to be the same."""
    return ".".join(version.split(".")[:2])


def free_gpus(nodes: Sequence[RayNode]) -> float:
    """Return the number of GPUs of living nodes that are not reserved."""
    return sum(node.gpus - node.gpus_used for node in nodes if node.alive)


def _differing(
    alive: Sequence[RayNode], what: str, version: Callable[[RayNode], str]
) -> List[Breach]:
    """Return the nodes whose version is not the most common one; the head's decides a tie."""
    known = [node for node in sorted(alive, key=lambda node: not node.head) if version(node)]
    if not known:
        return []
    usual = Counter(version(node) for node in known).most_common(1)[0][0]
    return [
        Breach(node.name, f"runs {what} {version(node)}, and the others {usual}")
        for node in known
        if version(node) != usual
    ]
