"""What clusterctl knows of the newest vLLM, as `scripts/new_release.sh` read it from its wheel."""

from __future__ import annotations

import zipfile
from datetime import date, timedelta
from pathlib import Path

import pytest

from clusterctl.models.version import parse_version
from clusterctl.planning.rules import NEWEST as NEWEST_RULES
from clusterctl.serving.release_flags import (
    FLAGS,
    NEWEST,
    NEWEST_RELEASE,
    completed,
    deprecated_flags,
    flags_of,
    refused_flags,
)
from clusterctl.serving.vllm_flags import parse_arguments
from scripts.vllm_release import changes, note_flags, read_wheel, used_metrics

OLD_AFTER = timedelta(days=75)  # vLLM has a release in about two weeks


def test_the_newest_release_read_is_not_old() -> None:
    read = date.fromisoformat(NEWEST_RELEASE["read"])

    assert date.today() - read < OLD_AFTER, "scripts/new_release.sh with the newest vLLM"
    assert NEWEST_RULES[:2] == NEWEST[:2]


def test_the_flags_of_the_newest_release_are_those_read_from_it() -> None:
    assert flags_of(NEWEST) == flags_of(None) == set(NEWEST_RELEASE["flags"])
    assert "swap-space" in flags_of((0, 17, 1))
    assert "swap-space" not in flags_of((0, 18, 0))


def test_every_metric_that_is_read_exists_in_the_newest_release() -> None:
    assert used_metrics() <= set(NEWEST_RELEASE["metrics"])


@pytest.mark.parametrize(
    ("typed", "version", "meant"),
    [
        ("gpu-memory-util", None, "gpu-memory-utilization"),
        ("max-num-seqs", None, "max-num-seqs"),
        ("max-num", None, "max-num"),  # of several
        ("of-a-fork", None, "of-a-fork"),
        ("mamba-cache-m", (0, 12, 0), "mamba-cache-m"),  # it came later
    ],
)
def test_the_beginning_of_a_flag_is_completed_as_argparse_does(
    typed: str, version: tuple[int, int, int] | None, meant: str
) -> None:
    assert completed(typed, version) == meant


def test_the_beginning_of_several_flags_is_refused_as_argparse_does() -> None:
    (error,) = refused_flags(parse_arguments(("--max-num", "4")), NEWEST)
    assert error.summary == "--max-num (command line) is the beginning of several flags of vLLM"
    assert error.hint
    assert "--max-num-batched-tokens" in error.hint
    assert not refused_flags(parse_arguments(("--max-num-se", "4")), NEWEST)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--log-config-file x", "--log-config-file is deprecated in vLLM 0.33.0, vLLM 0.33.0"),
        ("--ir-op-priority x", "vLLM 0.34.0 removes it"),
        ('--kv-transfer-config {"kv_role":"kv_both"}', "--kv-transfer-config kv_both"),
    ],
)
def test_what_is_going_is_said_before_it_fails(typed: str, said: str) -> None:
    (note,) = deprecated_flags(parse_arguments(typed.split()), NEWEST)

    assert said in note


def test_flags_without_a_deprecation_have_no_note() -> None:
    assert deprecated_flags(parse_arguments(["--max-num-seqs", "8"]), NEWEST) == ()


REGISTRY = '_MODELS = {\n    "NewForCausalLM": ("new", "NewForCausalLM"),\n}\n'
MODEL = """
class Base:
    embedding_modules = {"embed_tokens": "input_embeddings"}

class NewForCausalLM(Wrapper, Base):
    is_3d_moe_weight: ClassVar[bool] = True
"""
ARGUMENTS = """
MESSAGE = "--old-flag is deprecated and will be removed in v9.9.0."

class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        cache_kwargs = get_kwargs(CacheConfig)
        parser.add_argument("--block-size", "-b", **cache_kwargs["block_size"])
        parser.add_argument("--old-flag", default=None)
"""
FRONTEND = """
class FrontendArgs:
    response_role: str = "assistant"
"""
CACHE = """
CacheDType = Literal["auto", "fp8"]

class CacheConfig:
    block_size: int = Field(default=16, gt=0)
"""
METRICS = 'Gauge(name="vllm:num_requests_running")'


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    file = tmp_path / "vllm-9.8.0-cp38-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(file, "w") as opened:
        for name, text in (
            ("engine/arg_utils.py", ARGUMENTS),
            ("entrypoints/common/cli_args.py", FRONTEND),
            ("config/cache.py", CACHE),
            ("model_executor/models/registry.py", REGISTRY),
            ("model_executor/models/new.py", MODEL),
            ("v1/metrics/loggers.py", METRICS),
        ):
            opened.writestr(f"vllm/{name}", text)
    return file


def test_a_wheel_is_read_without_importing_it(wheel: Path) -> None:
    release = read_wheel(wheel)

    assert release.flags == {"block-size": 16, "old-flag": None, "response-role": "assistant"}
    assert release.deprecated == {"old-flag": "9.9.0"}
    assert release.architectures == ["NewForCausalLM"]
    assert release.adapted_embeddings == release.joined_experts == ["NewForCausalLM"]
    assert release.adapted_heads == []
    assert release.cache_dtypes == ["auto", "fp8"]
    assert release.metrics == ["vllm:num_requests_running"]


def test_flags_that_came_and_went_are_noted_with_the_release() -> None:
    document = {"read": ["0.1.0"], "flags": {"kept": ["0.1.0", None], "gone": ["0.1.0", None]}}

    note_flags(document, "0.2.0", {"kept", "new"})

    assert document == {
        "read": ["0.1.0", "0.2.0"],
        "flags": {
            "kept": ["0.1.0", None],
            "gone": ["0.1.0", "0.2.0"],
            "new": ["0.2.0", None],
        },
    }


def test_what_clusterctl_needs_and_a_release_lacks_fails(
    wheel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = list(changes(NEWEST_RELEASE, vars(read_wheel(wheel))))

    assert "vllm:kv_cache_usage_perc" in missing
    assert "vllm:num_requests_running" not in missing
    assert "load" not in missing
    assert "architectures: + NewForCausalLM" in capsys.readouterr().out


def test_every_flag_has_a_release_that_has_it() -> None:
    assert all(history.gone or history.since for history in FLAGS.values())
    assert parse_version(NEWEST_RELEASE["vllm"]) == NEWEST
