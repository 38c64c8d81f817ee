"""Whether hosts have the same: image, Ray, Python and vLLM. Ray refuses a node that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from clusterctl import deadlines
from clusterctl.commands.lacking import running
from clusterctl.commands.reach import read_state
from clusterctl.containers.drivers import driver_for
from clusterctl.errors import ClusterctlError, RequirementsNotMet
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Inventory
from clusterctl.node.documents import NodeState
from clusterctl.node.paths import NodePaths
from clusterctl.steps.derived_image import Contents, look_inside
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import fan_out, values


def differences(
    inventory: Inventory, answers: Mapping[str, Probe], transports: Mapping[str, Transport]
) -> list[ClusterctlError]:
    """Every host that has not the image of the first, and every container that runs another
    release than the first."""
    return [
        *_images(inventory, answers, transports),
        *releases_apart(inventory, _states(inventory, answers)),
    ]


def _images(
    inventory: Inventory, answers: Mapping[str, Probe], transports: Mapping[str, Transport]
) -> Iterator[RequirementsNotMet]:
    """Layers are compared, since an ID depends on the image store. Looking inside takes seconds,
    and is done only where they differ."""
    layers = {name: answer.image.layers for name, answer in answers.items() if answer.image}
    first = next(iter(layers), None)
    others = [name for name in layers if first and layers[name] != layers[first]]
    if first is None or not others:
        return
    inside = values(
        fan_out({name: transports[name] for name in (first, *others)}, _look(inventory))
    )
    for name in others:
        yield RequirementsNotMet(
            f"has another image than {first} under the name {inventory.image}"
            f"{_releases(inside.get(name), inside.get(first), first)}",
            host=name,
            hint=f"docker rmi -f {inventory.image} there; clusterctl bootstrap {inventory.file}",
        )


def _look(inventory: Inventory) -> Callable[[Transport], Contents]:
    def look(transport: Transport) -> Contents:
        driver = driver_for(transport)
        image = driver.image(inventory.image)
        return (
            look_inside(driver, image, timeout=deadlines.RELEASES_LOOK)
            if image
            else Contents(None, None)
        )

    return look


def _releases(here: Contents | None, there: Contents | None, first: str) -> str:
    """`: Ray 2.59.0 here, 2.60.0 on gpu1`."""
    if here is None or there is None:
        return ""
    pairs = (("Ray", here.ray, there.ray), ("vLLM", here.vllm, there.vllm))
    told = [
        f"{what} {mine or 'none'} here, {its or 'none'} on {first}"
        for what, mine, its in pairs
        if mine != its
    ]
    return f": {'; '.join(told)}" if told else ""


def _states(inventory: Inventory, answers: Mapping[str, Probe]) -> dict[str, NodeState]:
    path = str(NodePaths(inventory.cluster).state)
    found = {name: read_state(answers[name].files.get(path))
             for name in answers if name in running(inventory, answers)}  # fmt: skip
    return {name: state for name, state in found.items() if state}


def releases_apart(
    inventory: Inventory, states: Mapping[str, NodeState]
) -> list[RequirementsNotMet]:
    """What supervisors say of their containers, against the first's. Pure."""
    first = next(iter(states), None)
    return [
        RequirementsNotMet(
            f"its container has {what} {mine}, the one of {first} has {its}",
            host=name,
            hint=f"clusterctl bootstrap {inventory.file}",
        )
        for name, state in states.items()
        for what, mine, its in _compared(state, states[first or name])
        if mine and its and mine != its
    ]


def _compared(one: NodeState, other: NodeState) -> tuple[tuple[str, str, str], ...]:
    return (
        ("Ray", one.ray_version, other.ray_version),
        ("Python", one.python_version, other.python_version),
        ("vLLM", one.vllm_version, other.vllm_version),
    )
