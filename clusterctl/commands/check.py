"""`check`: compare the inventory with the hosts' facts, and test every pair of hosts. Changes
nothing; reports all problems together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.errors import (
    ClusterctlError,
    Interrupted,
    InventoryError,
    Problems,
    RequirementsNotMet,
    UsageError,
)
from clusterctl.facts.cluster_requirements import CLOCK_HINT
from clusterctl.facts.model import HostFacts
from clusterctl.facts.requirements import notes
from clusterctl.inventory.model import Inventory
from clusterctl.inventory.outside import outside_of
from clusterctl.network.choice import public_addresses
from clusterctl.network.gate import FabricRecord, ensure_proven
from clusterctl.network.lookups import lookup_notes
from clusterctl.network.outside import unreached
from clusterctl.network.pairs import judgement
from clusterctl.network.pairs.model import HostLink, PairResults, default_route_notes
from clusterctl.network.pairs.probe import IN_USE, NOT_SEEN, probe_pairs, ray_ports
from clusterctl.node.documents import RayNode
from clusterctl.operations.bootstrap_stages import plan_for
from clusterctl.operations.session import Session
from clusterctl.packages.bundle import open_bundles
from clusterctl.planning.question import release_of
from clusterctl.planning.rules import require_served
from clusterctl.ray_cluster.topology import Topology
from clusterctl.serving.vulnerabilities import vulnerability_notes
from clusterctl.steps.fetching import to_be_fetched
from clusterctl.survey.cluster import (
    Cluster,
    image_problems,
    name_listeners,
    place,
    require_fit,
    requirements,
)
from clusterctl.survey.drift import (
    differences,
    gpu_problems,
    log_problems,
    plan_problems,
    ray_problems,
)
from clusterctl.survey.promises import PromiseState, promise_states
from clusterctl.survey.survey import Survey, take_survey
from clusterctl.survey.versions import engine_versions
from clusterctl.transfer.asked_registry import ask_environment, ask_registry

NOT_TRIED = "the fabric gate was not run: fix the other problems first"


@dataclass(frozen=True)
class Report:
    """Result of `check`; bootstrap may start if `errors` is empty."""

    facts: dict[str, HostFacts]
    choices: dict[str, tuple[str, ...]]  # Address and interfaces of each host, with the reasons
    notes: tuple[str, ...]
    errors: tuple[ClusterctlError, ...]
    links: tuple[
        HostLink, ...
    ] = ()  # Results of the links between hosts, both directions of every pair
    fabric: FabricRecord | None = None  # Result of the gate, where requested
    ray: tuple[RayNode, ...] = ()  # What Ray's head says of its nodes; empty if it is not up


def run(session: Session) -> Report:
    """Check the session's hosts and the links between them and, if the cluster is up, differences
    from the result of a bootstrap."""
    inventory = session.inventory
    with session.connected(session.hosts) as transports:
        survey = take_survey(inventory, transports)
        lacking = requirements(survey)
        name_listeners(lacking, transports)
        topology, misplaced = place(survey)

        found = [*survey.errors.values(), *lacking, *_new(misplaced, lacking)]
        if topology:
            found += public_addresses(inventory, topology)
        if not survey.containers:  # else the plan below opens them
            found += _unreadable_files(inventory)
        try:
            require_served(release_of(survey))
        except UsageError as error:
            found.append(RequirementsNotMet(error.summary, hint=error.hint))

        moved, image_env = ask_registry(survey), ask_environment(survey)
        seen = _between_hosts(survey, topology)
        names = lookup_notes(inventory, topology, survey.facts, transports, survey.running)
        names += unreached(inventory, survey.transports, survey.containers)

        drift = [
            *gpu_problems(survey),
            *plan_problems(survey, topology, plan_for),
            *log_problems(survey),
        ]
        in_ray = _new(ray_problems(survey, topology), drift)
        unlike = [*differences(survey), *drift, *in_ray]

    found += image_problems(inventory, survey.facts, image_env())
    between = _clocks_once(found, judgement.problems(seen, ray_ports(inventory)))
    accelerator = accelerator_named(inventory.accelerator)
    noted = (
        *notes(inventory, survey.facts, accelerator),
        *(default_route_notes(topology, survey.facts) if topology else ()),
        *names,
        *judgement.notes(seen),
        *moved(),
        *vulnerability_notes(engine_versions(survey)),
        *to_be_fetched(
            inventory, survey.facts, survey.containers, accelerator.fetched(inventory.packages)
        ),
    )
    state = survey.fresh_state(inventory.head.name)
    return Report(
        facts=survey.facts,
        choices={node.host: node.explain for node in topology.nodes} if topology else {},
        notes=noted,
        errors=(*found, *between, *unlike),
        links=seen.links,
        ray=tuple(state.nodes) if state else (),
    )


def _unreadable_files(inventory: Inventory) -> Iterator[RequirementsNotMet]:
    """Yield an error if the CA or the package bundles that the inventory names cannot be read."""
    packages = inventory.packages
    for opened in (
        partial(outside_of, inventory),
        partial(open_bundles, packages.offline, packages.sums),
    ):
        try:
            opened()
        except (UsageError, InventoryError) as error:
            yield RequirementsNotMet(error.summary, hint=error.hint, detail=error.detail)


def _between_hosts(survey: Survey, topology: Topology | None) -> PairResults:
    """Test every pair of hosts that have a place in the cluster."""
    if topology is None:
        return PairResults((), {}, {})
    unrated = ""
    if survey.running:
        unrated = IN_USE
    elif any(facts.engine.closed for facts in survey.facts.values()):
        unrated = NOT_SEEN  # Where Docker may not be asked, the cluster may be up.
    placed = {node.host: survey.facts[node.host] for node in topology.nodes}
    return probe_pairs(survey.inventory, topology, placed, survey.transports, unrated=unrated)


def security(session: Session) -> list[PromiseState]:
    """Return the promises of docs/security.md with their state on this cluster. Raises the errors
    of hosts that do not answer."""
    with session.connected(session.hosts) as transports:
        survey = take_survey(session.inventory, transports).require_answers()
        topology, _ = place(survey)
        plan = None
        if topology and len(topology.nodes) == len(session.inventory.hosts) and survey.containers:
            names = tuple(survey.views)
            plan = plan_for(Cluster(survey, topology, survey.views, names), names)
        return promise_states(survey, topology, plan)


def with_fabric(report: Report, session: Session) -> Report:
    """Add the result of the fabric gate on the session's hosts and the head; the cluster must be
    up. Skip the gate if `report` has errors: it would fail for the same reasons, with vaguer
    messages."""
    if report.errors:
        return replace(report, notes=(*report.notes, NOT_TRIED))
    try:
        with session.connected() as transports:
            cluster = require_fit(take_survey(session.inventory, transports), session.hosts)
            scope = cluster.gate_scope
            proof = ensure_proven(scope, session.progress, again=True, links_proven=True)
    except Interrupted:
        raise
    except ClusterctlError as error:
        several = error.errors if isinstance(error, Problems) else (error,)
        return replace(report, errors=(*report.errors, *several))
    return replace(report, fabric=proof.record, notes=(*report.notes, *proof.notes))


def _new(
    consequences: Iterable[ClusterctlError], causes: Iterable[ClusterctlError]
) -> list[ClusterctlError]:
    """Drop errors on hosts that also have an error in `causes`: a missing NIC, for example, leaves
    a host without a place in the cluster."""
    known = {error.host for error in causes}
    return [error for error in consequences if error.host not in known]


def _clocks_once(
    found: Iterable[ClusterctlError], between: Iterable[ClusterctlError]
) -> list[ClusterctlError]:
    """Drop clock errors of links if the host's own facts already showed the wrong clock."""
    wrong = {error.host for error in found if error.hint == CLOCK_HINT}
    return [error for error in between if error.hint != CLOCK_HINT or error.host not in wrong]
