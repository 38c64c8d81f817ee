"""Where the engine comes from: what the plan says, what is brought, what is taken back."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface

import pytest

from clusterctl.engine.step import Change, HostView
from clusterctl.errors import CommandFailed, RequirementsNotMet, StepFailed
from clusterctl.inventory.model import Packages, PackageSource
from clusterctl.steps.container_engine import DAEMON_JSON, ContainerEngine, EngineAbsent
from clusterctl.steps.engine_source import ENGINE_FILES
from tests.fakes.host import FakeTransport
from tests.unit.steps.stage import Cluster, cluster
from tests.unit.steps.stage_install import DEBS, RPMS, bare, bare_rocky, bundle, own_key


@pytest.fixture
def made() -> Cluster:
    made = cluster()
    bare(made)
    return made


def step(packages: Packages | None = None, *names: str) -> ContainerEngine:
    return ContainerEngine(packages, bundle(*names) if names else (), pause=lambda _: None)


def planned(step: ContainerEngine, view: HostView) -> str:
    change = step.check(view)
    assert change is not None
    return change.summary


def test_a_debian_gets_its_own_engine(made: Cluster) -> None:
    assert planned(step(), made.head_view) == "install docker.io"


def test_dockers_own_where_the_inventory_asks_for_it(made: Cluster) -> None:
    assert planned(step(Packages(docker=PackageSource())), made.head_view) == (
        "install docker-ce from https://download.docker.com/linux/debian"
    )
    mirror = Packages(docker=PackageSource(url="https://mirror.example/docker"))
    assert planned(step(mirror), made.head_view) == (
        "install docker-ce from https://mirror.example/docker/debian"
    )


def test_rocky_gets_dockers_own(made: Cluster) -> None:
    bare_rocky(made)
    assert planned(step(), made.head_view) == (
        "install docker-ce from https://download.docker.com/linux/centos/9/$basearch/stable"
    )


def test_the_source_and_its_key_are_noted_in_files_of_their_own(made: Cluster) -> None:
    step(Packages(docker=own_key())).apply(made.head_view, Change(""))
    sources = {path for path in made.head.files if path.startswith("/etc/apt")}
    assert sources == {
        "/etc/apt/sources.list.d/clusterctl-docker.list",
        "/etc/apt/keyrings/clusterctl-docker.asc",
    }


def test_brought_packages_come_without_asking_any_source(made: Cluster) -> None:
    brought = step(None, *DEBS)
    brought.apply(made.head_view, Change(""))
    transport = made.head_view.transport
    assert isinstance(transport, FakeTransport)
    asked = [argv for argv in transport.seen if "apt-get" in argv]
    assert asked
    for argv in asked:
        assert "Dir::Etc::SourceParts=-" in argv


def test_brought_packages_without_an_engine(made: Cluster) -> None:
    bare_rocky(made)
    with pytest.raises(CommandFailed, match="has none of docker-ce, docker"):
        step(None, *RPMS[1:]).apply(made.head_view, Change(""))


def test_brought_packages_for_another_system(made: Cluster) -> None:
    with pytest.raises(RequirementsNotMet, match="needs packages for debian12 x86_64"):
        step(None, *RPMS).check(made.head_view)


def test_what_arrives_damaged_is_not_installed(made: Cluster) -> None:
    class Damaging(FakeTransport):
        def put(
            self,
            data: bytes,
            path: str,
            *,
            mode: int = 0o644,
            sudo: bool = False,
            before: str | None = None,
        ) -> None:
            super().put(data[:-1], path, mode=mode, sudo=sudo)

    view = replace(made.head_view, transport=Damaging(made.head))
    with pytest.raises(StepFailed, match="differ from what was sent"):
        step(None, *DEBS).apply(view, Change(""))
    assert made.head.packages == set()


def test_a_second_run_copies_nothing_again(made: Cluster) -> None:
    brought = step(None, *DEBS)
    brought.apply(made.head_view, Change(""))
    first = made.head.changes
    made.head.packages.clear()
    made.head.engine.running = False
    brought.apply(made.head_view, Change(""))
    assert made.head.changes - first <= first - len(DEBS)


def test_the_static_archives_files_are_noted_and_taken_back(made: Cluster) -> None:
    made.head.directories |= {"/etc/systemd/system": 0o755}
    step(None, "docker-29.1.3.tgz").apply(made.head_view, Change(""))
    marked = made.head.files[ENGINE_FILES][0].decode().split()
    assert marked == [
        "/etc/docker/daemon.json",
        "/etc/systemd/system/containerd.service",
        "/etc/systemd/system/docker.service",
        "/usr/bin/docker",
        "/usr/bin/dockerd",
        "/usr/bin/runc",
    ]
    unit = made.head.files["/etc/systemd/system/docker.service"][0].decode()
    assert "--iptables=false" in unit, "the host in memory has no iptables"
    EngineAbsent("demo").apply(made.head_view, Change(""))
    assert not set(marked) & set(made.head.files)
    assert EngineAbsent("demo").check(made.head_view) is None


def test_where_the_site_uses_dockers_own_network_its_bridge_gets_another(made: Cluster) -> None:
    """https://github.com/kasmtech/workspaces-issues/issues/634"""
    made.head.packages.clear()
    made.head.engine.running = False
    bridge = IPv4Interface("172.30.213.1/24")
    engine = ContainerEngine(bridge=bridge, pause=lambda _: None)
    engine.apply(made.head_view, Change(""))
    text, _ = made.head.files[DAEMON_JSON][:2]
    assert text == b'{"live-restore": true, "bip": "172.30.213.1/24"}\n'
    EngineAbsent("demo").apply(made.head_view, Change(""))
    assert DAEMON_JSON not in made.head.files


def test_a_docker_that_we_install_leaves_containers_running_when_it_restarts(made: Cluster) -> None:
    made.head.packages.clear()
    made.head.engine.running = False
    ContainerEngine(pause=lambda _: None).apply(made.head_view, Change(""))
    assert made.head.files[DAEMON_JSON][0] == b'{"live-restore": true}\n'


def test_a_daemon_json_of_the_sites_own_stays_as_it_is(made: Cluster) -> None:
    made.head.packages.clear()
    made.head.engine.running = False
    made.head.files[DAEMON_JSON] = (b'{"debug": true}', 0o644)
    engine = ContainerEngine(bridge=IPv4Interface("172.30.213.1/24"), pause=lambda _: None)
    engine.apply(made.head_view, Change(""))
    assert made.head.files[DAEMON_JSON][0] == b'{"debug": true}'
    EngineAbsent("demo").apply(made.head_view, Change(""))
    assert made.head.files[DAEMON_JSON][0] == b'{"debug": true}'
