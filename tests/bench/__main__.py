"""What images and weights cost on their way to hosts, in one run, as a Markdown table.

    sudo .venv/bin/python -m tests.bench

It makes the lab with four hosts and links of 100 Mbit/s both ways, this machine's own included,
and leaves the lab up. About 15 minutes; a machine that is busy otherwise makes the times worthless
(not the bytes). Root on Debian or Ubuntu.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from clusterctl.errors import ClusterctlError
from clusterctl.lab import faults, lifecycle
from clusterctl.lab.network import parse_rate
from clusterctl.reporting.error_view import error_lines
from tests.bench import weights
from tests.bench.images import ImageBench, Images, Run, link_down, lost, make_images
from tests.bench.source_link import limited
from tests.contract.containers.dockerd import running

GB = 1e9
NEEDED = ("docker", "dockerd", "gzip", "ip", "ssh", "tc")
Row = tuple[str, str, str]
"""Figure, bar, measured."""


class Table:
    """Rows in the order in which they were measured."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._began = time.monotonic()

    def add(self, figure: str, bar: str, measured: str) -> None:
        self._rows.append((figure, bar, measured))
        say(f"{figure}: {measured} (bar: {bar})")

    def text(self) -> str:
        head = ["| figure | bar | measured |", "| --- | --- | --- |"]
        return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in self._rows)])


def say(text: str) -> None:
    print(f"  · {text}", file=sys.stderr, flush=True)  # noqa: T201


class Measurement:
    """All runs, one after the other. `rate` in bits a second."""

    def __init__(self, bench: ImageBench, images: Images, rate: int, table: Table) -> None:
        self._bench, self._images, self._table = bench, images, table
        self._limit = images.size * 8 / rate
        self._count = len(bench.hosts)

    def all(self) -> None:
        clean = self._pushes()
        self._again(clean)
        self._faults(clean)
        self._by_hand(clean)

    def _pushes(self) -> Run:
        """To one host, to two, and so on; the last one."""
        bench, count = self._bench, self._count
        runs = [self._fresh(number) for number in range(1, count + 1)]
        shares = ", ".join(f"{run.sent / self._images.size:.3f}" for run in runs)
        self._table.add(
            f"bytes on the source's link, N = 1..{count}", "1.02 x the packed image", shares
        )
        for number, bar in ((1, "1.15"), (count, "1.30")):
            wall = runs[number - 1].wall
            self._table.add(
                f"wall / (bytes / rate), N = {number}",
                bar,
                f"{wall / self._limit:.2f} ({wall:.1f} s)",
            )
        for host in bench.hosts:
            assert bench.has_image(host), f"{host} has no {self._images}"
        return runs[-1]

    def _again(self, clean: Run) -> None:
        nothing = self._bench.push(self._images.first, self._count)
        self._table.add(
            "second push, nothing changed", "2 s, no bytes", f"{nothing.wall:.1f} s, "
            f"{nothing.sent / 1000:.0f} kB of SSH",
        )  # fmt: skip
        changed = self._bench.push(self._images.changed, self._count)
        self._table.add(
            "push after a change in the top layer",
            "3 s, 1 % of the bytes",
            f"{changed.wall:.1f} s, {100 * changed.sent / self._images.size:.2f} %",
        )
        cpu = (clean.cpu - changed.cpu) / ((clean.sent - changed.sent) / GB)
        alone = self._bench.through_ssh(self._images.first)
        assert alone.status == 0, "OpenSSH did not get through"
        self._table.add(
            "CPU of the source, per GB sent",
            "1 s",
            f"{cpu:.1f} s, besides {changed.cpu:.1f} s to start and end; "
            f"OpenSSH's client alone: {alone.cpu / (alone.sent / GB):.1f} s",
        )

    def _faults(self, clean: Run) -> None:
        second, first = self._bench.hosts[1], self._bench.hosts[0]
        middle = int(self._images.size * 0.4)
        cut = self._fresh(self._count, partial(link_down, second, middle))
        self._table.add(
            f"link of {second} down for 6 s: all finish",
            "2 % more source bytes",
            f"{'all' if cut.status == 0 else 'not all'}, {_more(cut, clean)}, {cut.wall:.1f} s",
        )
        gone = self._fresh(self._count, partial(lost, first, middle))
        rest = [host for host in self._bench.hosts[1:] if self._bench.has_image(host)]
        self._table.add(
            f"{first} lost for good: the others finish",
            "15 % more source bytes",
            f"{len(rest)} of {self._count - 1}, {_more(gone, clean)}, {gone.wall:.1f} s",
        )
        faults.power_on(first)
        self._bench.start_engines()

    def _by_hand(self, clean: Run) -> None:
        self._bench.forget()
        with running("operator") as engine:
            with self._images.plain.open("rb") as archive:
                subprocess.run([*engine.argv, "load"], stdin=archive, check=True, stdout=sys.stderr)
            run = self._bench.by_hand(engine)
        assert run.status == 0, "by hand it did not work"
        share = run.sent / self._images.size
        self._table.add(
            "against save, gzip, ssh, load one after another",
            "4 times faster",
            f"{run.wall / clean.wall:.1f} times ({run.wall:.0f} s; {share:.1f} x the bytes)",
        )

    def _fresh(self, hosts: int, fault: Callable[[], None] | None = None) -> Run:
        self._bench.forget()
        run = self._bench.push(self._images.first, hosts, fault=fault)
        say(f"{hosts} hosts: {run.wall:.1f} s, {run.sent / self._images.size:.3f} of the bytes")
        return run


def _more(run: Run, clean: Run) -> str:
    return f"{100 * (run.sent / clean.sent - 1):+.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", default="100mbit", help="of all links; default: 100mbit")
    parser.add_argument("--hosts", type=int, default=4, help="default: 4")
    asked = parser.parse_args()
    lacking = [program for program in NEEDED if shutil.which(program) is None]
    if lacking or os.geteuid() != 0:
        needed = [*(["root"] if os.geteuid() != 0 else []), *lacking]
        raise SystemExit(
            f"tests.bench needs {', '.join(needed)}: scripts/setup.sh --tests installs all programs"
        )
    try:
        measure(asked.rate, asked.hosts)
    except ClusterctlError as error:
        raise SystemExit("\n".join(error_lines(error))) from None


def measure(link: str, hosts: int) -> None:
    """Run everything and print the table. Raises ClusterctlError where no lab can be made."""
    rate, table = parse_rate(link), Table()
    work = Path(tempfile.mkdtemp(prefix="clusterctl-bench-", dir="/var/tmp"))
    try:
        images = make_images(work / "images")
        inventory = lifecycle.up(hosts, link_rate=link, say=say).inventory
        bench = ImageBench(inventory, work, say)
        bench.install_engines()
        say(f"load of the machine before: {os.getloadavg()[0]:.1f}")
        with limited(rate):
            Measurement(bench, images, rate, table).all()
            for row in weights.rows(weights.measure_weights(link, inventory)):
                table.add(*row)
    finally:
        shutil.rmtree(work)
    print(table.text())  # noqa: T201


if __name__ == "__main__":
    main()
