"""`serve --idle`: a service that sleeps, as it is asked for and declared."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.accelerators.cpu import ACCELERATOR
from clusterctl.accelerators.engine_defaults import ON_GPUS, EngineDefaults
from clusterctl.errors import UsageError
from clusterctl.models.name import resolve
from clusterctl.node.documents import ServiceDocument
from clusterctl.serving.arguments import Launch, Layout
from clusterctl.serving.fleet_file import read_fleet
from clusterctl.serving.request import Options, read_request
from clusterctl.serving.service import HOLDS, build_service, difference, needs_restart
from clusterctl.serving.vllm_flags import parse_arguments

MODEL = "qwen2.5-1.5b"


def document(
    idle: str | None, defaults: EngineDefaults = ON_GPUS, *, standby: bool = False
) -> ServiceDocument:
    launch = Launch(
        request=read_request(Options(MODEL, idle=idle, standby=standby)),
        model_argument="/data/models/Qwen2.5-1.5B-Instruct",
        served_names=(MODEL,),
        layout=Layout(1, 1, seats=("gpu1",)),
        host="10.0.0.1",
        entry=resolve(MODEL, "/data/models").entry,
        defaults=defaults,
        version=(0, 33, 0),
    )
    return build_service(launch)


@pytest.mark.parametrize(
    ("text", "seconds"), [("10s", 10), ("90s", 90), ("10m", 600), ("2h", 7200), ("7d", 604800)]
)
def test_a_time_has_a_unit(text: str, seconds: float) -> None:
    assert read_request(Options(MODEL, idle=text)).idle == seconds


@pytest.mark.parametrize("text", ["", "10", "9s", "0m", "8d", "-5m", "5 m", "1w", "10M", "1.5h"])
def test_another_time_is_refused_with_what_it_can_be(text: str) -> None:
    with pytest.raises(UsageError, match="must be a time from 10s to 7d"):
        read_request(Options(MODEL, idle=text))


@pytest.mark.parametrize(
    ("options", "flags", "words"),
    [
        (Options(MODEL, idle="10m", replicas="2"), (), "one replica"),
        (Options(MODEL, idle="10m", replicas="max"), (), "one replica"),
        (Options(MODEL, idle="10m", data_parallel=2), (), "one replica"),
        (Options(MODEL, idle="10m"), ("--api-server-count", "2"), "one API server"),
        (Options(MODEL, idle="10m"), ("--enable-lora",), "without adapters"),
        (Options(MODEL, idle="10m"), ("--no-enable-sleep-mode",), "needs vLLM's sleep mode"),
    ],
)
def test_what_a_service_that_sleeps_cannot_have(
    options: Options, flags: tuple[str, ...], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        read_request(options, extra=parse_arguments(flags))


def test_it_is_started_with_vllms_sleep_mode() -> None:
    never, ten = document(None), document("10m")
    assert ("--enable-sleep-mode" in never.argv, never.idle) == (False, 0)
    assert ("--enable-sleep-mode" in ten.argv, ten.idle) == (True, 600)
    assert needs_restart(never, ten)
    assert "idle: 600 s (new)" in difference(never, ten)
    assert not needs_restart(ten, document("1h"))
    assert difference(ten, document("1h")) == ["idle: 600 s → 3600 s"]


def test_without_gpus_it_sleeps_without_that_mode() -> None:
    made = document("10m", ACCELERATOR.defaults)
    assert "--enable-sleep-mode" not in made.argv
    assert made.env[HOLDS] == "1"
    never = document(None, ACCELERATOR.defaults)
    assert needs_restart(never, made)
    assert difference(never, made) == ["idle: 600 s (new)"]


@pytest.mark.parametrize("defaults", [ON_GPUS, ACCELERATOR.defaults])
def test_an_engine_that_sleeps_restarts_for_a_standby(defaults: EngineDefaults) -> None:
    """It has whole GPUs in Ray, and the same flags if its --gpu-memory-utilization leaves room."""
    idle, pair = document("10m", defaults), document(None, defaults, standby=True)
    assert idle.argv == pair.argv
    assert needs_restart(idle, pair)
    assert needs_restart(pair, idle)


def test_a_fleet_file_has_it(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(f"services:\n  a:\n    model: {MODEL}\n    idle: 10m\n")
    (request,) = read_fleet(path)
    assert request.idle == 600
    path.write_text(f"services:\n  a:\n    model: {MODEL}\n    idle: 5\n")
    with pytest.raises(UsageError, match="fleet"):
        read_fleet(path)
