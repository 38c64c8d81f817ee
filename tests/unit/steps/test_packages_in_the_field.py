"""Package managers and engines of hosts that people reported: what is looked at before anything
changes, and the cause among a program's words. The words are those of the reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from clusterctl import deadlines
from clusterctl.engine.step import Change, HostView
from clusterctl.errors import CommandFailed, RequirementsNotMet
from clusterctl.facts.model import Os
from clusterctl.facts.system import parse_os
from clusterctl.inventory.model import Packages, PackageSource
from clusterctl.packages.repository import docker
from clusterctl.packages.target import target_of
from clusterctl.steps.container_engine import ContainerEngine
from clusterctl.steps.package_manager import Apt, Dnf
from clusterctl.transport.base import CommandResult
from tests.fakes.host import FakeHost, FakeTransport, fake_view
from tests.unit.steps.stage import facts


class Scripted(FakeTransport):
    """Answers a command by the first word that occurs in it."""

    def __init__(self, **answers: CommandResult) -> None:
        super().__init__(FakeHost("gpu1"))
        self._answers = answers

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        sudo: bool = False,
        timeout: float = deadlines.COMMAND,
    ) -> CommandResult:
        del stdin, sudo, timeout
        words = " ".join(argv)
        found = (answer for word, answer in self._answers.items() if word in words)
        return next(found, CommandResult((), 0, "", ""))


def says(stdout: str = "", stderr: str = "", *, status: int = 1) -> CommandResult:
    return CommandResult((), status, stdout, stderr)


def on(system: str, like: tuple[str, ...], version: str, **answers: CommandResult) -> HostView:
    codename = "noble" if system == "ubuntu" else ""
    kernel = f"6.12.0-55.el{version}.x86_64"
    os = Os(system, like, version, codename, f"{system} {version}", "x86_64", kernel)
    view = fake_view(FakeHost("gpu1"), replace(facts(), os=os))
    return replace(view, transport=Scripted(**answers))


def failure(work: Callable[[], object]) -> CommandFailed:
    with pytest.raises(CommandFailed) as raised:
        work()
    return raised.value


CENTOS = ("rhel", "centos", "fedora")
BARE = "client=\npackages=yes\nsystemd=yes\n"


def planned(view: HostView, packages: Packages | None = None) -> str:
    change = ContainerEngine(packages, pause=lambda _: None).check(view)
    assert change is not None
    return change.summary


def test_containerd_of_kubernetes_stays() -> None:
    """kURL #3839: docker.io would take containerd.io away from it."""
    view = on(
        "ubuntu", ("debian",), "24.04", containerd=says(f"{BARE}has=containerd.io\n", status=0)
    )
    assert planned(view) == (
        "install docker-ce from https://download.docker.com/linux/ubuntu, for the installed "
        "containerd.io"
    )


@pytest.mark.parametrize(("system", "remove"), [("ubuntu", "apt-get"), ("rocky", "dnf")])
def test_podman_under_dockers_name_is_seen_before_packages_change(system: str, remove: str) -> None:
    view = on(system, (), "9", containerd=says(f"{BARE}has=podman-docker\n", status=0))
    with pytest.raises(RequirementsNotMet, match="podman-docker is installed") as raised:
        planned(view)
    assert raised.value.hint == f"sudo {remove} remove podman-docker; Podman stays"


def test_amazon_linux_gets_its_own_engine() -> None:
    view = on("amzn", ("fedora",), "2023", containerd=says(BARE, status=0))
    assert planned(view) == "install docker"


@pytest.mark.parametrize("packages", [None, Packages(docker=PackageSource())])
def test_a_derivative_that_is_not_known_is_said_to_be_so(packages: Packages | None) -> None:
    view = on("anolis", CENTOS, "23.2", containerd=says(BARE, status=0))
    with pytest.raises(RequirementsNotMet, match=r"no packages for anolis 23\.2") as raised:
        planned(view, packages)
    assert raised.value.host == "gpu1"
    assert "docs/offline.md" in str(raised.value.hint)


def test_a_derivative_of_ubuntu_takes_the_codename_of_its_base() -> None:
    """docker/docs #20768: Docker's repository knows no wilma."""
    release = ("ID=linuxmint", 'ID_LIKE="ubuntu debian"', 'VERSION_ID="22"',
               "VERSION_CODENAME=wilma", "UBUNTU_CODENAME=noble")  # fmt: skip
    os = parse_os({"/etc/os-release": release}, "x86_64")
    target = target_of(os.id, os.like, os.version, os.codename)
    assert target is not None
    assert docker(target).suite == "noble stable"
    unknown = target_of("linuxmint", ("ubuntu", "debian"), "22", "wilma")
    assert unknown is not None
    with pytest.raises(RequirementsNotMet, match="does not know which release it corresponds to"):
        docker(unknown)


NO_ADDRTYPE = (
    "dockerd[812]: failed to start daemon: Error initializing network controller: failed to "
    'register "bridge" driver: iptables --wait -t nat -A PREROUTING -m addrtype -j DOCKER: '
    "Warning: Extension addrtype revision 0 not supported, missing kernel module?\n"
    "systemd[1]: docker.service: Failed with result 'exit-code'."
)


def test_an_el10_without_the_modules_of_iptables(monkeypatch: pytest.MonkeyPatch) -> None:
    """docker-ce-packaging #1340."""
    monkeypatch.setattr(deadlines, "ENGINE_START", 0.0)
    stopped = "client=/usr/bin/docker\nstatus=1\nrefusal=Cannot connect\nsystemd=yes\nunit=yes\n"
    view = on("almalinux", CENTOS, "10", containerd=says(stopped, status=0),
              journalctl=says(NO_ADDRTYPE, status=0))  # fmt: skip
    error = failure(lambda: ContainerEngine(pause=lambda _: None).apply(view, Change("")))
    assert "missing kernel module?" in error.summary
    assert str(error.hint).startswith(
        "sudo dnf install kernel-modules-extra-6.12.0-55.el10.x86_64 "
    )
    assert "sudo modprobe xt_addrtype" in str(error.hint)


UNMET = """Some packages could not be installed. This may mean that you have requested an impossible
The following packages have unmet dependencies:
 containerd.io : Conflicts: containerd
 docker.io : Depends: containerd (>= 1.6.24~)
"""


@pytest.mark.parametrize(
    "last",
    [
        "E: Error, pkgProblemResolver::Resolve generated breaks, caused by held packages.",
        "E: Unable to correct problems, you have held broken packages.",
    ],
)
def test_apts_cause_is_not_in_its_last_words(last: str) -> None:
    view = on("ubuntu", ("debian",), "24.04", install=says(UNMET, last, status=100))
    error = failure(lambda: Apt(view).install(["docker.io"]))
    assert error.summary.endswith("failed: containerd.io : Conflicts: containerd")
    assert "packages: {docker: {}}" in str(error.hint)


@pytest.mark.parametrize(
    "words",
    [
        # moby #41131
        "Errors during downloading metadata for repository 'clusterctl-docker':\n"
        "  - Status code: 404 for https://download.docker.com/linux/fedora/32/x86_64/stable/repodata"
        "/repomd.xml\nError: Failed to download metadata for repo 'clusterctl-docker': Cannot "
        "download repomd.xml: All mirrors were tried\n",
        # dnf5
        ">>> Status code: 404 for https://download.docker.com/linux/fedora/45/x86_64/stable/repodata"
        '/repomd.xml\nFailed to download metadata (baseurl: "https://download.docker.com") for '
        'repository "clusterctl-docker"\n Librepo error: Cannot download repomd.xml\n',
    ],
)
def test_a_repository_without_this_release_is_no_unreachable_host(words: str) -> None:
    view = on("fedora", (), "32", makecache=says("", words))
    error = failure(Dnf(view).update)
    assert "Status code: 404 for https://download.docker.com" in error.summary
    assert "has nothing for this release" in str(error.hint)


@pytest.mark.parametrize(
    ("words", "cause", "fix"),
    [
        (  # docker/packaging #327
            "Error: \n Problem: problem with installed package podman-3:4.0.2-6.el8.x86_64\n"
            "  - package containerd.io-1.6.6-3.1.el8.x86_64 conflicts with runc provided by "
            "runc-1:1.1.4-1.el8.x86_64\n",
            "containerd.io-1.6.6-3.1.el8.x86_64 conflicts with runc",
            "sudo dnf remove runc",
        ),
        (  # dnf5
            "Failed to resolve the transaction:\nProblem: problem with installed package\n"
            "  - installed package podman-docker-5:5.2.2-1.el10.noarch conflicts with docker "
            "provided by docker-ce-cli-1:29.1.3-1.el10.x86_64 from clusterctl-docker\n",
            "podman-docker-5:5.2.2-1.el10.noarch conflicts with docker",
            "sudo dnf remove podman-docker",
        ),
    ],
)
def test_what_dnf_cannot_install_beside_each_other(words: str, cause: str, fix: str) -> None:
    view = on("rocky", CENTOS, "8", install=says("", words))
    error = failure(lambda: Dnf(view).install(["docker-ce", "containerd.io"]))
    assert cause in error.summary
    assert fix in str(error.hint)


def test_packages_that_apt_would_remove_stop_it_before() -> None:
    """docker-ce's containerd.io takes the place of the containerd that Kubernetes uses."""
    plan = "Remv containerd [1.7.28-0ubuntu1]\nInst containerd.io (2.1.5-1 Docker:noble)\n"
    view = on("ubuntu", ("debian",), "24.04", install=says(plan, status=0))
    with pytest.raises(RequirementsNotMet) as raised:
        Apt(view).would_add(["docker-ce"])
    assert raised.value.summary == "installing docker-ce would remove containerd"
    assert "apt-get -s remove containerd" in str(raised.value.hint)
