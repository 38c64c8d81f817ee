"""Which hosts a `bootstrap` changes one after the other; with a new image, all of them: finished
hosts have the new one while the others serve with the old one. Both can be in one Ray as long as
their Ray and Python are the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from clusterctl.containers.spec import ContainerSpec
from clusterctl.engine.events import EventSink
from clusterctl.engine.plan import Stage
from clusterctl.engine.step import HostView, Step
from clusterctl.errors import ClusterctlError, RequirementsNotMet, raise_all
from clusterctl.node.documents import NodeState
from clusterctl.operations.rolling import (
    EndGracefully,
    LeaveGateway,
    ReturnToGateway,
    Rolling,
    ThenProven,
    groups,
    interrupts,
    left_out,
    replicas_on,
)
from clusterctl.planning.another_release import AnotherRelease
from clusterctl.ray_cluster.nodes import container_spec
from clusterctl.steps.engines import Engines
from clusterctl.steps.node_container import NodeContainer
from clusterctl.steps.node_image import Contents, NodeImage, NodeImageMissing, release
from clusterctl.survey.cluster import Cluster
from clusterctl.survey.taking_over import TakeOver
from clusterctl.transport.lock import ClusterLock


@dataclass(frozen=True)
class Roll:
    """Changes the hosts `names` in turn. `steps`: those that change a node, the container last.
    `lock`: None for a plan."""

    cluster: Cluster
    names: tuple[str, ...]
    image: NodeImage
    engines: Engines
    steps: Sequence[Step]
    lock: ClusterLock | None
    sink: EventSink

    @cached_property
    def turns(self) -> tuple[Rolling, ...]:
        """Hosts that are changed one by one, in order, or together if a replica has ranks on
        several: those whose replicas leave the gateway first because others can stand in; and, with
        a new image, which has to prove itself, all with replicas.

        None where all services end anyway, with the head's Ray. Raises RequirementsNotMet where
        --limit would tear a replica or the cluster apart, and as `require_starts`.
        """
        self._require_whole()
        self.require_starts()
        if self._takes_over:
            return tuple(self._turn(hosts) for hosts in self._new_head_first)
        if (self._ends_head or self.other_image) and self.why_all_stop:
            return ()

        found, left = list[Rolling](), left_out(self.cluster.survey)
        for hosts in groups(self.cluster, self.names):
            turn = self._turn(hosts)
            if turn.spared or turn.old or left & set(hosts):
                found.append(turn)
        head = self.cluster.inventory.head.name
        if head in self.other_image and not any(head in turn.hosts for turn in found):
            found.append(self._turn((head,)))
        return tuple(found)

    @cached_property
    def hosts(self) -> frozenset[str]:
        """The hosts that have a turn."""
        return frozenset(name for turn in self.turns for name in turn.hosts)

    @cached_property
    def other_image(self) -> frozenset[str]:
        """The hosts whose containers get a new image."""
        containers = self.cluster.survey.containers
        return frozenset(
            name for name in self.names if name in containers and not self._has_image(name)
        )

    @cached_property
    def why_all_stop(self) -> str:
        """Why the services of all hosts end when the head's container is replaced, or one host gets
        a new image; "" if they do not."""
        state = self._head_state
        if state is None or not state.keeps_tables:
            return "the head's Ray keeps its tables in memory"
        if not self.other_image:
            return ""
        for each in self.cluster.survey.replicas.values():
            if not each.document.node_ips:
                return f"an older version declared {each.name}, which needs all hosts"
        return why_not_beside(self.image.contents(), state)

    def require_same_ray(self) -> None:
        """Raise RequirementsNotMet if the image, which the head now has, cannot be rolled out."""
        if not self.other_image or self._head_state is None:
            return
        if why := why_not_beside(self.image.contents(), self._head_state):
            inventory = self.cluster.inventory
            raise RequirementsNotMet(
                f"{inventory.image} cannot be given to one host after the other: {why}. The hosts "
                "have the image, and nothing that runs was changed",
                hint=f"clusterctl plan {inventory.file}, in which all services stop",
            )

    def require_starts(self) -> None:
        """Raise all reasons for which services would not start with the image's vLLM, as far as
        these are known before it is there: by the image's tag before the head has it."""
        if not self.other_image:
            return
        found = self.image.contents()
        vllm = found.vllm if found else None
        named = AnotherRelease(self.cluster.survey, vllm or self.cluster.inventory.image)
        raise_all(named.refusals())

    def stages(self) -> list[Stage]:
        """Return the stages of each turn."""
        found = []
        for number, turn in enumerate(self.turns, 1):
            names, first = ", ".join(turn.hosts), turn.hosts[:1]
            if len(self.turns) > 1:
                names += f", turn {number} of {len(self.turns)}"
            if self._takes_over:
                end = EndGracefully(turn, self.steps, self.engines)
                proven = ThenProven(self.steps[-1], turn)
                found.append(Stage(f"Ray on {names}", turn.hosts, (end, *self.steps[:-1], proven)))
                continue
            leave, back = LeaveGateway(turn, self.steps), ReturnToGateway(turn)
            inner = turn.around(self.steps)
            if len(turn.hosts) == 1:
                found.append(Stage(f"Ray on {names}", first, (leave, *inner, back)))
                continue
            # All its hosts are changed before a replica can start again.
            found.append(Stage(f"Replicas on {names}", first, (leave,)))
            found.append(Stage(f"Ray on {names}", turn.hosts, inner))
            found.append(Stage(f"Replicas on {names} again", first, (back,)))
        return found

    def notes(self) -> Iterator[str]:
        """Yield what users notice of a new head or image, a sentence each."""
        if self._takes_over:
            yield from self._notes_of_another_head(self._takes_over)
        if not self.other_image:
            return
        if self.why_all_stop:
            yield f"another image, for which all services stop: {self.why_all_stop}"
            return
        yield f"another image, host after host: {', '.join(self._in_order)}"
        yield from self._notes_of_services()
        gateways = [host.name for host in self.cluster.inventory.gateways]
        for name in gateways if self.cluster.survey.services else ():
            if name in self.other_image:
                others = " and those of other gateways are not" if len(gateways) > 1 else ""
                yield f"clients of the gateway on {name} are cut off while it restarts{others}"

    def _notes_of_another_head(self, found: TakeOver) -> Iterator[str]:
        inventory, survey = self.cluster.inventory, self.cluster.survey
        head, before = inventory.head.name, found.before
        source = "its own documents" if found.keeper == before else f"{found.keeper}'s copy"
        yield (
            f"{head} becomes the head in place of {before}, by {source} of "
            f"{found.age / 60:.0f} minutes ago"
        )
        if before not in survey.answers:
            yield (
                f"lost with {before}: results of bench, counts of requests and keys there, and "
                "measurements of links, which are made again"
            )
            yield (
                f"should {before} start with its old disk, it takes itself for the head: keep it "
                f"off, or have it in {inventory.file} as a worker and run bootstrap again"
            )
        for service, away in found.lost.items():
            number = len(survey.service(service).members)
            yield (
                f"{service}: {number} of {number + len(away)} replicas are left; for as many as "
                f"before, where there is room: clusterctl scale {service} {number + len(away)}"
            )
        order = ", ".join(name for turn in self.turns for name in turn.hosts)
        if order:
            yield f"replicas join the new Ray host after host, by a new start: {order}"
        yield from self._notes_of_services()

    def _notes_of_services(self) -> Iterator[str]:
        for service in self.cluster.survey.services.values():
            serving = {each.name for each in service.replicas if each.serves}
            with_it = [
                {each.name for each in replicas_on(self.cluster, turn.hosts)} for turn in self.turns
            ]
            number = f"{len(service.replicas)} replica{'s' * (len(service.replicas) != 1)}"
            if serving and all(serving - leaving for leaving in with_it):
                yield f"{service.name} ({number}) serves throughout"
            else:
                states = (each.state for each in service.replicas)
                longest = max((each.ready_seconds for each in states if each), default=0.0)
                last = f", which took {longest:.0f} s" if longest else ""
                yield f"{service.name} ({number}) is away until vLLM is ready again{last}"

    @property
    def _takes_over(self) -> TakeOver | None:
        return self.cluster.survey.taking_over

    @property
    def _new_head_first(self) -> list[tuple[str, ...]]:
        """The hosts that change together: none can join a Ray without its head."""
        head = self.cluster.inventory.head.name
        return sorted(groups(self.cluster, self.names), key=lambda hosts: head not in hosts)

    @property
    def _in_order(self) -> list[str]:
        alone = sorted(self.other_image - self.hosts, key=self.names.index)
        return [*alone, *(name for turn in self.turns for name in turn.hosts)]

    def _turn(self, hosts: tuple[str, ...]) -> Rolling:
        anew = self.other_image & set(hosts)
        return Rolling(self.cluster, hosts, self.lock, self.sink, self._old if anew else None)

    @cached_property
    def _old(self) -> Step:
        """The step that restores a host's container with the previous image."""
        cluster = self.cluster

        def spec(view: HostView) -> ContainerSpec:
            node = cluster.topology.node(view.host.name)
            image = cluster.survey.containers[view.host.name].image
            return container_spec(node, image, cluster.inventory, view.facts, cluster.topology)

        return NodeContainer(cluster.inventory.cluster, spec, self.engines)

    @cached_property
    def _head_state(self) -> NodeState | None:
        return self.cluster.survey.fresh_state(self.cluster.inventory.head.name)

    @cached_property
    def _ends_head(self) -> bool:
        head = self.cluster.inventory.head.name
        try:
            changes = [step.check(self.cluster.head) for step in self.steps if head in self.names]
        except ClusterctlError:
            return True
        return any(interrupts(change) for change in changes)

    def _has_image(self, name: str) -> bool:
        running = self.cluster.survey.containers[name].image
        try:
            return self.image.on(self.cluster.views[name]).id == running
        except NodeImageMissing:
            return False

    def _require_whole(self) -> None:
        """Raise RequirementsNotMet if --limit would give one host of a replica a different image
        than its other hosts, or the cluster two releases of Ray."""
        inventory, names = self.cluster.inventory, set(self.names)
        every = [host.name for host in inventory.hosts]
        if self._takes_over and (self.other_image or set(every) - names):
            what = "give it another image" if self.other_image else "leave hosts out"
            raise RequirementsNotMet(
                f"{inventory.head.name} becomes the head in place of {self._takes_over.before}, "
                f"which has to end before you {what}",
                hint=f"clusterctl bootstrap {inventory.file}, with the previous image and "
                "without --limit",
            )
        for hosts in groups(self.cluster, every):
            if self.other_image & set(hosts) and set(hosts) - names:
                whole = ",".join(hosts)
                raise RequirementsNotMet(
                    f"replicas have ranks on {whole}, which get another image together",
                    hint=f"clusterctl bootstrap {inventory.file} --limit {whole}",
                )
        if self.other_image and set(self.cluster.survey.containers) - names and self.why_all_stop:
            alone = ", ".join(sorted(self.other_image))
            raise RequirementsNotMet(
                f"the image cannot be tried on {alone} alone: {self.why_all_stop}",
                hint=f"clusterctl plan {inventory.file}, without --limit",
            )


def why_not_beside(image: Contents | None, running: NodeState) -> str:
    """Return why nodes with an image cannot join the running Ray, or "": ranks and Ray's nodes need
    the same Ray, and the same minor release of Python. None: it is not built yet."""
    if image is None:
        return ""
    if image.ray and release(image.ray)[:3] != release(running.ray_version)[:3]:
        return f"it has Ray {image.ray}, and the hosts run {running.ray_version}"
    if image.python and release(image.python)[:2] != release(running.python_version)[:2]:
        return f"it has Python {image.python}, and the hosts run {running.python_version}"
    return ""
