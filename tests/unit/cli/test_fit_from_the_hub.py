"""`fit ORGANIZATION/NAME`: config.json from a server with the Hub's API, kept, refused, absent."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.fakes.catalogue import config_of
from tests.fakes.hubs import COMMIT, TOKEN, FakeHubs, running_hubs
from tests.unit.cli.conftest import Run

MODEL = "Somebody/Qwen3-8B-AWQ"
GPUS = ("--gpus", "A100")
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}


@pytest.fixture
def hubs() -> Iterator[FakeHubs]:
    config = json.dumps({**config_of("Qwen/Qwen3-8B"), "quantization_config": AWQ}).encode()
    with running_hubs(FakeHubs(models={MODEL: {"config.json": config}})) as running:
        yield running


def test_a_model_beyond_the_catalogue_is_planned_from_the_hub(
    clusterctl: Run, hubs: FakeHubs
) -> None:
    ran = clusterctl("fit", MODEL, *GPUS, "--json", HF_ENDPOINT=hubs.endpoint)

    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert document["model"] == MODEL
    assert document["ranks"][0]["weights_gib"] == pytest.approx(5.7, abs=0.2)
    assert f"config.json of {MODEL}: from {hubs.endpoint}, commit {COMMIT[:12]}" in ran.stderr
    assert "%" not in ran.stderr, "no progress bar of the Hub's client"


def test_the_copy_is_kept_and_used_when_the_hub_does_not_answer(
    clusterctl: Run, hubs: FakeHubs, closed_port: int
) -> None:
    first = clusterctl("fit", MODEL, *GPUS, HF_ENDPOINT=hubs.endpoint)
    again = clusterctl("fit", MODEL, *GPUS, HF_ENDPOINT=hubs.endpoint)
    nobody = f"http://127.0.0.1:{closed_port}"
    for offline in ({"HF_ENDPOINT": nobody}, {"HF_HUB_OFFLINE": "1"}):
        ran = clusterctl("fit", MODEL, *GPUS, **offline)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout == first.stdout
        assert f"this machine's cache, commit {COMMIT[:12]}" in ran.stderr
    assert again.stdout == first.stdout
    files = [line for line in hubs.asked if line.endswith("config.json")]
    assert len(files) == 3, "HEAD and GET; the second run asked for the commit alone"


@pytest.mark.parametrize("offline", [True, False])
def test_without_the_hub_the_error_says_what_to_do(
    clusterctl: Run, closed_port: int, offline: bool
) -> None:
    there = {"HF_HUB_OFFLINE": "1"} if offline else {"HF_ENDPOINT": f"http://[::1]:{closed_port}"}
    ran = clusterctl("fit", MODEL, *GPUS, **there)

    assert ran.returncode != 0
    assert ("HF_HUB_OFFLINE is set" if offline else "cannot be reached") in ran.stderr
    assert "clusterctl fit ./config.json" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_gated_model_says_where_to_accept_its_terms(clusterctl: Run, hubs: FakeHubs) -> None:
    hubs.gated.add(MODEL)
    refused = clusterctl("fit", MODEL, *GPUS, HF_ENDPOINT=hubs.endpoint)
    assert refused.returncode == 5
    assert f"accept them at {hubs.endpoint}/{MODEL}" in refused.stderr
    assert "HF_TOKEN" in refused.stderr

    allowed = clusterctl("fit", MODEL, *GPUS, HF_ENDPOINT=hubs.endpoint, HF_TOKEN=TOKEN)
    assert allowed.returncode == 0, allowed.stderr
    assert TOKEN not in allowed.stdout + allowed.stderr


def test_a_name_that_nobody_has_and_a_model_without_config_are_said(
    clusterctl: Run, hubs: FakeHubs
) -> None:
    hubs.models["Somebody/Files"] = {"weights.gguf": b"x"}
    for name, said in (("Nobody/None", "is not on"), ("Somebody/Files", "has no config.json")):
        ran = clusterctl("fit", name, *GPUS, HF_ENDPOINT=hubs.endpoint)
        assert ran.returncode == 5, ran.stderr
        assert said in ran.stderr


def test_a_config_that_is_none_is_said(clusterctl: Run, hubs: FakeHubs) -> None:
    hubs.models[MODEL]["config.json"] = b"<html>log in</html>"
    ran = clusterctl("fit", MODEL, *GPUS, HF_ENDPOINT=hubs.endpoint)
    assert ran.returncode == 2
    assert f"config.json of {MODEL} is not JSON" in ran.stderr


def test_the_catalogue_asks_nobody(clusterctl: Run, hubs: FakeHubs) -> None:
    ran = clusterctl("fit", "Qwen/Qwen3-8B", *GPUS, HF_ENDPOINT=hubs.endpoint)
    assert ran.returncode == 0
    assert hubs.asked == []
