"""What clients of two replicas lose while the head goes and comes back, and while hosts get another
image, counted request by request (`pytest -rP` prints the rows). Both hosts have a gateway; clients
know both addresses where each host is changed. The tests build on each other, in this order."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

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

NEXT = "RUN echo next >/release"
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


@pytest.fixture
def with_image(doors: Path, on_host: OnHost) -> Callable[[str, str], Path]:
    """Returns an inventory with a derivative of its image, which the head alone has."""
    text = doors.read_text()
    found = re.search(r"^image: (\S+)$", text, re.MULTILINE)
    assert found

    def inventory(tag: str, instruction: str) -> Path:
        recipe = f"FROM {found[1]}\n{instruction}\nLABEL release={tag}\n"
        built = on_host(
            "gpu1", f"docker build -t clusterctl/lab:{tag} -", stdin=recipe, timeout=300
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


def started(on_host: OnHost, host: str) -> list[str]:
    """The processes of each vLLM of the host."""
    return on_host(host, "pgrep -f '[v]llm serve'").stdout.split()


def raylet(on_host: OnHost, host: str) -> str:
    return on_host(host, "pgrep -x raylet").stdout.strip()


@pytest.mark.usefixtures("cluster")
def test_the_head_is_killed_and_comes_back(operator: Operator, on_host: OnHost) -> None:
    before = started(on_host, "gpu2"), raylet(on_host, "gpu2")
    with SteadyLoad(operator, on_host, WORKER).during("the head's node container killed") as row:
        assert on_host("gpu1", f"docker kill {NODE} && docker start {NODE}").returncode == 0
        both_serve(operator)

    assert row["failed"] == 0, row
    assert set(row["why"]) <= {"RemoteProtocolError", "no end of the stream", "an error event"}
    assert (started(on_host, "gpu2"), raylet(on_host, "gpu2")) == before


@pytest.mark.usefixtures("cluster")
def test_the_gcs_is_killed_again_and_again(operator: Operator, on_host: OnHost) -> None:
    before = [started(on_host, host) for host in ("gpu1", "gpu2")]
    with SteadyLoad(operator, on_host).during("kill -9 of the GCS, three times") as row:
        for _ in range(3):
            assert on_host("gpu1", "pkill -KILL -x gcs_server").returncode == 0
            time.sleep(20)
        both_serve(operator)

    assert (row["failed"], row["broken"]) == (0, 0), row
    assert [started(on_host, host) for host in ("gpu1", "gpu2")] == before


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("host", "door"), [("gpu2", HEAD), ("gpu1", WORKER)])
def test_docker_is_restarted(operator: Operator, on_host: OnHost, host: str, door: str) -> None:
    with SteadyLoad(operator, on_host, door).during(f"Docker restarted on {host}") as row:
        assert on_host(host, "systemctl restart docker", timeout=200).returncode == 0
        until(lambda: host not in admitted(operator), within=60, what="the replica is out")
        both_serve(operator)

    assert row["failed"] == 0, row


@pytest.mark.usefixtures("cluster")
def test_the_head_is_replaced(operator: Operator, on_host: OnHost, doors: Path) -> None:
    before = started(on_host, "gpu2"), raylet(on_host, "gpu2")
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

    assert (row["failed"], row["broken"]) == (0, 0), row
    assert (started(on_host, "gpu2"), raylet(on_host, "gpu2")) == before
    doors.write_text(mounted)


@pytest.mark.usefixtures("cluster")
def test_another_image_rolls(
    operator: Operator, on_host: OnHost, with_image: Callable[[str, str], Path]
) -> None:
    inventory = with_image("next", NEXT)
    planned = operator.run("plan", str(inventory))
    assert "another image, host after host: gpu2, gpu1" in planned.stderr, planned.text
    assert "tiny (2 replicas) serves throughout" in planned.stderr, planned.text

    load = SteadyLoad(operator, on_host, WORKER, HEAD)
    with load.during("another image on one host, then on all") as row:
        tried = operator.ok("bootstrap", str(inventory), "--limit", "gpu2", "--yes", timeout=1500)
        assert on_host("gpu2", f"docker exec {NODE} cat /release").stdout == "next\n", tried.text
        assert on_host("gpu1", f"docker exec {NODE} cat /release").returncode != 0
        both_serve(operator)
        operator.ok("bootstrap", str(inventory), "--yes", timeout=1500)
        both_serve(operator)

    assert (row["failed"], row["broken"]) == (0, 0), row
    assert on_host("gpu1", f"docker exec {NODE} cat /release").stdout == "next\n"
    operator.ok("plan", str(inventory))  # exit 0: nothing is left to do


@pytest.mark.usefixtures("cluster")
def test_an_image_that_does_not_serve_is_taken_back(
    operator: Operator, on_host: OnHost, with_image: Callable[[str, str], Path]
) -> None:
    inventory = with_image("broken", BROKEN)
    before = started(on_host, "gpu1")
    load = SteadyLoad(operator, on_host, HEAD, WORKER)
    with load.during("an image whose vLLM does not start, taken back") as row:
        ran = operator.run("bootstrap", str(inventory), "--yes", timeout=1500)
        both_serve(operator)

    assert ran.status != 0, ran.text
    assert "gpu2 is back on the image of before, and serves" in ran.stderr, ran.text
    assert (row["failed"], row["broken"]) == (0, 0), row
    assert started(on_host, "gpu1") == before
    assert status(operator)["services"]
