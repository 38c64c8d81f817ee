"""Weights to several hosts over links of a known rate: time against the limit, what a killed push
costs, and what a second one does.

One command, with a lab that is up:

    clusterctl lab up --hosts 4 --link-rate 400mbit
    python -m tests.bench.weights --rate 400mbit

The inventory is the lab's; `--inventory` names another one whose links have that rate.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clusterctl.inventory.load import load
from clusterctl.inventory.model import Host, Inventory
from clusterctl.inventory.values import parse_rate

MIB = 2**20
SHARDS = (900, 600, 400, 100)
"""MiB: as unequal as those of real models, the last one being what is left over."""

NAME = "Bench-1B"
LAB = Path("/var/lib/clusterctl-lab/lab.yaml")
KILLED_AT = 0.4
"""Of the bytes, at the first host."""


@dataclass(frozen=True)
class Figures:
    """Of one run. Times in seconds, sizes in bytes."""

    hosts: int
    size: int
    hashing: float
    """Of the directory, which a first push adds."""
    limit: float
    """size / link rate: no push can be faster."""
    wall: float
    sent: int
    """By this machine."""
    source_cpu_per_gb: float
    """CPU seconds of the pushing process, beyond those of a push of nothing, per 1e9 bytes."""
    second_wall: float
    second_sent: int
    resumed_extra: int
    """On the first host's link, over a push that was killed and the one after it, more than for
    one push that was not: what the kill cost."""

    @property
    def ratio(self) -> float:
        return self.wall / self.limit


class Bench:
    """The pushes of one measurement."""

    def __init__(self, inventory: Path, rate: int, work: Path) -> None:
        self._inventory = inventory
        self._loaded: Inventory = load(inventory)
        self._rate = rate
        self._model = work / NAME
        self._environment = {
            **os.environ,
            "XDG_CACHE_HOME": str(work / "cache"),
            "XDG_STATE_HOME": str(work / "state"),
        }

    def measure(self) -> Figures:
        """All of it; a minute and a half of link time. Hosts are left without the model."""
        size = make_model(self._model)
        self._forget()
        began = time.monotonic()
        self._push("--dry-run")
        hashing = time.monotonic() - began
        before = self._received()
        wall, cpu, full = self._timed()
        usual = self._received() - before
        self._verify()
        second_wall, second_cpu, second = self._timed()
        extra = self._killed_and_resumed(size) - usual
        self._forget()
        return Figures(
            hosts=len(self._loaded.hosts),
            size=size,
            hashing=hashing,
            limit=size / self._rate,
            wall=wall,
            sent=int(full["sent"]),
            source_cpu_per_gb=(cpu - second_cpu) / (int(full["sent"]) / 1e9),
            second_wall=second_wall,
            second_sent=int(second["sent"]),
            resumed_extra=extra,
        )

    def _timed(self) -> tuple[float, float, Mapping[str, int]]:
        """A push: its time, its CPU seconds here, and what it printed."""
        began, cpu = time.monotonic(), _cpu()
        done = json.loads(self._push("--json"))
        return time.monotonic() - began, _cpu() - cpu, done

    def _killed_and_resumed(self, size: int) -> int:
        """Bytes on the first host's link over both runs."""
        self._forget()
        before = self._received()
        with subprocess.Popen(
            self._argv("model", "push", str(self._model), "--json"),
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            while self._received() - before < size * KILLED_AT and process.poll() is None:
                time.sleep(0.2)  # a counter on another machine: it cannot be waited for
            process.kill()
        self._push("--json")
        self._verify()
        return self._received() - before

    def _verify(self) -> None:
        """Every file on every host has the bytes that it has here."""
        here = {path.name: _sha256(path) for path in sorted(self._model.iterdir())}
        for name, wanted in here.items():
            there = f"{self._loaded.models}/{NAME}/{name}"
            answers = json.loads(
                self._run("exec", "--json", "--timeout", "300", "--", "sha256sum", there)
            )
            for host, answer in answers.items():
                assert answer["stdout"].split()[0] == wanted, f"{host}: {there}"

    def _forget(self) -> None:
        models = self._loaded.models
        self._run("exec", "--sudo", "--", "rm", "-rf", f"{models}/{NAME}")
        self._run("exec", "--sudo", "--", "rm", "-rf", f"{models}/.clusterctl-incoming")

    def _received(self) -> int:
        """Bytes that came to the first host on the interface that SSH and the chain use."""
        host: Host = self._loaded.hosts[0]
        counter = f"/sys/class/net/{host.nics.control}/statistics/rx_bytes"
        answer = json.loads(self._run("exec", "--limit", host.name, "--json", "--", "cat", counter))
        return int(answer[host.name]["stdout"])

    def _push(self, *options: str) -> str:
        return self._run("model", "push", str(self._model), *options, accepted=(0, 10))

    def _run(self, *words: str, accepted: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(
            self._argv(*words), env=self._environment, capture_output=True, text=True, timeout=1800
        )
        if done.returncode not in accepted:
            sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def _argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "clusterctl", "-i", str(self._inventory), *words]


def make_model(directory: Path) -> int:
    """A model of SHARDS with bytes that do not compress; its size. Made once."""
    directory.mkdir(parents=True, exist_ok=True)
    index = {}
    for number, megabytes in enumerate(SHARDS, 1):
        name = f"model-{number:05d}-of-{len(SHARDS):05d}.safetensors"
        index[f"layers.{number}.weight"] = name
        path = directory / name
        if not path.exists():
            _make_shard(path, megabytes * MIB)
    (directory / "config.json").write_text('{"model_type": "llama"}\n')
    (directory / "tokenizer.json").write_bytes(os.urandom(7 * MIB))
    document = {"weight_map": index}
    (directory / "model.safetensors.index.json").write_text(json.dumps(document))
    return sum(path.stat().st_size for path in directory.iterdir())


def _make_shard(path: Path, size: int) -> None:
    tensor = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    header = json.dumps({"weight": tensor}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _ in range(size // MIB):
            file.write(os.urandom(MIB))


def _sha256(path: Path) -> str:
    done = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True)
    return done.stdout.split()[0]


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rows(found: Figures) -> list[tuple[str, str, str]]:
    """Figure, bar, measured: for the table of all figures."""
    pushed = f"weights, {found.hosts} hosts, {found.size / 1e9:.1f} GB in {len(SHARDS) + 3} files"
    return [
        (f"{pushed}: wall / (bytes / rate)", "1.15", f"{found.ratio:.2f} ({found.wall:.1f} s)"),
        (f"{pushed}: bytes sent here", "1.02 x", f"{found.sent / found.size:.3f} x"),
        (
            "weights: a push killed at 40 %, and another one, beyond one push",
            "one chunk, 67 MB",
            f"{found.resumed_extra / 1e6:.0f} MB",
        ),
        (
            "weights: second push, nothing changed",
            "2 s, no bytes",
            f"{found.second_wall:.1f} s, {found.second_sent} bytes",
        ),
        (
            "weights: CPU of the source, beyond a push of nothing",
            "1 s per GB",
            f"{found.source_cpu_per_gb:.1f} s",
        ),
    ]


def measure_weights(rate: str, inventory: Path = LAB) -> Figures:
    """The figures, with links of `rate` (400mbit); in a directory that is removed again."""
    work = Path(tempfile.mkdtemp(prefix="clusterctl-bench-", dir="/var/tmp"))
    try:
        return Bench(inventory, parse_rate(rate), work).measure()
    finally:
        shutil.rmtree(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rate", default="400mbit", help="of the links; default: 400mbit")
    parser.add_argument("--inventory", type=Path, default=LAB)
    asked = parser.parse_args()
    found = measure_weights(asked.rate, asked.inventory)
    for row in rows(found):
        print("  ".join(row))  # noqa: T201


if __name__ == "__main__":
    main()
