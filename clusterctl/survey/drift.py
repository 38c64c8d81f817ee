"""Drift: how hosts differ from a bootstrapped state, according to a survey and bootstrap's plan;
and from each other in image, Ray and Python, which must be the same for Ray."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from clusterctl import deadlines
from clusterctl.containers.drivers import driver_for
from clusterctl.containers.spec import FINGERPRINT_LABEL
from clusterctl.engine.plan import Plan
from clusterctl.engine.step import Change
from clusterctl.errors import ClusterctlError, RequirementsNotMet
from clusterctl.inventory.model import Inventory
from clusterctl.node.contract import breaches, minor_release
from clusterctl.node.documents import NodeState, log_dir, to_json
from clusterctl.node.files import NodePaths
from clusterctl.ray_cluster.nodes import container_spec, expected_nodes, node_document
from clusterctl.ray_cluster.topology import Topology
from clusterctl.steps.node_container import own_container
from clusterctl.steps.node_image import Contents, look_inside
from clusterctl.survey.cluster import Cluster, single
from clusterctl.survey.survey import Survey
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import failures, fan_out, values

OTHER_CONTAINER = "its container is from a different inventory or version (clusterctl plan)"
OTHER_NODE = "its node.json is from a different inventory or version (clusterctl plan)"


def drift(survey: Survey) -> dict[str, tuple[str, ...]]:
    """Return how each host's container and node.json differ from the expected ones.

    Empty unless all hosts answer, since the topology needs the facts of all.
    """
    if len(survey.facts) < len(survey.inventory.hosts):
        return {}
    try:
        topology = survey.topology
    except ClusterctlError:
        return {}
    found: dict[str, tuple[str, ...]] = {}
    path = str(NodePaths(survey.inventory.cluster).node_document)
    for name, container in survey.containers.items():
        node, facts = topology.node(name), survey.facts[name]
        spec = container_spec(node, container.image, survey.inventory, facts, topology)
        expected = to_json(node_document(survey.inventory, topology, node, facts)).encode()
        unreadable = {document.file for document in survey.unreadable.get(name, ())}
        differs = []
        if container.labels.get(FINGERPRINT_LABEL) != spec.fingerprint():
            differs.append(OTHER_CONTAINER)
        # An unreadable document is reported elsewhere.
        if "node.json" not in unreadable and survey.answers[name].files.get(path) != expected:
            differs.append(OTHER_NODE)
        found[name] = tuple(differs)
    return found


def plan_problems(
    survey: Survey,
    topology: Topology | None,
    plan_for: Callable[[Cluster, tuple[str, ...]], Plan],
) -> list[ClusterctlError]:
    """Return a problem for every host on which bootstrap would change something, if any host has a
    node container; otherwise, for every host where another cluster's container has the name.

    Skips engines that do not answer, which are reported elsewhere. A plan needs all hosts of the
    inventory, since each host's documents depend on all others.
    """
    inventory = survey.inventory
    able = {name: view for name, view in survey.views.items() if view.facts.engine.running}
    if not survey.containers:
        return failures(
            fan_out(able, lambda view: own_container(driver_for(view.transport), inventory.cluster))
        )
    if topology is None or len(topology.nodes) < len(inventory.hosts):
        return []
    if inventory.head.name not in able:
        return []
    try:
        planned = plan_for(Cluster(survey, topology, able, tuple(able)), tuple(able))
    except ClusterctlError as error:
        return single(error)
    by_host: dict[str, list[str]] = defaultdict(list)
    for line in planned.changes:
        if isinstance(line.change, Change):
            by_host[line.host].append(line.change.summary)
    return [
        RequirementsNotMet(
            f"has drifted from the inventory: {'; '.join(words)}",
            host=host,
            hint=f"clusterctl bootstrap {inventory.file}",
        )
        for host, words in by_host.items()
    ]


def ray_problems(survey: Survey, topology: Topology | None) -> list[ClusterctlError]:
    """Return the differences between Ray's nodes and the expected ones, from the head's report.
    Empty if the head's container is not running; skips hosts that are not in `topology`. Other
    checks report both cases."""
    if topology is None or survey.inventory.head.name not in survey.running:
        return []
    try:
        state = survey.require_supervised_head()
    except RequirementsNotMet as error:
        return [error]
    placed = {node.host for node in topology.nodes}
    return [
        *survey.strangers,
        *(
            RequirementsNotMet(
                breach.summary, host=breach.host, hint=f"clusterctl logs --host {breach.host}"
            )
            for breach in breaches(expected_nodes(topology), state.nodes)
            if breach.host in placed
        ),
    ]


def gpu_problems(survey: Survey) -> list[RequirementsNotMet]:
    """Return an error for each host with GPUs that its running container does not see."""
    found = {
        host.name: words
        for host in survey.inventory.hosts
        if host.name in survey.facts
        and len(survey.facts[host.name].gpus.gpus) >= len(host.gpus)
        and (words := survey.gpus_lost(host.name))
    }
    fix = f"clusterctl bootstrap {survey.inventory.file} (it recreates the container)"
    return [RequirementsNotMet(words, host=name, hint=fix) for name, words in found.items()]


def log_problems(survey: Survey) -> list[RequirementsNotMet]:
    """Return an error for each host whose supervisor reports that it cannot write its logs."""
    directory = log_dir(survey.inventory.cluster)
    return [
        RequirementsNotMet(
            f"{state.logs_problem}: logs and journal are not written",
            host=name,
            hint=f"clusterctl exec --limit {name} -- df -h {directory}",
        )
        for name in survey.answers
        if (state := survey.fresh_state(name)) and state.logs_problem
    ]


def differences(survey: Survey) -> list[ClusterctlError]:
    """Return an error for every host whose image differs from the first host's, and for every
    running container whose releases differ from the first one's."""
    states = {name: state for name, state in survey.states.items() if name in survey.running}
    return [*_images(survey), *releases_apart(survey.inventory, states)]


def _images(survey: Survey) -> Iterator[RequirementsNotMet]:
    """Yield an error for each host whose image differs from the first's: in layers, since IDs
    depend on the image store, or in the registry's digest. Looks up the releases inside only if
    images differ, since that takes seconds."""
    image, digests = survey.inventory.image, survey.image_digests
    layers = {name: answer.image.layers for name, answer in survey.answers.items() if answer.image}
    than = {name: _unlike(name, layers) or _unlike(name, digests) for name in layers}
    apart = {name: first for name, first in than.items() if first}
    if not apart:
        return

    def look(transport: Transport) -> Contents:
        driver = driver_for(transport)
        found = driver.image(image)
        if found is None:
            return Contents(None, None)
        return look_inside(driver, found, timeout=deadlines.RELEASES_LOOK)

    other = [each for name in apart if (first := _unlike(name, layers)) for each in (first, name)]
    inside = values(fan_out({name: survey.transports[name] for name in other}, look))
    for name, first in apart.items():
        here, there = inside.get(name), inside.get(first)
        releases = []
        if here and there:
            pairs = (("Ray", here.ray, there.ray), ("vLLM", here.vllm, there.vllm))
            releases = [
                f"{what} {mine or 'none'} here, {its or 'none'} on {first}"
                for what, mine, its in pairs
                if mine != its
            ]
        if _unlike(name, digests) and first in digests:
            releases.append(f"{digests[name]} here, {digests[first]} on {first}")
        yield RequirementsNotMet(
            f"has a different image than {first} under the name {image}"
            f"{': ' if releases else ''}{'; '.join(releases)}",
            host=name,
            hint=f"docker rmi -f {image} on it; clusterctl bootstrap {survey.inventory.file}",
        )


def _unlike(name: str, each: Mapping[str, object]) -> str | None:
    """Return the first host if its value differs from that of host `name`."""
    first = next(iter(each), name)
    return first if name in each and each[name] != each[first] else None


def releases_apart(
    inventory: Inventory, states: Mapping[str, NodeState]
) -> list[RequirementsNotMet]:
    """Return an error for each release that differs from the first supervisor's. Pure."""
    first = next(iter(states), "")
    return [
        RequirementsNotMet(
            f"its container has {what} {mine}, but that of {first} has {others}",
            host=name,
            hint=f"clusterctl bootstrap {inventory.file}",
        )
        for name, state in states.items()
        for what, mine, others in (
            ("Ray", state.ray_version, states[first].ray_version),
            ("Python", *map(minor_release, (state.python_version, states[first].python_version))),
        )
        if mine and others and mine != others
    ]
