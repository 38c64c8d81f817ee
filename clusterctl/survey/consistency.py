"""Check that all hosts have the same image, Ray, Python and vLLM, as Ray requires."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clusterctl import deadlines
from clusterctl.containers.drivers import driver_for
from clusterctl.errors import ClusterctlError, RequirementsNotMet
from clusterctl.inventory.model import Inventory
from clusterctl.node.documents import NodeState
from clusterctl.steps.derived_image import Contents, look_inside
from clusterctl.survey.survey import Survey
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import fan_out, values


def differences(survey: Survey) -> list[ClusterctlError]:
    """Return an error for every host whose image differs from the first host's, and for every
    running container with other releases than the first."""
    states = {name: state for name, state in survey.states.items() if name in survey.running}
    return [*_images(survey), *releases_apart(survey.inventory, states)]


def _images(survey: Survey) -> Iterator[RequirementsNotMet]:
    """Yield an error for each host whose image differs. Compares layers, since IDs depend on the
    image store. Looks up the releases inside only if they differ, as that takes seconds."""
    image = survey.inventory.image
    layers = {name: answer.image.layers for name, answer in survey.answers.items() if answer.image}
    first = next(iter(layers), None)
    others = [name for name in layers if first and layers[name] != layers[first]]
    if first is None or not others:
        return

    def look(transport: Transport) -> Contents:
        driver = driver_for(transport)
        found = driver.image(image)
        if found is None:
            return Contents(None, None)
        return look_inside(driver, found, timeout=deadlines.RELEASES_LOOK)

    inside = values(fan_out({name: survey.transports[name] for name in (first, *others)}, look))
    for name in others:
        here, there = inside.get(name), inside.get(first)
        told = []
        if here and there:
            pairs = (("Ray", here.ray, there.ray), ("vLLM", here.vllm, there.vllm))
            told = [
                f"{what} {mine or 'none'} here, {its or 'none'} on {first}"
                for what, mine, its in pairs
                if mine != its
            ]
        yield RequirementsNotMet(
            f"has another image than {first} under the name {image}"
            f"{': ' if told else ''}{'; '.join(told)}",
            host=name,
            hint=f"docker rmi -f {image} there; clusterctl bootstrap {survey.inventory.file}",
        )


def releases_apart(
    inventory: Inventory, states: Mapping[str, NodeState]
) -> list[RequirementsNotMet]:
    """Return an error for each release that differs from the first supervisor's. Pure."""
    first = next(iter(states), "")
    found = []
    for name, state in states.items():
        its = states[first]
        for what, mine, others in (
            ("Ray", state.ray_version, its.ray_version),
            ("Python", state.python_version, its.python_version),
            ("vLLM", state.vllm_version, its.vllm_version),
        ):
            if mine and others and mine != others:
                problem = RequirementsNotMet(
                    f"its container has {what} {mine}, the one of {first} has {others}",
                    host=name,
                    hint=f"clusterctl bootstrap {inventory.file}",
                )
                found.append(problem)
    return found
