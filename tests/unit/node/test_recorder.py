"""The recorder: what readings show to be wrong, when that began and ended."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from clusterctl.node import readings
from clusterctl.node.documents import BrokenNic, GpuListing
from clusterctl.node.files import Journal, NodePaths
from clusterctl.node.readings import HostReading, NicReading, conditions, host_reading, process_name
from clusterctl.node.recorder import Recorder
from clusterctl.node.timing import Timing
from tests.fakes.node_bench import await_value

NIC = NicReading(True, 0, packets=1000, errors=0, drops=0)
GPU = {"index": "1", "uncorrected": "0", "temperature": "64", "slowed by heat": "Not Active"}
CALM = HostReading(
    1000.0, 50.0, memory=(30_000, 64_000), disks={"/": (9000, 10_000)}, nics={"eth1": NIC},
    sent=5000, gpus=[GPU],
)  # fmt: skip
LATER = replace(CALM, time=1010.0, monotonic=60.0)


@pytest.mark.parametrize(
    ("now", "kind", "words"),
    [
        (replace(LATER, memory=(900, 64_000)), "memory-low", "900 of 64000 MiB"),
        (replace(LATER, oom_kills=2), "oom-kill", "ended 2 processes for lack of memory"),
        (replace(LATER, disks={"/": (3, 10_000)}), "disk-full", "/ has 3 of 10000 MiB free"),
        (replace(LATER, nics={"eth1": replace(NIC, carrier=False)}), "link-lost",
         "eth1 lost its link"),
        (replace(LATER, nics={"eth1": replace(NIC, losses=1)}), "link-lost",
         "eth1 lost its link, and has it again"),
        (replace(LATER, nics={"eth1": replace(NIC, packets=2000, drops=400)}), "nic-drops",
         "eth1 counted 400 drops, 1000 packets"),
        (replace(LATER, nics={"eth1": replace(NIC, packets=2000, errors=400)}), "nic-errors",
         "eth1 counted 400 errors"),
        (replace(LATER, sent=6000, resent=300), "tcp-resent", "23 % of TCP segments"),
        # 30 % of few packets are lost: connections wait longer and longer before they send again.
        (replace(LATER, sent=5400, resent=18), "tcp-resent", "4 % of TCP segments"),
        (replace(LATER, stopped={7: "raylet"}), "stopped", "raylet (process 7) is stopped"),
        (replace(LATER, time=800.0), "clock-step", "set by -210.0 s"),
        (replace(LATER, time=1100.0, monotonic=150.0), "stood-still", "no reading for 100 s"),
        (replace(LATER, gpus=[{**GPU, "uncorrected": "3"}]), "gpu-ecc", "3 uncorrected"),
        (replace(LATER, gpus=[{**GPU, "slowed by heat": "Active"}]), "gpu-slowed",
         "GPU 1 is slowed: by heat (64 C)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_and_nothing_else(now: HostReading, kind: str, words: str) -> None:
    found = conditions(CALM, now, 10.0)
    assert [key[0] for key in found] == [kind]
    assert words in next(iter(found.values()))


@pytest.mark.parametrize(
    "now",
    [
        LATER,
        replace(LATER, disks={"/": (900, 10_000)}),
        replace(LATER, nics={"eth1": replace(NIC, packets=10**6, drops=500, errors=200)}),
        # Readings of healthy hosts: at most 3 of few segments, and at most 0.2 % of many.
        *(
            replace(LATER, sent=5000 + sent, resent=resent)
            for sent, resent in ((94, 3), (284_921, 367), (3_966_308, 7276), (14_353_622, 4253))
        ),
        replace(LATER, gpus=[]),  # nvidia-smi did not answer in time: GpuCount tells that
    ],
)
def test_a_calm_host_has_nothing_wrong(now: HostReading) -> None:
    assert conditions(CALM, now, 10.0) == {}


def test_a_nic_without_a_cable_from_the_start_lost_nothing() -> None:
    unplugged = replace(NIC, carrier=False, losses=1)
    before, now = replace(CALM, nics={"e": unplugged}), replace(LATER, nics={"e": unplugged})
    assert conditions(before, now, 10.0) == {}
    assert conditions(before, now, 10.0, {("link-lost", "e"): ""}), "one that had it, still has not"


def test_a_real_host_is_read() -> None:
    found = host_reading(["/"], [])
    free, most = found.memory
    assert 0 < free < most
    assert found.disks["/"][1] > 0
    assert found.sent > 0


def test_attempts_to_connect_are_no_segments_that_were_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host without internet repeats them as long as programs look for updates."""
    monkeypatch.setattr(
        readings, "_tcp", lambda: {"OutSegs": 90, "RetransSegs": 24, "TCPSynRetrans": 21}
    )
    read = host_reading([], [])
    assert (read.sent, read.resent) == (90, 3)


def test_counters_of_tcp_are_read_from_both_of_the_kernels_files() -> None:
    found = readings._tcp()
    assert {"OutSegs", "RetransSegs", "TCPSynRetrans"} <= found.keys()


def test_processes_killed_for_lack_of_memory_are_counted_for_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose group ends first in the list counts: version 2, version 1, the host's."""
    groups = [tmp_path / name for name in ("events", "control", "vmstat")]
    monkeypatch.setattr(readings, "_OOM_KILLS", [str(path) for path in groups])
    assert host_reading([], []).oom_kills == 0
    for path, text, kills in (
        (groups[2], "pgfault 7\noom_kill 9\n", 9),
        (groups[1], "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", 2),
        (groups[0], "oom 4\noom_kill 3\noom_group_kill 0\n", 3),
    ):
        path.write_text(text)
        assert host_reading([], []).oom_kills == kills


@dataclass
class Watched:
    """A recorder with its files."""

    paths: NodePaths
    recorder: Recorder

    def tick(self, *broken: BrokenNic) -> None:
        self.recorder.tick(time.monotonic(), list(broken))

    def journal(self) -> list[tuple[str, str]]:
        if not self.paths.journal.exists():
            return []
        entries = [json.loads(line) for line in self.paths.journal.read_text().splitlines()]
        return [(entry["event"], entry["text"]) for entry in entries]

    def told(self, event: str, word: str) -> bool:
        self.tick()
        return any(found == event and word in text for found, text in self.journal())


@contextmanager
def watched(root: Path, listing: GpuListing = GpuListing()) -> Iterator[Watched]:  # noqa: B008
    paths = NodePaths("demo", root)
    paths.logs.mkdir(parents=True)
    timing = Timing(readings_every=0.01)
    journal = Journal(paths.journal, "a", io.StringIO())
    made = Recorder(paths, listing, timing, journal)
    yield Watched(paths, made)
    made.close()


def test_a_stopped_process_is_in_the_journal_with_its_begin_and_end(tmp_path: Path) -> None:
    with watched(tmp_path) as host, subprocess.Popen(["sleep", "60"]) as process:
        try:
            host.tick()
            process.send_signal(signal.SIGSTOP)
            pid = str(process.pid)
            await_value(lambda: host.told("stopped", pid), "the stopped process")
            (lasting,) = host.recorder.lasting()
            assert lasting.endswith(f"(process {pid}) is stopped by a signal")
            process.send_signal(signal.SIGCONT)
            await_value(lambda: host.told("over", pid), "its end")
            assert not host.recorder.lasting()
        finally:
            process.kill()


def test_a_broken_nic_is_told_once(tmp_path: Path) -> None:
    with watched(tmp_path) as host:
        broken = BrokenNic("eth1", "gloo, nccl", "down")
        for found in ((), (broken,), (broken,), ()):
            host.tick(*found)
        told = [entry for entry in host.journal() if "nic-broken" in entry[0] + entry[1]]
    assert told == [("nic-broken", "eth1 of gloo, nccl is down"), ("over", "nic-broken")]


def test_gpus_are_read(tmp_path: Path) -> None:
    listing = GpuListing(
        query=["echo", "0, 63, Active"], columns=["index", "temperature", "slowed by heat"]
    )
    with watched(tmp_path, listing) as host:
        await_value(lambda: host.told("gpu-slowed", "GPU 0 is slowed: by heat (63 C)"), "a hot GPU")


def test_a_name_that_a_process_chose_cannot_write_lines_or_move_the_cursor() -> None:
    argv = ["x\x1b[2J\nhost oom-kill", "60"]
    with subprocess.Popen(argv, executable=shutil.which("sleep")) as process:
        try:
            await_value(lambda: process_name(process.pid) == "x?[2J?host oom-kill", "the name")
        finally:
            process.kill()
