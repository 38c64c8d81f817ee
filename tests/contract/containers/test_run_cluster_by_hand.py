"""scripts/run_cluster.sh against a real Docker engine: what it refuses with which words, and nodes
that start and end."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.containers.dockerd import Engine
from tests.fakes.node_bench import await_value

SCRIPT = Path(__file__).parents[3] / "scripts" / "run_cluster.sh"
NODE = "acme/node:1"
BARE = "acme/bare:1"
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")

RAY = """#!/usr/bin/python3
import sys, time
print("ray", *sys.argv[1:], flush=True)
if "--address=127.0.0.1:6379" in sys.argv:
    sys.exit("ray: GCS does not answer")
time.sleep(1000)
"""


class ByHand:
    """The script as somebody runs it on this host, which has the engine."""

    def __init__(self, directory: Path, engine: Engine) -> None:
        self.directory = directory
        self.engine = engine
        self.home = directory / "home"
        self.models = directory / "models"
        self.home.mkdir()
        self.models.mkdir()
        # Where somebody else can read it, and so can the engine's socket be reached.
        self.script = shutil.copy(SCRIPT, directory)
        self.socket = f"{engine.home}/docker.sock"

    def start(
        self, *arguments: str, user: tuple[str, ...] = (), socket: str = ""
    ) -> subprocess.Popen[str]:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "DOCKER_HOST": f"unix://{socket or self.socket}",
        }
        return subprocess.Popen(
            [*user, str(self.script), *arguments], cwd="/",
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def head(self, image: str) -> tuple[str, ...]:
        return (image, "127.0.0.1", "--head", str(self.models))

    def worker(self, image: str, head: str) -> tuple[str, ...]:
        return (image, head, "--worker", str(self.models))


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, err = process.communicate(timeout=120)
    return process.returncode, err


@pytest.fixture
def by_hand(tmp_path: Path, engine: Engine) -> ByHand:
    return ByHand(tmp_path, engine)


@pytest.fixture(scope="module")
def images(
    tmp_path_factory: pytest.TempPathFactory,
    engine: Engine,
    import_python: Callable[[Engine, str], str],
) -> None:
    """BARE has Python; NODE has something called ray as well, of a release without tokens."""
    import_python(engine, BARE)
    tree = tmp_path_factory.mktemp("ray")
    (tree / "ray").write_text(RAY)
    (tree / "ray").chmod(0o755)
    (tree / "__init__.py").write_text('__version__ = "2.40.0"\n')
    library = f"/usr/lib/{Path('/usr/bin/python3').resolve().name}/ray"
    container = engine.docker("create", BARE, "none")
    (tree / "package").mkdir()
    (tree / "__init__.py").rename(tree / "package/__init__.py")
    engine.docker("cp", f"{tree}/package", f"{container}:{library}")
    engine.docker("cp", f"{tree}/ray", f"{container}:/usr/bin/ray")
    engine.docker("commit", "--change", "ENV PATH=/usr/bin", container, NODE)
    engine.docker("rm", container)


def test_a_user_who_may_not_use_docker(by_hand: ByHand, engine: Engine) -> None:
    # pytest's own directories are for root alone; /tmp's mode stays.
    for directory in (engine.home, by_hand.directory, *by_hand.directory.parents[:-2]):
        directory.chmod(0o755)
    code, err = ended(by_hand.start(*by_hand.head(NODE), user=NOBODY))
    assert code == 5, err
    assert "may not use Docker here" in err
    assert "permission denied" in err
    assert "fix: sudo usermod -aG docker" in err


def test_a_daemon_that_does_not_answer(by_hand: ByHand) -> None:
    code, err = ended(by_hand.start(*by_hand.head(NODE), socket=f"{by_hand.directory}/none.sock"))
    assert code == 5, err
    assert "the Docker daemon does not answer" in err
    assert "fix: systemctl restart docker" in err


def test_an_image_that_is_nowhere_in_reach(by_hand: ByHand) -> None:
    image = "127.0.0.1:9/acme/none:1"
    code, err = ended(by_hand.start(*by_hand.head(image)))
    assert code == 5, err
    assert "connection refused" in err
    assert f"there is no image {image} here" in err
    assert f"docker save {image} | ssh " in err
    assert "docker load" in err


@pytest.mark.usefixtures("images")
def test_images_that_are_no_node(by_hand: ByHand, engine: Engine) -> None:
    code, err = ended(by_hand.start(*by_hand.head(BARE)))
    assert (code, f"{BARE} has no Ray" in err) == (5, True), err

    (by_hand.home / ".ray").mkdir()
    (by_hand.home / ".ray/auth_token").write_text("very-secret")
    code, err = ended(by_hand.start(*by_hand.head(NODE)))
    assert (code, "has Ray 2.40.0, which knows no token" in err) == (5, True), err
    assert engine.docker("ps", "-aq") == ""


@pytest.mark.usefixtures("images")
def test_docker_refuses_the_node(by_hand: ByHand) -> None:
    refused = (*by_hand.head(NODE), "--device", "/dev/none-such")
    code, err = ended(by_hand.start(*refused))
    assert code == 6, err
    assert "/dev/none-such" in err
    assert "Docker did not start the node" in err


@pytest.mark.usefixtures("images")
def test_nodes_of_one_host_from_start_to_end(by_hand: ByHand, engine: Engine) -> None:
    def running() -> set[str]:
        return set(engine.docker("ps", "--format", "{{.Names}}").split())

    head = by_hand.start(*by_hand.head(NODE))
    await_value(lambda: "node" in running(), "the head")
    code, err = ended(by_hand.start(*by_hand.worker(NODE, "127.0.0.2")))
    assert (code, "a node runs here already, node" in err) == (7, True), err
    code, err = ended(by_hand.start(*by_hand.head(NODE), "--name", "node2"))
    assert (code, "a head runs here already, node" in err) == (7, True), err

    worker = by_hand.start(*by_hand.worker(NODE, "127.0.0.2"), "--name", "node2")
    await_value(lambda: "node2" in running(), "the worker")
    code, err = ended(by_hand.start(*by_hand.worker(NODE, "127.0.0.1"), "--name=node3"))
    assert code == 6, err
    assert "GCS does not answer" in err
    assert "the node ended, Ray's status was 1" in err
    assert "node has the address 127.0.0.1 too" in err

    engine.docker("stop", "node2")
    assert ended(worker)[0] == 143
    head.terminate()
    again = by_hand.start(*by_hand.head(NODE))  # Docker removes the first one at the same time
    assert ended(head)[0] == 143
    await_value(lambda: again.poll() is not None or "node" in running(), "the head again")
    again.terminate()
    code, err = ended(again)
    assert code in (7, 143), err
    assert "in progress" not in err
    assert engine.docker("ps", "-aq") == ""
