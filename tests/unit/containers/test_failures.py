"""The engine's words, as engines of several versions wrote them, become a cause and a fix."""

from __future__ import annotations

import pytest

from clusterctl.containers.driver import EngineUnavailable
from clusterctl.containers.failures import engine_error, explain


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (
            "write /var/lib/docker/tmp/docker-import-1/x: no space left on device",
            "the disk that holds Docker's data is full",
        ),
        (
            "Error response from daemon: manifest for vllm/vllm-openai:v9 not found: "
            "manifest unknown: manifest unknown",
            "the registry has no such image",
        ),
        (
            "toomanyrequests: You have reached your pull rate limit.",
            "the registry refuses more pulls for now (rate limit)",
        ),
        (
            "pull access denied for acme/x, repository does not exist or may require login",
            "the registry refuses access: the image is private or does not exist",
        ),
        (
            'Get "https://registry.example/v2/": dial tcp: lookup registry.example: no such host',
            "the host cannot reach the registry",
        ),
        (
            'could not select device driver "" with capabilities: [[gpu]]',
            "Docker cannot give GPUs to containers: the NVIDIA container toolkit is missing",
        ),
        (
            "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all",
            "Docker does not know the GPUs by their CDI names",
        ),
        (
            "error setting rlimits for ready process: error setting rlimit type 7: operation not "
            "permitted",
            "the host refuses a limit that the container asks for",
        ),
    ],
)
def test_known_words_have_a_cause_and_a_fix(message: str, cause: str) -> None:
    failure = explain(message)
    assert failure.summary == cause
    assert failure.hint


@pytest.mark.parametrize(
    "message",
    [
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. "
        "Is the docker daemon running?",
        "permission denied while trying to connect to the Docker daemon socket",
        "sh: 1: docker: not found",
    ],
)
def test_an_engine_that_cannot_be_used_is_told_from_a_request_that_failed(message: str) -> None:
    assert isinstance(engine_error(message), EngineUnavailable)


def test_unknown_words_are_passed_on_whole() -> None:
    error = engine_error("\nsomething new\nmore of it\n")
    assert error.summary == "Docker says: something new"
    assert error.detail == "something new\nmore of it"
