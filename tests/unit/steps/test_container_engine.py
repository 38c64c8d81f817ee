"""Installing the engine: what is refused, what is waited for, what is taken back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from clusterctl.engine.step import Change, HostView, Unknown
from clusterctl.errors import CommandFailed, RequirementsNotMet
from clusterctl.steps.container_engine import ContainerEngine, EngineAbsent, found_in
from clusterctl.steps.files import ENGINE_PACKAGES
from clusterctl.steps.package_manager import Apt
from clusterctl.transport.base import CommandResult
from tests.fakes.container_engine import foreign
from tests.fakes.host import FakeHost, FakeTransport, fake_view
from tests.unit.steps.stage import facts


@pytest.fixture
def host() -> FakeHost:
    bare = FakeHost("gpu1", packages=set())
    bare.engine.running = False
    return bare


@pytest.fixture
def view(host: FakeHost) -> HostView:
    return fake_view(host, facts())


def step(pauses: list[float] | None = None) -> ContainerEngine:
    return ContainerEngine(pause=(pauses if pauses is not None else []).append)


def apply(view: HostView, pauses: list[float] | None = None) -> None:
    step(pauses).apply(view, Change(""))


def test_a_bare_host_gets_the_package(host: FakeHost, view: HostView) -> None:
    apply(view)
    assert "docker.io" in host.packages
    assert host.engine.running


def test_an_engine_that_runs_is_left_alone(host: FakeHost, view: HostView) -> None:
    host.packages.add("docker.io")
    host.engine.running = True
    assert step().check(view) is None


def test_what_was_added_is_noted_before_and_taken_back_by_purge(
    host: FakeHost, view: HostView
) -> None:
    host.packages.add("runc")
    apply(view)
    assert host.files[ENGINE_PACKAGES][0] == b"containerd\ndocker.io\n"
    assert EngineAbsent("demo").check(view) is not None
    EngineAbsent("demo").apply(view, Change(""))
    assert host.packages == {"runc"}
    assert ENGINE_PACKAGES not in host.files


def test_an_installation_cut_short_can_be_taken_back_too(host: FakeHost, view: HostView) -> None:
    host.cut_at = 6  # daemon.json in three steps, the marker, containerd, and then the cable
    with pytest.raises(Exception, match="connection was lost"):
        apply(view)
    assert host.packages == {"containerd"}
    EngineAbsent("demo").apply(view, Change(""))
    assert host.packages == set()


def test_an_engine_of_the_users_is_never_removed(host: FakeHost, view: HostView) -> None:
    host.packages.add("docker.io")
    assert EngineAbsent("demo").check(view) is None


def test_purge_stops_at_containers_of_others(host: FakeHost, view: HostView) -> None:
    apply(view)
    host.engine.containers["x"] = foreign("database")
    with pytest.raises(RequirementsNotMet, match="database"):
        EngineAbsent("demo").check(view)


def test_purge_waits_for_the_clusters_own_containers(host: FakeHost, view: HostView) -> None:
    """They are there when `down --purge` is planned, and gone when its turn comes."""
    apply(view)
    host.engine.containers["x"] = foreign("clusterctl-demo", cluster="demo")
    assert EngineAbsent("demo").check(view) == Unknown("clusterctl-demo must be removed first")


def test_purge_leaves_the_engine_to_another_cluster(host: FakeHost, view: HostView) -> None:
    apply(view)
    host.engine.containers["x"] = foreign("clusterctl-other", cluster="other")
    assert EngineAbsent("demo").check(view) is None


def test_a_lock_is_waited_for(host: FakeHost, view: HostView) -> None:
    host.locked = 3
    pauses: list[float] = []
    apply(view, pauses)
    assert len(pauses) == 3
    assert "docker.io" in host.packages


@pytest.mark.parametrize(
    ("said", "waits"),
    [
        ("E: Could not get lock /var/lib/dpkg/lock. It is held by process 7 (apt)", 2),
        ("dpkg: error: dpkg frontend lock was locked by another process with pid 7", 2),
        ("dpkg: error: dpkg status database is locked by another process", 2),
        # apt-get has waited for the lock and got it; then the packages did not arrive.
        ("Waiting for cache lock: Could not get lock /var/lib/dpkg/lock\nE: Failed to fetch it", 0),
    ],
)
def test_only_a_lock_that_still_is_held_is_waited_for(
    view: HostView, monkeypatch: pytest.MonkeyPatch, said: str, waits: int
) -> None:
    pauses: list[float] = []

    def run(argv: Sequence[str], **_: object) -> CommandResult:
        return CommandResult(tuple(argv), 0 if len(pauses) == 2 else 100, said, "")

    monkeypatch.setattr(view.transport, "run", run)
    with suppress(CommandFailed):
        Apt(view, pauses.append).purge(["docker.io"])
    assert len(pauses) == waits


def test_the_wait_for_a_lock_is_said(host: FakeHost, view: HostView) -> None:
    said: list[str] = []
    host.locked = 1
    apply(replace(view, say=said.append))
    assert "waiting for another apt-get or dpkg to end" in said


def test_a_mirror_that_is_gone_is_named_with_apts_own_words(host: FakeHost, view: HostView) -> None:
    host.mirror = (
        "W: nothing to see here\n"
        "E: Failed to fetch http://mirror.example/docker.deb  Could not connect to mirror.example\n"
        "E: Unable to fetch some archives"
    )
    with pytest.raises(CommandFailed) as raised:
        apply(view)
    assert str(raised.value).startswith("gpu1: apt-get install docker.io failed: Failed to fetch")
    assert "package sources" in str(raised.value.hint)
    assert host.packages == set()


def test_a_package_missing_because_its_list_is_missing_names_the_list(
    host: FakeHost, view: HostView
) -> None:
    host.lists = "W: Failed to fetch http://mirror.example/dists/InRelease  Could not connect"
    host.mirror = "E: Unable to locate package docker.io"
    with pytest.raises(CommandFailed, match=r"Failed to fetch http://mirror\.example") as raised:
        apply(view)
    assert "cannot reach its package sources" in str(raised.value.hint)
    assert "Unable to locate" in str(raised.value.detail)


def test_dpkg_that_was_killed_is_told_from_its_complaint_about_a_log(
    host: FakeHost, view: HostView
) -> None:
    host.mirror = (
        "E: Can not write log (Is /dev/pts mounted?)\n"
        "E: Sub-process /usr/bin/dpkg exited unexpectedly"
    )
    with pytest.raises(CommandFailed, match="failed: Sub-process /usr/bin/dpkg exited"):
        apply(view)


def test_dpkg_left_half_done_is_finished_first(view: HostView) -> None:
    apply(view)
    transport = view.transport
    assert isinstance(transport, FakeTransport)
    commands = [" ".join(argv) for argv in transport.seen]
    configure = next(i for i, text in enumerate(commands) if "dpkg --configure -a" in text)
    update = next(i for i, text in enumerate(commands) if text.endswith("update"))
    assert configure < update


@pytest.mark.parametrize(
    ("told", "cause"),
    [
        ("client=/snap/bin/docker\nserver=27.0\npackages=yes\nsystemd=yes", "snap"),
        ("client=/usr/bin/docker\npodman=yes\nserver=4.9\npackages=yes", "Podman"),
        ("client=/usr/bin/docker\nstatus=124\nrefusal=\nunit=yes\nsystemd=yes", "does not answer"),
        ("client=\nsystemd=yes", "neither apt-get nor dnf"),
        ("client=\npackages=yes", "no systemd"),
    ],
)
def test_a_host_that_cannot_be_helped_is_told_so(told: str, cause: str, view: HostView) -> None:
    with pytest.raises(RequirementsNotMet, match=cause) as raised:
        step().check(replace(view, transport=Saying(told)))
    assert raised.value.hint
    assert raised.value.host == "gpu1"


def test_a_rootless_engine_is_told_so(view: HostView) -> None:
    told = "client=/usr/bin/docker\nstatus=1\nrefusal=no daemon\npackages=yes\nsystemd=yes"
    rootless = replace(view, transport=Saying(told), facts=facts(rootless=True))
    with pytest.raises(RequirementsNotMet, match="rootless"):
        step().check(rootless)


def test_what_the_look_says_is_read() -> None:
    found = found_in(
        "client=/usr/bin/docker\nserver=20.10.24\npackages=yes\nsystemd=yes\nunit=yes\n"
    )
    assert (found.server, found.hung, found.snap, found.unit) == ("20.10.24", False, False, True)


class Saying(FakeTransport):
    """Answers the look with a fixed text."""

    def __init__(self, told: str) -> None:
        super().__init__(FakeHost("gpu1"))
        self._scripts = dict.fromkeys(self._scripts, lambda *_: told)
