"""An image that the hosts' GPUs cannot run is refused before any byte of it is sent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.errors import ClusterctlError
from clusterctl.facts.model import GpuFacts, GpuReport
from clusterctl.inventory.model import Gpu, Host, Inventory
from clusterctl.steps.engines import Engines
from clusterctl.survey.cluster import Cluster, topology_of
from clusterctl.transfer.cluster_images import ClusterImages
from tests.fakes.container_engine import image
from tests.fakes.host import FakeHost, fake_driver, fake_view
from tests.fakes.host_facts import host_facts, nic
from tests.fakes.surveys import Said, survey_of

REFERENCE = "vllm:v0.33.0"


def cluster(capability: str) -> Cluster:
    """The head has the image; no engine was asked for its environment when the survey was taken."""
    host = Host(name="gpu1", address="10.0.0.1", role="head", gpus=(Gpu(),))
    inventory = Inventory(cluster="demo", image=REFERENCE, hosts=(host,))
    gpu = GpuFacts(0, "GPU-0", "Tesla V100", 2**35, "580.95.05", compute_capability=capability)
    facts = replace(host_facts(nic("eth0", "10.0.0.1")), gpus=GpuReport((gpu,), None))
    survey = survey_of(inventory, {"gpu1": Said(facts)})
    machine = FakeHost("gpu1")
    machine.engine.images["base"] = replace(
        image("base", REFERENCE), env={"CUDA_VERSION": "13.0.1"}
    )
    return Cluster(survey, topology_of(survey), {"gpu1": fake_view(machine, facts)}, ("gpu1",))


@pytest.mark.parametrize(("capability", "runs"), [("7.0", False), ("9.0", True)])
def test_gpus_that_the_images_cuda_dropped(capability: str, *, runs: bool) -> None:
    with ClusterImages(cluster(capability), ("gpu1",), Engines(fake_driver)) as images:
        if runs:
            images.stages()
            return
        with pytest.raises(ClusterctlError) as raised:
            images.stages()
    assert str(raised.value) == (
        "gpu1: CUDA 13.0.1 of the image has no code for Tesla V100 (compute capability 7.0), which "
        "CUDA 13 dropped"
    )
    assert raised.value.hint == "an image with CUDA 12"
