"""`serve --replicas 1..4`: replicas that sleep while they are not needed, as they are asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.serving.fleet_file import read_fleet
from clusterctl.serving.request import Options, read_request
from clusterctl.serving.vllm_flags import parse_arguments

MODEL = "qwen2.5-1.5b"
ONE_TO_FOUR = Options(MODEL, replicas="1..4")


@pytest.mark.parametrize(
    ("text", "number", "least"),
    [("1..4", 4, 1), ("0..1", 1, 0), ("2..max", "max", 2), ("4", 4, -1), ("max", "max", -1)],
)
def test_a_range_says_how_many_stay_awake(text: str, number: int | str, least: int) -> None:
    request = read_request(Options(MODEL, replicas=text))
    assert (request.replicas, request.least) == (number, least)
    assert request.idle == (300.0 if least >= 0 else 0.0)


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1.4", "1..", "..4", "1...4", "4..1", "2..2", "0..0", "max..4", "1..4 "]
)
def test_another_range_is_refused_with_what_it_can_be(text: str) -> None:
    with pytest.raises(UsageError, match="--replicas"):
        read_request(Options(MODEL, replicas=text))


def test_its_idle_time_and_its_target_can_be_given() -> None:
    request = read_request(replace(ONE_TO_FOUR, idle="10m", ttft=2.0))
    assert (request.idle, request.ttft) == (600.0, 2.0)


@pytest.mark.parametrize(
    ("options", "flags", "words"),
    [
        (Options(MODEL, replicas="4", ttft=2.0), (), "waking more replicas"),
        (replace(ONE_TO_FOUR, data_parallel=2), (), "--replicas and --dp"),
        (replace(ONE_TO_FOUR, standby=True), (), "--replicas 1..4 and --standby are two uses"),
        (replace(ONE_TO_FOUR, swap=True), (), "--replicas 1..4 and --swap are two uses"),
        (Options(MODEL, replicas="0..1", standby=True), (), "and --standby are two uses"),
        (Options(MODEL, replicas="0..1", swap=True), (), "and --swap are two uses"),
        (Options(MODEL, replicas="0..1", swap_with="chat"), (), "and --swap-with are two uses"),
        (replace(ONE_TO_FOUR, idle="5"), (), "must be a time"),
        (ONE_TO_FOUR, ("--api-server-count", "2"), "one API server"),
        (ONE_TO_FOUR, ("--enable-lora",), "without adapters"),
        (ONE_TO_FOUR, ("--no-enable-sleep-mode",), "sleep mode"),
    ],
)
def test_what_contradicts_it_is_refused(
    options: Options, flags: tuple[str, ...], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        read_request(options, (), parse_arguments(flags))


def test_the_second_number_is_the_greater_one() -> None:
    with pytest.raises(UsageError, match="the second number must be greater than the first"):
        read_request(Options(MODEL, replicas="4..1"))


def test_a_target_alone_is_for_the_range_that_a_service_has() -> None:
    assert read_request(Options(MODEL, ttft=2.0)).ttft == 2.0


def test_a_fleet_file_has_it(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(f"services:\n  a:\n    model: {MODEL}\n    replicas: 1..4\n    ttft: 2\n")
    (request,) = read_fleet(path)
    assert (request.replicas, request.least, request.ttft) == (4, 1, 2.0)
    path.write_text(f"services:\n  a:\n    model: {MODEL}\n    replicas: 1-4\n")
    with pytest.raises(UsageError) as refused:
        read_fleet(path)
    assert "a range such as 1..4; not 1-4" in str(refused.value.detail)
