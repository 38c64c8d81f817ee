"""Which host has which model, side by side. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from clusterctl.transfer.weights.need import model_staged_in
from clusterctl.transfer.weights.on_host import HostModels, HostTree

# complete: every file is as its manifest says. unproven: it was put there by something else, and
# has no manifest. partial: files of its manifest are gone or were written to since. differs:
# complete, and another version than most hosts have. coming: on its way, or left half way.
State = Literal["complete", "unproven", "partial", "differs", "coming", "absent"]


@dataclass(frozen=True)
class Holding:
    """One model over all hosts."""

    name: str  # Of the directory, below the models directory
    size: int  # Bytes, of the largest
    origin: str  # Where it came from, such as hf:Qwen/Qwen3-8B@<commit>; empty when nobody knows
    hosts: Mapping[str, State]  # By name, every host that answered


def holdings(hosts: Mapping[str, HostModels]) -> list[Holding]:
    """All models that some host has or is to have, by name."""
    names = {tree.path for found in hosts.values() for tree in found.trees}
    names |= {model_staged_in(way) for found in hosts.values() for way in found.incoming}
    return [_holding(name, hosts) for name in sorted(names, key=str.casefold)]


def _holding(name: str, hosts: Mapping[str, HostModels]) -> Holding:
    trees = {host: tree for host, found in hosts.items() if (tree := found.tree(name))}
    manifests = [tree.manifest for tree in trees.values() if tree.manifest]
    usual = Counter(manifest.identity for manifest in manifests).most_common(1)
    reference = usual[0][0] if usual else None
    size = max((tree.size for tree in trees.values()), default=0)
    origin = next((manifest.origin for manifest in manifests if manifest.origin), "")
    states = {host: _state(name, found, reference) for host, found in hosts.items()}
    return Holding(name, size, origin, states)


def _state(name: str, found: HostModels, reference: str | None) -> State:
    tree = found.tree(name)
    if tree is None:
        return "coming" if any(model_staged_in(way) == name for way in found.incoming) else "absent"
    return _of_tree(tree, reference)


def _of_tree(tree: HostTree, reference: str | None) -> State:
    if tree.manifest is None:
        return "unproven"
    if tree.lacking:
        return "partial"
    return "complete" if tree.manifest.identity == reference else "differs"
