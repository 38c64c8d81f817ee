"""What a user may ask of a service, and how the service is called."""

from __future__ import annotations

import pytest

from clusterctl.errors import Problems, UsageError
from clusterctl.serving.request import Options, ServiceRequest, read_request, service_name
from clusterctl.serving.vllm_flags import parse_arguments


@pytest.mark.parametrize(
    "extra",
    [
        ("--distributed-executor-backend", "mp"),
        ("--api-key", "x"),
        ("--api-ke", "x"),
        ("--api_k=x",),
        ("--api", "x"),
        ("--hf-tok", "x"),
        ("--ssl-keyf", "x"),
        ("--master-a", "x"),
        ("--conf", "x.yaml"),
        ("--ud", "/tmp/s"),
        ("--nnodes", "2"),
        ("-n", "2"),
        ("--headless",),
        ("--hf-token=x",),
        ("--config", "x.yaml"),
        ("--uds", "/tmp/s"),
        ("--model", "x"),
        ("--tensor-parallel-size", "two"),
        ("--tensor-parallel-size", "0"),
        ("--port", "70000"),
    ],
)
def test_what_clusterctl_must_own_or_cannot_read_is_refused(extra: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        read_request(Options("m"), extra=parse_arguments(extra))

    assert "x" not in str(caught.value).split() or not extra[0].startswith("--api")


def test_a_flag_that_is_the_beginning_of_another_is_taken_as_itself() -> None:
    extra = parse_arguments(["--config-format", "mistral", "--hf-config-path", "/x", "-O3"])
    assert read_request(Options("m"), extra=extra).given == extra


def test_an_option_and_a_flag_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="contradict"):
        read_request(Options("m", tensor_parallel=2), extra=parse_arguments(["-tp", "4"]))
    with pytest.raises(UsageError, match="contradict"):
        read_request(Options("m", port=1), extra=parse_arguments(["--port", "2"]))


@pytest.mark.parametrize(
    "name", ["ray", "journal", "supervisor", "state", "dashboard", "gateway", "node"]
)
def test_names_of_the_nodes_own_files_and_ports_are_no_service(name: str) -> None:
    with pytest.raises(UsageError, match="is taken by clusterctl itself"):
        read_request(Options("m", name=name))
    assert service_name(f"/models/{name}") == f"{name}-model"


def test_all_that_is_wrong_with_a_request_is_said_at_once() -> None:
    with pytest.raises(Problems) as caught:
        read_request(Options(name="No Name"), extra=parse_arguments(["--nnodes", "2", "-pp", "x"]))

    assert len(caught.value.errors) == 4


@pytest.mark.parametrize(
    ("served", "name"),
    [
        ("qwen2.5-1.5b", "qwen2.5-1.5b"),
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("My Model!", "my-model"),
        ("../..", "model"),
    ],
)
def test_a_service_is_named_after_what_it_serves(served: str, name: str) -> None:
    assert service_name(served) == name


def test_random_weights_can_be_asked_for() -> None:
    request = read_request(Options("m"), extra=parse_arguments(["--load-format", "dummy"]))

    assert request.random_weights
    assert not ServiceRequest("m").random_weights


def test_dp_and_ep_are_vllms_flags_of_data_and_expert_parallel() -> None:
    ours = read_request(Options("m", data_parallel=2, expert_parallel=True))
    flags = ("--data-parallel-size", "2", "--enable-expert-parallel")
    vllms = read_request(Options("m"), extra=parse_arguments(flags))
    assert ours.data_parallel == vllms.data_parallel == 2
    assert [one.tokens() for one in ours.given] == [one.tokens() for one in vllms.given]

    with pytest.raises(UsageError, match="--dp 2 and -- --data-parallel-size 4 contradict"):
        read_request(
            Options("m", data_parallel=2), extra=parse_arguments(("--data-parallel-size", "4"))
        )
    with pytest.raises(UsageError, match="--replicas and --dp"):
        read_request(Options("m", data_parallel=2, replicas="2"))
