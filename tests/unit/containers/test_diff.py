"""Whether a container is kept or made anew, and the words for why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.containers.diff import Create, Keep, Recreate, compare
from clusterctl.containers.driver import Container
from clusterctl.containers.spec import (
    CLUSTER_LABEL,
    FINGERPRINT_LABEL,
    ContainerSpec,
    Mount,
)
from tests.fakes.container_engine import container_of

SPEC = ContainerSpec(
    name="clusterctl-demo",
    image="sha256:" + "a" * 64,
    command=("python3", "/node.pyz"),
    env={"NCCL_SOCKET_IFNAME": "=eth0"},
    mounts=(Mount("/etc/clusterctl/demo", "/etc/clusterctl/demo", read_only=True),),
    ulimits={"nofile": 4096},
    labels={CLUSTER_LABEL: "demo"},
)


def made_from(spec: ContainerSpec) -> Container:
    """One that runs, of an image that has a variable and a label of its own."""
    made = container_of("c1", spec)
    return replace(
        made,
        status="running",
        env={**spec.env, "PATH": "/bin"},
        image_env={"PATH": "/bin"},
        labels={**made.labels, "org.image": "x"},
    )


def test_none_there_is_created() -> None:
    assert compare(SPEC, None) == Create()


def test_one_made_from_the_spec_is_kept_running_or_not() -> None:
    assert compare(SPEC, made_from(SPEC)) == Keep()
    assert compare(SPEC, replace(made_from(SPEC), status="exited")) == Keep()


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (replace(SPEC, image="sha256:" + "b" * 64), "image: aaaaaaaaaaaa -> bbbbbbbbbbbb"),
        (replace(SPEC, command=("sh",)), "command: python3 /node.pyz -> sh"),
        (replace(SPEC, env={}), "environment: NCCL_SOCKET_IFNAME goes"),
        (
            replace(SPEC, env={**SPEC.env, "PATH": "/bin", "HF_TOKEN": "hf_secret"}),
            "environment: HF_TOKEN is new",
        ),
        (
            replace(SPEC, env={"NCCL_SOCKET_IFNAME": "=eth1"}),
            "environment: NCCL_SOCKET_IFNAME changes",
        ),
        (
            replace(SPEC, mounts=(*SPEC.mounts, Mount("/data", "/models"))),
            "mount: /data:/models is new",
        ),
        (replace(SPEC, ulimits={"nofile": 8192}), "ulimit: nofile 4096 -> 8192"),
        (replace(SPEC, all_gpus=True), "device: all GPUs is new"),
        (replace(SPEC, cdi_devices=("nvidia.com/gpu=0",)), "device: nvidia.com/gpu=0 is new"),
        (replace(SPEC, capabilities=("IPC_LOCK",)), "capability: IPC_LOCK is new"),
        (
            replace(SPEC, labels={CLUSTER_LABEL: "demo", "clusterctl.role": "head"}),
            "label: clusterctl.role=head is new",
        ),
        (replace(SPEC, stop_timeout=30), "stop timeout: 90 s -> 30 s"),
        (replace(SPEC, pids_limit=100), "process limit: 32768 -> 100"),
    ],
)
def test_one_thing_that_differs_is_the_one_reason(wanted: ContainerSpec, reason: str) -> None:
    assert compare(wanted, made_from(SPEC)) == Recreate((reason,))


def test_values_of_the_environment_are_never_shown() -> None:
    verdict = compare(replace(SPEC, env={"HF_TOKEN": "hf_secret"}), made_from(SPEC))
    assert isinstance(verdict, Recreate)
    assert "hf_secret" not in " ".join(verdict.reasons)


def test_another_fingerprint_without_a_visible_difference_is_still_made_anew() -> None:
    old = replace(made_from(SPEC), labels={CLUSTER_LABEL: "demo", FINGERPRINT_LABEL: "0"})
    assert compare(SPEC, old) == Recreate(("created by a different version of clusterctl",))


def test_a_container_with_the_engines_default_privileges_is_made_anew() -> None:
    old = replace(made_from(SPEC), drops_others=False, security_options=(), pids_limit=0)
    old = replace(old, labels={CLUSTER_LABEL: "demo", FINGERPRINT_LABEL: "0"})
    assert compare(SPEC, old) == Recreate(
        (
            "capabilities: all others are dropped",
            "security option: no-new-privileges is new",
            "process limit: none -> 32768",
        )
    )
