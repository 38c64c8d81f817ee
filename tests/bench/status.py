"""`status` of many hosts beside bare Fabric threads that run one script on each, in one run.

    .venv/bin/python -m tests.bench.status [--hosts 100] [--runs 5]

One sshd, reached by as many addresses of 127.1.0.0/16 as there are hosts: every host is a
connection, a login and a probe of its own. Both clients run the same probe on the same hosts, turn
by turn, each in a process of its own that starts cold. Wall time has the hosts' own work in it,
which real hosts do for themselves; CPU is the client's alone. A minute; root and sshd.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.contract.transport.sshd import SSHD, make_key
from tests.fakes.ports import port_of, reserved

BARE = """\
import shlex, sys, threading
import fabric, yaml
from clusterctl.facts.gather import probe_script

document = yaml.safe_load(open(sys.argv[1]))
ssh, script = document["ssh"], probe_script().decode()
line = shlex.join(["sh", "-c", script, "probe", "MARK", "2"])
answers = {}

def ask(name, address):
    config = fabric.Config(lazy=True)
    with fabric.Connection(address, user=ssh["user"], port=ssh["port"], config=config,
                           connect_kwargs={"key_filename": ssh["identity_file"],
                                           "allow_agent": False, "look_for_keys": False}) as host:
        answers[name] = host.run(line, hide=True, in_stream=False, warn=True).stdout

threads = [threading.Thread(target=ask, args=(name, host["address"]))
           for name, host in document["hosts"].items()]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(answers) == len(threads) and all("MARK" in text for text in answers.values())
"""


@dataclass(frozen=True)
class Cost:
    """Seconds of one run."""

    wall: float
    cpu: float  # user and system, of the client's process


def measure(argv: Sequence[str], env: dict[str, str], expected: int) -> Cost:
    """Run a client to its end, which must be the exit status `expected`."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        words = said.read().decode()
        assert process.returncode == expected, f"{process.returncode}: {words[-2000:]}"
    return Cost(wall, usage.ru_utime + usage.ru_stime)


def write_inventory(folder: Path, port: int, hosts: int) -> Path:
    """An inventory of `hosts` addresses that all lead to the one sshd."""
    public = (folder / "host.pub").read_text().split()
    addresses = [f"127.1.{number // 250}.{number % 250 + 1}" for number in range(hosts)]
    known = folder / "known_hosts"
    known.write_text("".join(f"[{ip}]:{port} {public[0]} {public[1]}\n" for ip in addresses))
    document = {
        "cluster": "bench",
        "image": "vllm/vllm-openai:v0.33.0",
        "accelerator": "cpu",
        "ssh": {
            "user": "root", "port": port, "identity_file": str(folder / "client"),
            "known_hosts": str(known),
        },
        "hosts": {
            f"host{number}": {"address": ip, "gpus": 1,
                              **({} if number else {"role": "head"})}
            for number, ip in enumerate(addresses)
        },
    }  # fmt: skip
    file = folder / f"inventory-{hosts}.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def start_sshd(folder: Path, port: int) -> subprocess.Popen[bytes]:
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's privilege separation directory
    make_key(folder / "host")
    client = make_key(folder / "client")
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 0.0.0.0\nHostKey {folder}/host\nPidFile none\n"
        f"AuthorizedKeysFile {client}.pub\nStrictModes no\nUsePAM no\nUseDNS no\n"
        f"PermitRootLogin yes\nMaxStartups 1000\nSetEnv HOME={folder}/home\n"
    )
    (folder / "home").mkdir()
    argv = [SSHD, "-D", "-e", "-f", str(folder / "sshd_config")]
    return subprocess.Popen(argv, stderr=subprocess.DEVNULL)


def bench(folder: Path, hosts: int, runs: int) -> dict[str, list[Cost]]:
    """The costs of `status` and of the bare client, turn by turn; the first turn does not count."""
    env = {**os.environ, "HOME": str(folder / "home"), "XDG_STATE_HOME": str(folder / "state")}
    env.pop("SSH_AUTH_SOCK", None)
    kept = reserved("0.0.0.0")
    port = port_of(kept)
    sshd = start_sshd(folder, port)
    try:
        time.sleep(0.5)
        file = str(write_inventory(folder, port, hosts))
        clients = {
            # 8: degraded, since nothing runs there
            "status": ([sys.executable, "-m", "clusterctl", "status", "-i", file, "--json"], 8),
            "bare Fabric": ([sys.executable, "-c", BARE, file], 0),
        }
        found: dict[str, list[Cost]] = {name: [] for name in clients}
        for turn in range(runs + 1):
            for name, (argv, expected) in clients.items():
                cost = measure(argv, env, expected)
                if turn:
                    found[name].append(cost)
    finally:
        sshd.send_signal(signal.SIGTERM)
        sshd.wait()
        kept.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=100, help="default: 100")
    parser.add_argument("--runs", type=int, default=5, help="of each client; default: 5")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as folder:
        found = bench(Path(folder), asked.hosts, asked.runs)
    wall = {name: statistics.median(cost.wall for cost in costs) for name, costs in found.items()}
    cpu = {name: statistics.median(cost.cpu for cost in costs) for name, costs in found.items()}
    status, bare = found
    rows = [
        f"| {asked.hosts} hosts | wall | CPU | CPU a host |",
        "| --- | --- | --- | --- |",
        *(
            f"| {name} | {wall[name]:.2f} s | {cpu[name]:.2f} s "
            f"| {cpu[name] / asked.hosts * 1000:.0f} ms |"
            for name in found
        ),
        f"| ratio (bar: 1.3) | {wall[status] / wall[bare]:.2f} | {cpu[status] / cpu[bare]:.2f} | |",
        f"load of the machine at the end: {os.getloadavg()[0]:.1f}",
    ]
    print("\n".join(rows))  # noqa: T201


if __name__ == "__main__":
    main()
