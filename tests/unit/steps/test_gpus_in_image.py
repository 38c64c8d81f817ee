"""CUDA in the image, on the host's GPUs: what is asked, and what its answers mean.

The words are PyTorch's and CUDA's (vllm issues 4940 and 33447)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from clusterctl.containers.failures import explain
from clusterctl.engine.step import Change, Unknown
from clusterctl.errors import RequirementsNotMet
from clusterctl.steps.gpus_in_image import GpusInImage, parse
from clusterctl.steps.node_container import NodeContainer
from tests.fakes.host_gpus import DRIVER
from tests.unit.steps.stage import Cluster, cluster, spec
from tests.unit.steps.stage_install import with_gpus

TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU "
    "driver"
)


@pytest.fixture
def made() -> Cluster:
    made = cluster()
    made.head_view = with_gpus(made.head_view)
    return made


def step(made: Cluster, *, all_gpus: bool = True) -> GpusInImage:
    wanted = replace(spec(made), all_gpus=all_gpus)
    return GpusInImage(lambda _: wanted, made.engines, "demo.yaml")


def says(made: Cluster, **told: object) -> None:
    made.head.engine.cuda = f"a library's noise\n{json.dumps(told)}\n"


def test_gpus_that_work_are_nothing_to_do(made: Cluster) -> None:
    says(made, cuda="13.0", gpus=1)
    step(made).check(made.head_view)


def test_a_cpu_host_is_not_asked(made: Cluster) -> None:
    says(made, error="No CUDA GPUs are available")
    step(made, all_gpus=False).check(made.head_view)


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (TOO_OLD, "clusterctl bootstrap demo.yaml --install-driver FILE.run"),
        ("CUDA driver initialization failed, Error 803: system has unsupported display driver / "
         "cuda driver combination", "or a newer driver: clusterctl bootstrap demo.yaml "),
        ("Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was "
         "attempted on non supported HW", "cannot run a newer CUDA"),
        ("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
         "nvidia-fabricmanager"),
        ("No CUDA GPUs are available", "nvidia-smi"),
    ],
)  # fmt: skip
def test_what_cuda_says_is_the_cause(made: Cluster, error: str, fix: str) -> None:
    says(made, cuda="12.9", error=error)
    with pytest.raises(RequirementsNotMet) as raised:
        step(made).check(made.head_view)
    assert raised.value.summary == (
        f"CUDA 12.9 of the image does not work with driver 580.1: {error}"
    )
    assert fix in str(raised.value.hint)


def test_fewer_gpus_than_promised(made: Cluster) -> None:
    says(made, cuda="13.0", gpus=0)
    with pytest.raises(RequirementsNotMet, match="a container of the image sees 0"):
        step(made).check(made.head_view)


def test_fewer_gpus_than_declared_because_the_specification_is_of_before(made: Cluster) -> None:
    """The plan has the step that mends it, so that is no reason to refuse."""
    says(made, cuda="13.0", gpus=0)
    made.head.gpus.specified_for, made.head.gpus.moved = DRIVER, True
    found = step(made).check(made.head_view)
    assert found == Unknown("the CDI specification must list the host's GPUs first")


def test_a_node_that_runs_is_not_asked_again(made: Cluster) -> None:
    wanted = replace(spec(made), all_gpus=True)
    NodeContainer("demo", lambda _: wanted, made.engines, settle=0).apply(
        made.head_view, Change("")
    )
    says(made, error=TOO_OLD)
    step(made).check(made.head_view)


def test_an_answer_that_is_none() -> None:
    assert parse("Segmentation fault").error == "the output of PyTorch cannot be parsed"


def test_the_toolkits_own_refusal_is_named() -> None:
    words = (
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update "
        "your driver to a newer version, or use an earlier cuda container: unknown."
    )
    assert explain(words).summary == "the driver is too old for the image's CUDA"
