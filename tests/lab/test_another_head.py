"""The head's host is lost for good: another one is made the head, and takes over what serves.

Clients know the gateways of both other hosts, and every request is counted (`pytest -rP -s`).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from clusterctl.lab import faults, lifecycle
from clusterctl.lab.paths import LabPaths
from tests.lab.cluster import Operator, quiet, until
from tests.lab.conftest import OnHost
from tests.lab.steady_load import SteadyLoad, admitted

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.timeout(1800, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

SECOND, THIRD = "http://10.77.0.12:8000", "http://10.77.0.13:8000"
GATEWAY = "\ngateway: {hosts: all}\n"
AWAY = 20.0
"""Seconds without a head."""


@pytest.fixture(scope="module")
def three(lab: LabPaths, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The inventory of three hosts with a gateway each."""
    made = lifecycle.up(3, say=quiet)
    file = tmp_path_factory.mktemp("three") / "lab.yaml"
    file.write_text(made.inventory.read_text() + GATEWAY)
    yield file
    lifecycle.down(say=quiet)


def with_head(file: Path, head: str, lost: str) -> Path:
    """The inventory without a host, and with another one as the head."""
    text = re.sub(rf"^  {lost}:\n(    .*\n)+", "", file.read_text(), flags=re.MULTILINE)
    text = re.sub(rf"(^  {head}:\n    .*\n    role: )worker", r"\1head", text, flags=re.MULTILINE)
    other = file.with_name(f"{head}.yaml")
    other.write_text(text)
    return other


def answers(door: str, key: str) -> int:
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 4}
    headers = {"Authorization": f"Bearer {key}"}
    url = f"{door}/v1/completions"
    return httpx2.post(url, json=body, headers=headers, trust_env=False, timeout=60).status_code


def vllm(on_host: OnHost) -> list[str]:
    """The API servers of the hosts that stayed."""
    return [on_host(host, "pgrep -of 'vllm serve'").stdout.strip() for host in ("gpu2", "gpu3")]


def test_another_host_becomes_the_head(
    operator: Operator,
    on_host: OnHost,
    three: Path,
    record_property: Callable[[str, object], None],
) -> None:
    operator.ok("bootstrap", str(three), "--yes", timeout=1000)
    words = ("--tp", "1", "--replicas", "2", "--on", "gpu2,gpu3", "--yes")
    served = operator.ok("serve", "/data/models/tiny", *words, "--", "--max-model-len", "512")
    assert f"also at     {SECOND}/v1" in served.stdout, served.text
    alice, bob = (operator.ok("key", "create", name).stdout.strip() for name in ("alice", "bob"))
    operator.ok("key", "revoke", "bob")
    other = with_head(three, "gpu2", "gpu1")

    with SteadyLoad(operator, on_host, SECOND, THIRD).during("another head") as row:
        faults.power_off("gpu1")
        time.sleep(AWAY)
        began = time.monotonic()
        planned = operator.run("plan", str(other))
        took = operator.ok("bootstrap", str(other), "--yes", timeout=1000)
        until(
            lambda: sorted(admitted(operator)) == ["gpu2", "gpu3"],
            within=300,
            what="both replicas get requests",
        )
        seconds = time.monotonic() - began
    print(planned.text, took.text, f"as declared after {seconds:.0f} s", sep="\n")  # noqa: T201
    record_property("another head", (row, seconds))

    assert "gpu2 becomes the head in place of gpu1" in planned.stderr, planned.text
    assert "tiny (2 replicas) serves throughout" in planned.stderr, planned.text
    assert row["failed"] == 0, row
    assert [answers(door, alice) for door in (SECOND, THIRD)] == [200, 200]
    assert [answers(door, bob) for door in (SECOND, THIRD)] == [401, 401]
    operator.ok("plan", str(other))  # exit 0: nothing is left to do

    before = vllm(on_host)
    faults.power_on("gpu1")  # With its old disk, as a worker
    back = other.with_name("back.yaml")
    text = re.sub(
        r"(^  gpu1:\n    .*\n    role: )head", r"\1worker", three.read_text(), flags=re.MULTILINE
    )
    back.write_text(
        re.sub(r"(^  gpu2:\n    .*\n    role: )worker", r"\1head", text, flags=re.MULTILINE)
    )
    refused = operator.run("bootstrap", str(three), "--yes")
    assert "became the head while gpu1 was away" in refused.stderr, refused.text
    operator.ok("bootstrap", str(back), "--yes", timeout=1000)
    assert [answers(door, alice) for door in (SECOND, THIRD)] == [200, 200]
    assert vllm(on_host) == before, "its old GCS ended a replica of the new Ray"
