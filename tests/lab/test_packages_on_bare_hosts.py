"""Engine and toolkit on hosts without any package source: from a bundle, from Docker's static
archive, and from a signed mirror, each taken away again by `down --purge`."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from clusterctl.engine.executor import execute
from clusterctl.engine.plan import Plan
from clusterctl.engine.plan import plan as plan_stages
from clusterctl.errors import ClusterctlError
from clusterctl.inventory.load import load
from clusterctl.lab import lifecycle
from clusterctl.lab.layout import CONTROL
from clusterctl.lab.paths import LabPaths
from clusterctl.operations.bootstrap_stages import host_stages
from clusterctl.survey.survey import connected, take_survey
from clusterctl.transport.credentials import Credentials
from tests.fakes.docker_registry import docker_registry
from tests.fakes.image_archives import MadeImage, layer_tar
from tests.fakes.nvidia_packages import CALLS, build_packages, build_repository, served
from tests.fakes.private_ca import private_ca
from tests.lab.cluster import Operator, quiet
from tests.lab.conftest import OnHost

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

SLEEPER = """\
tar ch -C / bin/sleep $(ldd /bin/sleep | grep -o '/[^ ]*' | sed 's,^/,,') 2>/dev/null |
  docker import - sleeper >/dev/null &&
  docker run -d --stop-timeout 1 --name training sleeper /bin/sleep 1000
"""

Write = Callable[..., Path]


@pytest.fixture(scope="module", autouse=True)
def bare(lab: LabPaths, on_host: OnHost) -> Iterator[Path]:
    lifecycle.down(say=quiet)
    made = lifecycle.up(2, image=False, say=quiet)
    for host in ("gpu1", "gpu2"):
        on_host(host, "rm -rf /etc/apt/sources.list* /var/lib/apt/lists/*")
    yield made.inventory
    lifecycle.down(say=quiet)


@pytest.fixture(scope="module")
def bundle(bare: Path, lab: LabPaths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the lab's mirror would serve, as a directory that somebody filled."""
    del bare
    path = tmp_path_factory.mktemp("packages")
    for file in (lab.mirror / "debian").glob("*.deb"):
        shutil.copy(file, path)
    return path


@pytest.fixture
def write(bare: Path, tmp_path: Path) -> Write:
    """An inventory of the named hosts with `packages`; with `gpus` they are GPU hosts."""

    def make(*hosts: str, gpus: bool = False, **packages: object) -> Path:
        document = yaml.safe_load(bare.read_text())
        document["packages"] = packages
        document["accelerator"] = "nvidia" if gpus else "cpu"
        document["hosts"] = {name: document["hosts"][name] for name in hosts}
        document["hosts"][hosts[0]]["role"] = "head"
        file = tmp_path / "inventory.yaml"
        file.write_text(yaml.safe_dump(document))
        return file

    return make


def install(file: Path, *, look_only: bool = False) -> Plan:
    """What the first stages of bootstrap would change; they are carried out, and then there
    must be nothing left to change."""
    inventory = load(file)
    with connected(inventory.hosts, Credentials()) as transports:
        found = take_survey(inventory, transports).require_answers().views
        stages = host_stages(inventory, tuple(host.name for host in inventory.hosts), {})
        plan = plan_stages(stages, found)
        if not look_only:
            execute(stages, found, lambda _: None)
            assert plan_stages(stages, found).empty
    return plan


def purge(operator: Operator, file: Path, on_host: OnHost, *hosts: str) -> None:
    operator.ok("down", "-i", str(file), "--purge", "--yes")
    for host in hosts:
        left = on_host(
            host,
            "command -v docker nvidia-ctk; ls -d /var/lib/clusterctl /etc/docker/daemon.json "
            "/etc/systemd/system/docker.service /etc/apt/sources.list.d/clusterctl-* 2>/dev/null",
        )
        assert left.stdout == "", left.stdout


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path / "state")


def test_a_bundle_alone_brings_the_engine_and_the_toolkit(
    write: Write, bundle: Path, on_host: OnHost, operator: Operator
) -> None:
    plan = install(write("gpu1", "gpu2", offline=str(bundle)))
    assert {change.host for change in plan.changes} == {"gpu1", "gpu2"}
    assert {change.stage for change in plan.changes} == {"Python", "Container engine"}
    for host in ("gpu1", "gpu2"):
        assert on_host(host, "docker version --format '{{.Server.Version}}'").stdout.strip()
    assert on_host("gpu1", SLEEPER).returncode == 0
    build_packages(bundle)
    file = write("gpu1", gpus=True, offline=str(bundle))
    shown = [change.change for change in install(file, look_only=True).changes]
    assert any("and restart it, which stops training" in str(change) for change in shown)
    assert install(file).disruptive
    assert "runtime configure --runtime=docker" in on_host("gpu1", f"cat {CALLS}").stdout
    assert "nvidia" in on_host("gpu1", "docker info --format '{{json .Runtimes}}'").stdout
    on_host("gpu1", f"docker rm -f training; docker rmi sleeper; rm {CALLS}")
    purge(operator, write("gpu1", "gpu2"), on_host, "gpu1", "gpu2")


def test_dockers_static_archive_brings_the_engine(
    write: Write, bundle: Path, tmp_path: Path, on_host: OnHost, operator: Operator
) -> None:
    """Made of the distribution's programs, in the layout of Docker's archive."""
    archive = tmp_path / "static"
    archive.mkdir()
    for deb in ("docker.io", "containerd", "runc", "tini"):
        (file,) = bundle.glob(f"{deb}_*.deb")
        subprocess.run(["dpkg-deb", "-x", file, tmp_path / "tree"], check=True)
    with tarfile.open(archive / "docker-20.10.24.tgz", "w:gz", compresslevel=1) as tar:
        for program in (*tmp_path.glob("tree/usr/bin/*"), *tmp_path.glob("tree/usr/sbin/*")):
            if not program.is_symlink():
                name = "docker-init" if program.name == "tini-static" else program.name
                tar.add(program, f"docker/{name}")
    for deb in ("python3*", "libpython3*", "libreadline*", "readline-common*", "libsqlite3*",
                "media-types*", "netbase*"):  # fmt: skip
        for package in bundle.glob(f"{deb}.deb"):
            shutil.copy(package, archive)
    file = write("gpu2", offline=str(archive))
    python, engine = install(file).changes
    assert "install python3 from static" in str(python.change)
    assert "install docker-20.10.24.tgz" in str(engine.change)
    told = on_host("gpu2", "systemctl is-enabled docker containerd; docker info -f {{.Driver}}")
    assert told.stdout.split()[:2] == ["enabled", "enabled"], told.stderr
    assert on_host("gpu2", SLEEPER.replace("--name", "--network host --name")).returncode == 0
    on_host("gpu2", "docker rm -f training; docker rmi sleeper")
    purge(operator, file, on_host, "gpu2")


@pytest.mark.skipif(not shutil.which("gpg"), reason="gpg is not installed")
def test_a_signed_mirror_brings_the_toolkit(
    write: Write, bundle: Path, tmp_path: Path, on_host: OnHost, operator: Operator
) -> None:
    key = build_repository(tmp_path / "mirror")
    with served(tmp_path / "mirror", str(CONTROL.controller)) as url:
        install(write("gpu1", offline=str(bundle)))
        with pytest.raises(ClusterctlError, match="is not the key that signs nvidia-container"):
            install(write("gpu1", gpus=True, nvidia={"url": url}))
        file = write("gpu1", gpus=True, nvidia={"url": url, "key": str(key)})
        install(file)
        versions = on_host("gpu1", "dpkg-query -W -f '${Version}\\n' '*nvidia-container*'")
        assert versions.stdout.split() == ["1.19.1-1"] * 4
    purge(operator, file, on_host, "gpu1")


def test_docker_trusts_a_ca_and_uses_a_proxy_until_they_are_taken_away(
    write: Write, bundle: Path, operator: Operator, on_host: OnHost, tmp_path: Path
) -> None:
    ca, ip = private_ca(), str(CONTROL.controller)
    (tmp_path / "corp.pem").write_text(ca.pem)
    image = MadeImage("acme/vllm:1", (layer_tar("base", 5000),))
    certificate = ca.issue(tmp_path, ip)
    proxy = {"https": "http://proxy.invalid:3128", "no_proxy": [ip]}
    with docker_registry(tmp_path, certificate=certificate, ip=ip) as registry:
        reference = registry.push(image)

        def site(**packages: object) -> Path:
            file = write("gpu1", offline=str(bundle), **packages)
            document = yaml.safe_load(file.read_text())
            file.write_text(yaml.safe_dump({**document, "image": reference}))
            return file

        install(site())
        assert "unknown authority" in on_host("gpu1", f"docker pull {reference}").stderr
        started = on_host("gpu1", "systemctl show -p ActiveEnterTimestamp docker").stdout
        install(site(ca=str(tmp_path / "corp.pem")))
        assert on_host("gpu1", f"docker pull {reference}").returncode == 0
        assert on_host("gpu1", "systemctl show -p ActiveEnterTimestamp docker").stdout == started

        plan = install(site(ca=str(tmp_path / "corp.pem"), proxy=proxy))
        assert "restart Docker, which stops no container" in str(plan.changes[0].change)
        away = on_host("gpu1", "docker pull registry.invalid/acme:1").stderr
        assert "proxy.invalid" in away, away
        assert on_host("gpu1", f"docker pull {reference}").returncode == 0
        assert install(site(ca=str(tmp_path / "corp.pem"), proxy=proxy)).empty
    on_host("gpu1", f"docker rmi {reference}")
    purge(operator, site(), on_host, "gpu1")
    left = on_host("gpu1", "find / -xdev -name 'clusterctl.*' -not -path '/proc/*' 2>/dev/null")
    assert left.stdout == ""
