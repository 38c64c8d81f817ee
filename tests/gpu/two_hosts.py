"""Two hosts on one machine with GPUs: network, mount, host name and process namespaces, one GPU
each, NICs with different names at the two ends of a cable. A Ray of two nodes runs in them, and
the fabric gate in that; then the gate once more without namespaces, over the GPUs' own link.

    python3 two_hosts.py NODE.PYZ OUT.JSON

Needs root, ray and torch, and the `ip` command.

OUT.JSON gets what each run reported. Standard library only: whatever Python has ray and torch is
used for the nodes too.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GCS = 6379
MTU = "9000"
FORMED_WITHIN = 90.0
GATE_WITHIN = 200.0

HOSTS: tuple[dict[str, str], ...] = (
    {"host": "gpua", "nic": "eth0", "ip": "10.9.0.1", "gpu": "0"},
    {"host": "gpub", "nic": "ens2", "ip": "10.9.0.2", "gpu": "1"},
)

_INSIDE = """\
read -r _
hostname "$1"
mount -t tmpfs none /tmp
mount -t tmpfs -o size=8g none /dev/shm
ip link set lo up
ip link set "$2" up mtu "$4"
ip addr add "$3/24" dev "$2"
shift 4
exec "$@"
"""
"""What the first process of a host does: it waits until its NIC has been plugged in."""


def node_env(host: Mapping[str, str]) -> dict[str, str]:
    """What clusterctl puts into a node's container."""
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": host["gpu"],
        "GLOO_SOCKET_IFNAME": host["nic"],
        "NCCL_SOCKET_IFNAME": f"={host['nic']}",
        "NCCL_SOCKET_FAMILY": "AF_INET",
        "NCCL_IB_DISABLE": "1",
        "NCCL_IB_HCA": "",
        "VLLM_HOST_IP": host["ip"],
        **ray_env(HOSTS[0]["ip"]),
    }


def ray_env(head_ip: str) -> dict[str, str]:
    return {
        "RAY_ADDRESS": f"{head_ip}:{GCS}",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_AUTH_MODE": "disabled",
    }


def ray_argv(host: str, ip: str, gpus: int, *, head: bool) -> list[str]:
    place = ["--head", f"--port={GCS}"] if head else [f"--address={HOSTS[0]['ip']}:{GCS}"]
    place += ["--include-dashboard=false"] if head else []
    return [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *place,
        f"--node-ip-address={ip}", f"--node-name={host}", f"--num-gpus={gpus}", "--num-cpus=4",
        "--object-store-memory=500000000", "--disable-usage-stats",
    ]  # fmt: skip


@contextmanager
def two_hosts(log: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Both hosts with a running Ray; ended, whatever happens."""
    running = [_boot(host, log) for host in HOSTS]
    try:
        _plug(running)
        for process in running:
            assert process.stdin
            process.stdin.write(b"go\n")
            process.stdin.flush()
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def _boot(host: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    head = host is HOSTS[0]
    inside = ["sh", "-ec", _INSIDE, "host", host["host"], host["nic"], host["ip"], MTU]
    return subprocess.Popen(
        ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc",
         *inside, *ray_argv(host["host"], host["ip"], 1, head=head)],
        env=node_env(host),
        stdin=subprocess.PIPE,
        stdout=log.with_suffix(f".{host['host']}").open("wb"),
        stderr=subprocess.STDOUT,
    )  # fmt: skip


def _plug(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """A cable between the two, its ends named as the hosts name their NICs."""
    own = Path("/proc/self/ns/net").readlink()
    for process in running:
        until(lambda pid=process.pid: Path(f"/proc/{pid}/ns/net").readlink() != own, 10, "a host")
    run("ip", "link", "add", "cable0", "type", "veth", "peer", "name", "cable1")
    for end, (host, process) in enumerate(zip(HOSTS, running, strict=True)):
        run("ip", "link", "set", f"cable{end}", "netns", str(process.pid), "name", host["nic"])


def inside(process: subprocess.Popen[bytes], argv: Sequence[str]) -> list[str]:
    """`argv` in that host: its first process is the child of `unshare`."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return ["nsenter", "-t", children[0], "--net", "--mount", "--uts", "--pid", *argv]


def gate(argv: Sequence[str], env: Mapping[str, str], nodes: Sequence[Any]) -> dict[str, Any]:
    """The report of `node.pyz fabric`, started by `argv`."""
    process = subprocess.Popen(
        argv, env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps({"nodes": nodes, "accelerator": "nvidia"}) + "\n")
    process.stdin.flush()
    signal.alarm(int(GATE_WITHIN))
    found: dict[str, Any] = {}
    for line in process.stdout:
        found = json.loads(line)
        sys.stderr.write(f"  {line[:160].rstrip()}\n")
    process.wait()
    signal.alarm(0)
    report = found.get("report")
    return dict(report) if report else {"failed": "no report", "status": process.returncode}


def over_the_cable(program: str, log: Path) -> dict[str, Any]:
    nodes = [{"host": h["host"], "node_ip": h["ip"], "gpus": 1} for h in HOSTS]
    with two_hosts(log) as running:
        head_env = node_env(HOSTS[0])
        count = "import ray; ray.init(logging_level='error'); " + _LIVING
        ask = inside(running[0], [sys.executable, "-c", count])
        until(lambda: _answers(ask, head_env, "2"), FORMED_WITHIN, "two nodes in Ray")
        argv = inside(running[0], [sys.executable, program, "fabric"])
        return {**gate(argv, head_env, nodes), "iperf3": plain_tcp(running)}


def plain_tcp(running: Sequence[subprocess.Popen[bytes]]) -> dict[str, float]:
    """Bytes/s that iperf3 gets through the cable, by the number of its connections; nothing where
    it is not installed."""
    found = {}
    for streams in (1, 4) if shutil.which("iperf3") else ():
        server = subprocess.Popen(
            inside(running[1], ["iperf3", "-s", "-1"]), stdout=subprocess.DEVNULL
        )
        ask = ["iperf3", "-c", HOSTS[1]["ip"], "-P", str(streams), "-t", "3", "-J"]
        time.sleep(0.5)
        done = subprocess.run(inside(running[0], ask), capture_output=True, text=True, timeout=30)
        server.kill()
        server.wait()
        if done.returncode == 0:
            bits = json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"]
            found[str(streams)] = bits / 8
    return found


_LIVING = "print('living', sum(n['Alive'] for n in ray.nodes()))"


def _answers(argv: Sequence[str], env: Mapping[str, str], wanted: str) -> bool:
    done = subprocess.run(argv, env=dict(env), capture_output=True, text=True, timeout=60)
    return f"living {wanted}" in done.stdout


def over_their_own_link(program: str, log: Path) -> dict[str, Any]:
    """One host with both GPUs: what NCCL makes of the link between them."""
    env = {**os.environ, **ray_env("127.0.0.1"), "VLLM_HOST_IP": "127.0.0.1"}
    env = {name: value for name, value in env.items() if name != "CUDA_VISIBLE_DEVICES"}
    env |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo", "NCCL_IB_DISABLE": "1"}
    run("ip", "link", "set", "lo", "up")
    ray = subprocess.Popen(
        ray_argv("both", "127.0.0.1", 2, head=True),
        env=env,
        stdout=log.with_suffix(".both").open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        ask = [sys.executable, "-c", "import ray; ray.init(logging_level='error'); " + _LIVING]
        until(lambda: _answers(ask, env, "1"), FORMED_WITHIN, "one node in Ray")
        node = {"host": "both", "node_ip": "127.0.0.1", "gpus": 2}
        return gate([sys.executable, program, "fabric"], env, [node])
    finally:
        ray.terminate()
        ray.wait(30)


def until(condition: Any, within: float, what: str) -> None:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within:g} s: {what}")
        time.sleep(0.2)


def run(*argv: str) -> None:
    subprocess.run(argv, check=True)


def main() -> None:
    program, out = sys.argv[1], Path(sys.argv[2])
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    found: dict[str, Any] = {}
    for name, work in (("cable", over_the_cable), ("link", over_their_own_link)):
        try:
            found[name] = work(program, out.with_suffix(""))
        except Exception as error:
            found[name] = {"failed": f"{type(error).__name__}: {error}"}
        out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
