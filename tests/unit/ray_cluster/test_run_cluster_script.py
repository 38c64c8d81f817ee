"""scripts/run_cluster.sh: the same container that clusterctl makes, by hand on one host."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from clusterctl.containers.spec import ContainerSpec
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Gpu, Host, Inventory, Nics
from clusterctl.network.choice import resolve
from clusterctl.ray_cluster.nodes import GATEWAY_CAPABILITIES, container_spec, ray_argv
from clusterctl.ray_cluster.topology import Topology
from tests.fakes.docker_run import docker_run_argv
from tests.fakes.host_facts import gpus, host_facts, nic, rdma
from tests.fakes.node_bench import await_value

SCRIPT = Path(__file__).parents[3] / "scripts" / "run_cluster.sh"
IMAGE = "vllm/vllm-openai:v0.7.2"
_HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
NOFILE = 2**30 if _HARD == resource.RLIM_INFINITY else _HARD

IP = """#!/bin/sh
case "$*" in
*"route get 127."* | *"route get ::1"*) echo "local $4 dev lo src $4 uid 0" ;;
*"route get 192.168.1."*) echo "$4 dev eth0 src {ip} uid 0" ;;
*"route get"*) echo "RTNETLINK answers: Network is unreachable" >&2; exit 2 ;;
*"addr show"*) echo "2: eth0    inet {ip}/24 brd x scope global eth0"
               echo "3: eth1    inet 10.0.0.9/24 brd x scope global eth1" ;;
*"link show"*) echo "2: eth0: <UP> mtu 1500"; echo "3: eth1@if7: <UP> mtu 1500" ;;
esac
"""

DOCKER = """#!/bin/sh
printf '%s\\n' "$*" >> "$RECORD/docker.calls"
case "$*" in
info*) cat "$RECORD/info" ;;
"run --rm --network none"*) cat "$RECORD/ray-version"; exit "$(cat "$RECORD/ray")" ;;
"container inspect"*) cat "$RECORD/container" 2>/dev/null ;;
ps*) cat "$RECORD/others" 2>/dev/null || true ;;
"run --cidfile"*)
    [ ! -e "$RECORD/ends" ] || exit "$(cat "$RECORD/ends")"
    printf our-id > "$3"
    touch "$RECORD/started"
    while [ ! -e "$RECORD/stopped" ]; do sleep 0.05; done ;;
stop*) touch "$RECORD/stopped" ;;
esac
"""


class ByHand:
    """The script on a host that is made of files and stand-ins for `ip` and `docker`."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.record = directory / "record"
        self.programs = directory / "bin"
        self.home = directory / "home"
        self.path = f"{self.programs}:{os.environ['PATH']}"
        for path in (self.root / "dev", self.root / "data/model", self.record, self.programs):
            path.mkdir(parents=True)
        self.home.mkdir()
        (self.root / "dev/nvidiactl").touch()
        (self.record / "info").write_text("null\n")
        (self.record / "ray").write_text("0\n")
        (self.record / "ray-version").write_text("2.56.1\n")
        self.program("docker", DOCKER)
        self.held("192.168.1.1")

    def program(self, name: str, text: str) -> None:
        path = self.programs / name
        path.write_text(text)
        path.chmod(0o755)

    def held(self, ip: str) -> None:
        self.program("ip", IP.format(ip=ip))

    def without(self, *names: str) -> None:
        """The host has no such programs: only links to the others are on PATH."""
        self.path = str(self.programs)
        for directory in os.environ["PATH"].split(":"):
            for program in Path(directory).glob("*") if directory else ():
                link = self.programs / program.name
                if program.name not in names and not link.is_symlink() and not link.exists():
                    link.symlink_to(program)
        for name in names:
            (self.programs / name).unlink(missing_ok=True)

    def start(self, *arguments: str, dry_run: bool = False) -> subprocess.Popen[str]:
        env = {
            "PATH": self.path,
            "HOME": str(self.home),
            "RECORD": str(self.record),
            "RUN_CLUSTER_ROOT": str(self.root),
            **({"RUN_CLUSTER_DRY_RUN": "1"} if dry_run else {}),
        }
        # Tests under nohup ignore SIGHUP, and bash heeds no signal that it finds ignored.
        return subprocess.Popen(
            ["env", "--default-signal", str(SCRIPT), *arguments],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def argv(self, *arguments: str) -> list[str]:
        """The docker command of a dry run."""
        process = self.start(*arguments, dry_run=True)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        return out.splitlines()

    def run(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        _, err = process.communicate(timeout=30)
        return process.returncode, err

    def calls(self) -> list[str]:
        path = self.record / "docker.calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def by_hand(tmp_path: Path) -> ByHand:
    return ByHand(tmp_path)


HEAD = (IMAGE, "192.168.1.1", "--head", "/data/model")
WORKER = (IMAGE, "192.168.1.1", "--worker", "/data/model")
ARTICLE = ("-e", "NCCL_SOCKET_IFNAME=eth0", "-e", "GLOO_SOCKET_IFNAME=eth1")


def values(argv: list[str] | tuple[str, ...], *flags: str) -> set[str]:
    """What follows any of `flags`."""
    return {after for flag, after in pairwise(argv) if flag in flags}


def cluster(**changes: Any) -> tuple[Inventory, dict[str, HostFacts], Topology]:
    hosts = (
        Host(
            name="gpu1", address="192.168.1.1", role="head", gpus=(Gpu(),),
            nics=Nics(nccl="eth0", gloo="eth1"),
        ),
        Host(
            name="gpu2", address="192.168.1.2", gpus=(Gpu(),), nics=Nics(nccl="eth0", gloo="eth1")
        ),
    )  # fmt: skip
    inventory = Inventory(cluster="demo", image=IMAGE, hosts=hosts, allow_unauthenticated_ray=True)
    ips = {"gpu1": "192.168.1.1", "gpu2": "192.168.1.2"}
    facts = {
        name: replace(
            host_facts(nic("eth0", ip), nic("eth1", f"10.0.0.{ip[-1]}")),
            gpus=gpus(1), nofile_hard=NOFILE, **changes,
        )
        for name, ip in ips.items()
    }  # fmt: skip
    return inventory, facts, resolve(inventory, facts)


def same_by_clusterctl(host: str, **changes: Any) -> ContainerSpec:
    inventory, facts, topology = cluster(**changes)
    spec = container_spec(topology.node(host), IMAGE, inventory, facts[host], topology)
    kept = tuple(each for each in spec.capabilities if each not in GATEWAY_CAPABILITIES)
    return replace(spec, capabilities=kept)  # By hand there is no gateway


PRIVILEGES = ("--cap-drop", "--cap-add", "--security-opt", "--pids-limit")


def assert_same_container(argv: list[str], spec: ContainerSpec) -> None:
    ours = docker_run_argv(spec)
    for flag in ("--network", "--ipc", "--ulimit", "--gpus", "--device", *PRIVILEGES):
        assert values(argv, flag) == values(ours, flag), flag
    assert "--init" in argv
    assert IMAGE in argv
    assert IMAGE in ours
    by_hand, made = values(argv, "-e", "--env"), values(ours, "--env")
    shared = ("NCCL_SOCKET", "GLOO_", "VLLM_HOST_IP", "RAY_ADDRESS", "RAY_AUTH")
    assert {e for e in by_hand if e.startswith(shared)} == {
        e for e in made if e.startswith(shared) and not e.startswith("NCCL_SOCKET_FAMILY")
    }


def test_the_head_is_the_container_that_clusterctl_makes(by_hand: ByHand) -> None:
    argv = by_hand.argv(*HEAD, "-e", "VLLM_HOST_IP=192.168.1.1", *ARTICLE)
    assert_same_container(argv, same_by_clusterctl("gpu1"))


def test_the_worker_is_the_container_that_clusterctl_makes(by_hand: ByHand) -> None:
    by_hand.held("192.168.1.2")
    argv = by_hand.argv(*WORKER, "-e", "VLLM_HOST_IP=192.168.1.2", *ARTICLE)
    assert_same_container(argv, same_by_clusterctl("gpu2"))


def test_rdma_and_cdi_are_used_where_they_are_found(by_hand: ByHand) -> None:
    port = by_hand.root / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (by_hand.root / "etc/cdi").mkdir(parents=True)
    (by_hand.root / "etc/cdi/nvidia.yaml").touch()
    (by_hand.record / "info").write_text('["/etc/cdi","/var/run/cdi"]\n')

    argv = by_hand.argv(*HEAD, *ARTICLE)

    spec = same_by_clusterctl("gpu1", rdma=(rdma("mlx5_0"),), cdi_specs=("/etc/cdi/nvidia.yaml",))
    assert_same_container(argv, spec)
    assert values(argv, "--device") == {"nvidia.com/gpu=all", "/dev/infiniband"}


def test_ray_starts_with_the_nodes_address(by_hand: ByHand) -> None:
    _, _, topology = cluster()
    inventory, _, _ = cluster()
    argv = by_hand.argv(*HEAD)
    ray = argv[argv.index(IMAGE) + 1 :]
    assert set(ray) <= set(ray_argv(topology.head, "192.168.1.1", inventory.ray_ports))
    assert "--node-ip-address=192.168.1.1" in ray

    by_hand.held("192.168.1.2")
    argv = by_hand.argv(*WORKER)
    assert argv[argv.index(IMAGE) + 1 :] == [
        "start", "--block", "--address=192.168.1.1:6379", "--node-ip-address=192.168.1.2",
    ]  # fmt: skip
    assert values(argv, "--entrypoint") == {"ray"}


def test_the_article_gives_the_worker_the_heads_address_and_is_corrected(by_hand: ByHand) -> None:
    by_hand.held("192.168.1.2")
    argv = by_hand.argv(*WORKER, "-e", "VLLM_HOST_IP=192.168.1.1", *ARTICLE)
    assert "--node-ip-address=192.168.1.2" in argv
    assert "VLLM_HOST_IP=192.168.1.2" in argv
    assert "VLLM_HOST_IP=192.168.1.1" not in argv


@pytest.mark.parametrize(
    "form", [("-eX=1", "--env=VLLM_HOST_IP=10.0.0.9"), ("--env", "VLLM_HOST_IP=10.0.0.9")]
)
def test_every_way_to_write_a_variable(by_hand: ByHand, form: tuple[str, ...]) -> None:
    argv = by_hand.argv(*HEAD, *form)
    assert "--node-ip-address=10.0.0.9" in argv
    assert "GLOO_SOCKET_IFNAME=eth1" in argv


def test_further_arguments_reach_docker_unchanged(by_hand: ByHand) -> None:
    argv = by_hand.argv(*HEAD, "-v", "/a b:/c", "--shm-size", "10.24g", "-e", "X=a b")
    assert {"/a b:/c", "10.24g", "X=a b"} <= set(argv)
    assert "/data/model:/root/.cache/huggingface" in argv


def test_a_host_without_gpu_or_with_the_callers_own_flags(by_hand: ByHand) -> None:
    assert values(by_hand.argv(*HEAD, "--gpus", "device=1"), "--gpus") == {"device=1"}
    (by_hand.root / "dev/nvidiactl").unlink()
    assert "--gpus" not in by_hand.argv(*HEAD)


def test_a_token_is_used_when_there_is_one(by_hand: ByHand) -> None:
    assert "RAY_AUTH_MODE=disabled" in by_hand.argv(*HEAD)
    token = by_hand.home / ".ray/auth_token"
    token.parent.mkdir()
    token.write_text("very-secret")
    argv = by_hand.argv(*HEAD)
    assert "RAY_AUTH_MODE=token" in argv
    assert not any("very-secret" in word for word in argv)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((IMAGE, "192.168.1.1", "--head"), 2, "four arguments"),
        ((IMAGE, "192.168.1.1", "--both", "/data"), 2, "--head or --worker, not --both"),
        ((*HEAD, "-e", "GLOO_SOCKET_IFNAME=ens9"), 5, "GLOO_SOCKET_IFNAME names ens9"),
        ((*HEAD, "-e", "NCCL_SOCKET_IFNAME=ib"), 5, "NCCL_SOCKET_IFNAME names ib"),
        ((IMAGE, "203.0.113.1", "--worker", "/data/model"), 4, "no route leads from this host"),
        ((IMAGE, "no.such.host.invalid", "--worker", "/data/model"), 4, "knows no address of the"),
        ((IMAGE, "192.168.1.300", "--worker", "/data/model"), 4, "knows no address of the head"),
        ((IMAGE, "localhost", "--head", "/data/model"), 5, "where no other host reaches it"),
        ((IMAGE, "192.168.1.1", "--head", "/data/modle"), 5, "no directory /data/modle"),
        ((*HEAD, "--env-file", "/none"), 2, "the file of --env-file /none cannot be read"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(
    by_hand: ByHand, arguments: tuple[str, ...], status: int, words: str
) -> None:
    code, err = by_hand.run(*arguments)
    assert (code, words in err, "fix: " in err) == (status, True, True), err
    assert by_hand.calls() == []


def test_a_host_without_the_command_ip(by_hand: ByHand) -> None:
    by_hand.without("ip")
    code, err = by_hand.run(*HEAD)
    assert (code, "no command `ip`" in err, "fix: apt-get install iproute2" in err) == (5, 1, 1)
    argv = by_hand.argv(*HEAD, "-e", "VLLM_HOST_IP=192.168.1.1")
    assert "--node-ip-address=192.168.1.1" in argv
    assert not any("SOCKET_IFNAME" in word for word in argv)


def test_a_host_without_docker(by_hand: ByHand) -> None:
    by_hand.without("docker")
    code, err = by_hand.run(*HEAD)
    assert (code, "docker is not installed here" in err, "fix: " in err) == (5, True, True), err


def test_a_host_with_thousands_of_interfaces(by_hand: ByHand) -> None:
    """More than a pipe holds: nobody who reads may stop early."""
    many = "".join(f"{n}: veth{n}    inet 10.1.{n // 250}.{n % 250}/32 x\n" for n in range(9, 6000))
    (by_hand.record / "many").write_text(many)
    ip = IP.format(ip="192.168.1.1").replace("esac", f"esac\ncat {by_hand.record}/many")
    by_hand.program("ip", ip.replace('uid 0" ;;', 'uid 0"; exit ;;'))
    argv = by_hand.argv(*HEAD, "-e", "GLOO_SOCKET_IFNAME=eth1")
    assert {"NCCL_SOCKET_IFNAME==eth0", "GLOO_SOCKET_IFNAME=eth1"} <= set(argv)


def test_variables_of_a_file(by_hand: ByHand) -> None:
    """As Docker reads it: comments, no quotes, the last one counts, and -e over all of them."""
    file = by_hand.home / "env"
    file.write_text(
        "# VLLM_HOST_IP=192.168.1.9\nVLLM_HOST_IP=192.168.1.1\n  VLLM_HOST_IP=10.0.0.9\n"
        "RAY_AUTH_MODE=disabled\nGLOO_SOCKET_IFNAME=eth0"
    )
    argv = by_hand.argv(*HEAD, "--env-file", str(file), "-e", "GLOO_SOCKET_IFNAME=eth1")
    assert "--node-ip-address=10.0.0.9" in argv
    assert "NCCL_SOCKET_IFNAME==eth1" in argv
    assert "GLOO_SOCKET_IFNAME=eth0" not in argv
    assert not any(word.startswith("RAY_AUTH") for word in argv)
    assert f"--env-file={file}" in by_hand.argv(*HEAD, f"--env-file={file}")


def test_a_relative_model_directory_is_no_volume_of_docker(by_hand: ByHand) -> None:
    here = Path.cwd()
    (by_hand.root / str(here)[1:] / "model").mkdir(parents=True)
    argv = by_hand.argv(IMAGE, "192.168.1.1", "--head", "model")
    assert f"{here}/model:/root/.cache/huggingface" in argv


def test_the_limit_of_open_files_is_dockers(by_hand: ByHand) -> None:
    def docker_may(hard: str) -> None:
        (by_hand.root / "run").mkdir(exist_ok=True)
        (by_hand.root / "run/docker.pid").write_text("77")
        (by_hand.root / "proc/77").mkdir(parents=True, exist_ok=True)
        limits = f"Limit  Soft  Hard  Units\nMax open files            1024     {hard}   files\n"
        (by_hand.root / "proc/77/limits").write_text(limits)

    docker_may("54321")
    assert "nofile=54321" in by_hand.argv(*HEAD)
    docker_may("unlimited")
    assert "nofile=1048576" in by_hand.argv(*HEAD)
    docker_may("1024")
    code, err = by_hand.run(*HEAD)
    assert (code, "Docker may open 1024 files" in err, "fix: set LimitNOFILE" in err) == (5, 1, 1)


@pytest.mark.parametrize("version", ["2.40.0", "2.9.3"])
def test_a_token_that_the_images_ray_does_not_know(by_hand: ByHand, version: str) -> None:
    (by_hand.record / "ray-version").write_text(f"a warning of Python\n{version}\n")
    (by_hand.home / ".ray").mkdir()
    (by_hand.home / ".ray/auth_token").write_text("very-secret")
    code, err = by_hand.run(*HEAD)
    assert (code, f"has Ray {version}, which knows no token" in err) == (5, True), err
    assert "fix: use an image with Ray 2.52" in err
    assert not any("--cidfile" in call for call in by_hand.calls())

    (by_hand.record / "ends").write_text("0")
    code, err = by_hand.run(*HEAD, "-e", "RAY_AUTH_MODE=disabled")
    assert code == 0, err


@pytest.mark.parametrize(
    ("arguments", "ended", "status", "words"),
    [
        (HEAD, 125, 6, "Docker did not start the node"),
        (HEAD, 1, 6, "whether port 6379 is taken"),
        (WORKER, 1, 6, "nc -zv 192.168.1.1 6379"),
        (WORKER, 143, 143, ""),
        (WORKER, 0, 0, ""),
    ],
)
def test_how_a_node_ended(
    by_hand: ByHand, arguments: tuple[str, ...], ended: int, status: int, words: str
) -> None:
    (by_hand.record / "ends").write_text(str(ended))
    code, err = by_hand.run(*arguments)
    assert (code, words in err, "fix: " in err) == (status, True, bool(words)), err


def test_several_nodes_of_one_host(by_hand: ByHand) -> None:
    (by_hand.record / "others").write_text("node head 192.168.1.1\n")
    (by_hand.record / "ends").write_text("0")
    code, err = by_hand.run(*WORKER, "--name", "node2")
    assert code == 0
    assert "node has the address 192.168.1.1 too" in err
    assert "node may use the same GPUs" in err
    own = ("--name=node2", "-e", "VLLM_HOST_IP=10.0.0.9", "--gpus", "device=1")
    code, err = by_hand.run(*WORKER, *own)
    assert (code, "node has" in err, "same GPUs" in err) == (0, False, False)
    asked = [call for call in by_hand.calls() if call.startswith("container inspect")]
    assert all(call.endswith(" node2") for call in asked)
    assert values(by_hand.argv(*WORKER, *own), "--name") == {"node2"}

    code, err = by_hand.run(*HEAD, "--name", "node2")
    assert (code, "a head runs here already, node" in err, "fix: docker stop" in err) == (7, 1, 1)


def test_an_image_without_ray_is_named_with_its_fix(by_hand: ByHand) -> None:
    (by_hand.record / "ray").write_text("1\n")
    code, err = by_hand.run(*HEAD)
    assert code == 5
    assert f"{IMAGE} has no Ray" in err
    assert f"FROM {IMAGE}" in err
    assert not any("--cidfile" in call for call in by_hand.calls())


def test_a_docker_that_hangs_or_starts_nothing(by_hand: ByHand) -> None:
    (by_hand.record / "ray-version").write_text("docker: Error response from daemon: no space\n")
    (by_hand.record / "ray").write_text("125\n")
    code, err = by_hand.run(*HEAD)
    assert (code, "starts no container" in err, "no space" in err, "fix: " in err) == (6, 1, 1, 1)

    by_hand.program("timeout", "#!/bin/sh\nexit 124\n")
    code, err = by_hand.run(*HEAD)
    assert (code, "does not answer: nothing came within 30 s" in err) == (5, True), err


@pytest.mark.parametrize(
    ("state", "fix"),
    [
        ("running ", "docker rename node"),
        ("exited ", "docker rename node"),
        ("running head", "docker stop node, or, for one more: --name node2"),
    ],
)
def test_a_container_of_that_name_is_left_alone(by_hand: ByHand, state: str, fix: str) -> None:
    (by_hand.record / "container").write_text(f"{state}\n")
    code, err = by_hand.run(*HEAD)
    assert (code, f"fix: {fix}" in err) == (7, True), err
    assert not any(call.startswith(("rm", "stop")) for call in by_hand.calls())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_end_stops_its_own_container_by_id(by_hand: ByHand, number: int) -> None:
    (by_hand.record / "container").write_text("exited worker\n")
    process = by_hand.start(*HEAD)
    await_value((by_hand.record / "started").exists, "the container")

    process.send_signal(number)
    process.communicate(timeout=30)

    assert process.returncode == 143
    touched = [call for call in by_hand.calls() if call.startswith(("rm", "stop"))]
    assert touched == ["rm node", "stop -t 30 our-id"]
