"""No text crashes a parser, and what is lost is stated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterctl.facts.parse import Probe, parse_probe
from clusterctl.facts.sections import split_sections

TEXTS = tuple(
    path.read_text() for path in sorted((Path(__file__).parent / "captures").glob("*.txt"))
)


def parse(text: str) -> Probe:
    return parse_probe(split_sections(text, "MARK"), sudo_error=None, received=0.0)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_damaged_probe_never_crashes(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(TEXTS))
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 400)))
        text = text[:start] + data.draw(st.text(max_size=12)) + text[end:]
    parse(text)


@settings(max_examples=60, deadline=None)
@given(body=st.text(alphabet='{}[]":,0129 -/nulabc\t\n', max_size=80), data=st.data())
def test_any_section_may_hold_anything(body: str, data: st.DataObject) -> None:
    names = ("clock", "files", "lines", "shell", "addresses", "names", "disks", "gpus 0",
             "engine 0", "containers 0", "image 0", "file /x", "sudo")  # fmt: skip
    parse(f"MARK {data.draw(st.sampled_from(names))}\n{body}\nMARK end\n1.0\n")


def test_an_empty_probe_is_unknown_throughout() -> None:
    facts = parse("").facts
    assert (facts.cpus, facts.memory, facts.nics, facts.disks) == (0, 0, (), ())
    assert not facts.root
    assert any(text.startswith("memory could not be read") for text in facts.unknown)
    assert any(text.startswith("the clock could not be read") for text in facts.unknown)


@pytest.mark.parametrize(
    ("section", "unknown"),
    [
        ("gpus 0\n0, GPU-1, name only", "GPUs could not be read"),
        ("engine 0\n/usr/bin/docker\n{broken", "the container engine could not be read"),
        ("containers 0\n{}", "our containers could not be read"),
        ("containers 1\npermission denied", "our containers could not be read"),
        ("image 1\nError response from daemon: i/o timeout", "the image could not be read"),
        ("addresses\n[{]", "NICs could not be read"),
        ("disks\n/data\t/data\n", "disks could not be read"),
        ("names\nnot-an-address", "its own name could not be read"),
        ("shell\npython3 /usr/bin/python3 x.9", "Python could not be read"),
    ],
)
def test_one_bad_section_costs_only_its_own_facts(
    section: str, unknown: str, capture_text: Callable[[str], str]
) -> None:
    facts = parse(f"MARK {section}\n{capture_text('debian-13-ipv6-only')}").facts
    assert [text for text in facts.unknown if text.startswith(unknown)]
    assert facts.memory == 16377272 * 1024


@pytest.mark.parametrize("status", [1, 125])
def test_an_image_that_is_missing_is_none_and_not_unknown(status: int) -> None:
    for words in ("Error: No such image: x:1", "Error response from daemon: No such image: x:1"):
        probe = parse(f"MARK image {status}\n{words}\nMARK end\n1\n")
        assert probe.image is None
        assert not [text for text in probe.facts.unknown if "image" in text]


def test_a_path_that_df_refuses_leaves_the_others_in_place() -> None:
    facts = parse(
        "MARK disks\n/dev/shm\t/dev/shm\n/stale\t/stale\n/data\t/data\n"
        "df: /stale: Stale file handle\n"
        "Filesystem 1024-blocks Used Available Capacity Mounted on\n"
        "tmpfs 10 0 10 0% /dev/shm\n//nas/my share 300 100 200 34% /data\n"
    ).facts
    assert facts.shm == 10240
    assert [(disk.path, disk.total, disk.free) for disk in facts.disks] == [
        ("/data", 307200, 204800)
    ]
    assert "df: /stale: Stale file handle" in facts.unknown


@pytest.mark.parametrize(
    ("said", "gpus", "error"),
    [
        ("gpus 124\n", 0, "nvidia-smi does not answer"),
        ("gpus 6\nNo devices were found", 0, "No devices were found"),
        (
            "gpus 18\nFailed to initialize NVML: Driver/library version mismatch\n"
            "NVML library version: 550.54",
            0,
            "Failed to initialize NVML: Driver/library version mismatch "
            "NVML library version: 550.54",
        ),
        (
            "gpus 15\n0, GPU-a, NVIDIA A100-SXM4-80GB, 81920, 550.54.15\n"
            "Unable to determine the device handle for GPU 0000:41:00.0: Unknown Error",
            1,
            "Unable to determine the device handle for GPU 0000:41:00.0: Unknown Error",
        ),
        (
            "gpus 14\n0, GPU-a, NVIDIA L4, 23034, 550.54.15, 1, [N/A], 8.9, 00000000:01:00.0\n"
            "WARNING: infoROM is corrupted at gpu 0000:01:00.0",
            1,
            "WARNING: infoROM is corrupted at gpu 0000:01:00.0",
        ),
        ("gpus 3\n", 0, "nvidia-smi exited with status 3 and printed nothing"),
    ],
)
def test_what_nvidia_smi_complains_of(said: str, gpus: int, error: str) -> None:
    report = parse(f"MARK {said}\n").facts.gpus
    assert len(report.gpus) == gpus
    assert report.error == error


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("engine 124\n/usr/bin/docker\n", "the Docker daemon does not answer"),
        # Clients of Docker 20.10 and older print no JSON when the daemon is away.
        (
            "engine 1\n/usr/bin/docker\nGot permission denied while trying to connect",
            "Got permission denied while trying to connect",
        ),
        ("engine 1\n/usr/bin/docker\n", "the Docker daemon did not answer"),
    ],
)
def test_an_engine_that_does_not_answer(said: str, error: str) -> None:
    engine = parse(f"MARK {said}\n").facts.engine
    assert engine.installed
    assert not engine.running
    assert engine.error == error
    assert engine.hung is ("124" in said)


def test_rootless_and_snap_are_recognised() -> None:
    info = (
        '{"ServerVersion":"28.0","DockerRootDir":"/var/snap/docker/common/var-lib-docker",'
        '"SecurityOptions":["name=seccomp","name=rootless"]}'
    )
    engine = parse(f"MARK engine 0\n/snap/bin/docker\nWARNING: x\n{info}\n").facts.engine
    assert engine.running
    assert engine.rootless
    assert engine.snap
