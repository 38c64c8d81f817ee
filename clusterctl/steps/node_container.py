"""Step that runs the node's container: it exists, matches its spec, and is running."""

from __future__ import annotations

from collections.abc import Callable

from clusterctl.containers.diff import Create, Keep, Recreate, compare
from clusterctl.containers.driver import Container, ContainerDriver
from clusterctl.containers.spec import ContainerSpec, container_name
from clusterctl.deadlines import wait_until
from clusterctl.engine.step import Change, HostView
from clusterctl.errors import RequirementsNotMet, StepFailed
from clusterctl.steps.engines import Engines
from clusterctl.steps.node_image import NodeImageMissing

# Seconds that a new container must keep running: a wrong command or mount ends it at once.
SETTLE = 2.0

# Returns why a running container must be replaced, such as lost GPUs, else None
WhyAnew = Callable[[HostView, ContainerDriver, Container], str | None]


class NodeContainer:
    """Step: the node container is running. A container of that name without the cluster's label was
    not created by this cluster, and is left alone."""

    title = "node container"

    def __init__(
        self,
        cluster: str,
        spec_for: Callable[[HostView], ContainerSpec],
        engines: Engines,
        *,
        why_anew: WhyAnew = lambda _view, _driver, _container: None,
        settle: float = SETTLE,
    ) -> None:
        self._cluster = cluster
        self._spec_for = spec_for
        self._engines = engines
        self._why_anew = why_anew
        self._settle = settle

    def check(self, view: HostView) -> Change | None:
        driver = self._engines(view)
        ours, surplus = self._find(driver)  # raises before an image is needed
        try:
            spec = self._spec_for(view)
        except NodeImageMissing as missing:
            if ours is None or not ours.running:
                raise
            # Users must hear before the image comes that services stop for it.
            return Change(f"replace {ours.name}: {missing.summary}", disruptive=True)
        if surplus:
            names = ", ".join(container.name for container in surplus)
            return Change(f"remove {names}, and create {spec.name}", disruptive=True)
        match compare(spec, ours):
            case Create():
                return Change(f"start {spec.name}")
            case Recreate(reasons):
                why = "; ".join(reasons)
                serves = ours is not None and ours.running
                return Change(f"replace {spec.name}: {why}", disruptive=serves)
            case Keep() if ours and ours.running:
                why_not = self._why_anew(view, driver, ours)
                return (
                    Change(f"replace {spec.name}: {why_not}", disruptive=True) if why_not else None
                )
            case Keep():
                return Change(f"start {spec.name} again")

    def apply(self, view: HostView, _change: Change) -> None:
        # Compare again: the plan may be minutes old
        driver, spec = self._engines(view), self._spec_for(view)
        ours, surplus = self._find(driver)
        for container in surplus:
            _end(driver, container)
        keeps = ours is not None and compare(spec, ours) == Keep()
        if keeps and ours and ours.running:  # asks the container, which may hang
            keeps = self._why_anew(view, driver, ours) is None
        if ours and keeps:
            if not ours.running:
                driver.stop(ours.id, ours.stop_timeout)  # it may be `restarting`
                driver.start(ours.id)
        else:
            if ours:
                view.say(f"stopping the old container, at most {ours.stop_timeout} s")
                _end(driver, ours)
            driver.run(spec)

        def require_running() -> None:
            found = driver.find(spec.name)
            host = view.host.name
            if found is None:
                raise StepFailed(f"{spec.name} disappeared immediately after it started", host=host)
            if not found.running or found.restarts:
                failed = found.exit_code or not found.running
                status = f"status {found.exit_code}" if failed else "an error"
                raise StepFailed(
                    f"{spec.name} ended with {status} immediately after it started",
                    host=host,
                    hint=f"clusterctl logs --host {host}",
                    detail=driver.logs(found.id, tail=30) or found.error or None,
                )

        wait_until(require_running, self._settle, every=min(0.25, self._settle))

    def _find(self, driver: ContainerDriver) -> tuple[Container | None, list[Container]]:
        """Return the cluster's container by name, and the cluster's other containers."""
        name = container_name(self._cluster)
        found = own_container(driver, self._cluster)
        others = [c for c in driver.containers(self._cluster) if c.name != name]
        return found, others


def own_container(driver: ContainerDriver, cluster: str) -> Container | None:
    """Return the cluster's node container. Raises RequirementsNotMet if another has its name."""
    found = driver.find(container_name(cluster))
    if found and found.cluster != cluster:
        whose = f"belongs to cluster {found.cluster}" if found.cluster else "is not clusterctl's"
        raise RequirementsNotMet(
            f"a container named {found.name} already exists, and {whose}",
            hint=f"docker rename {found.name} {found.name}-old, or docker rm -f {found.name}",
        )
    return found


class ContainersAbsent:
    """Step: the host has no container of the cluster, running or not."""

    title = "node container"

    def __init__(self, cluster: str, engines: Engines) -> None:
        self._cluster = cluster
        self._engines = engines

    def check(self, view: HostView) -> Change | None:
        if not view.facts.engine.installed:
            return None
        found = self._engines(view).containers(self._cluster)
        names = ", ".join(container.name for container in found)
        return Change(f"stop and remove {names}", disruptive=True) if found else None

    def apply(self, view: HostView, _change: Change) -> None:
        driver = self._engines(view)
        for container in driver.containers(self._cluster):
            view.say(f"stopping {container.name}, at most {container.stop_timeout} s")
            _end(driver, container)


def _end(driver: ContainerDriver, container: Container) -> None:
    driver.stop(container.id, container.stop_timeout)
    driver.remove(container.id)
