"""Two hosts on one machine with GPUs: network, mount, host name and process namespaces, half of
the GPUs each, NICs with different names at the two ends of a cable. A Ray of two nodes runs in
them, and the fabric gate in that: over the cable, over the cable limited to 10 Gbit/s, and with a
host that is told the wrong interface; then once more without namespaces, over the GPUs' own link.

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

LIMIT = "10gbit"

HOSTS: tuple[dict[str, str], ...] = (
    {"host": "gpua", "nic": "eth0", "ip": "10.9.0.1"},
    {"host": "gpub", "nic": "ens2", "ip": "10.9.0.2"},
)


def gpus_of(host: Mapping[str, str]) -> list[str]:
    """Its half of the machine's GPUs, by number."""
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    half = max(1, listed.stdout.count("GPU ") // 2)
    first = 0 if host is HOSTS[0] else half
    return [str(number) for number in range(first, first + half)]


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


def node_env(host: Mapping[str, str], **wrong: str) -> dict[str, str]:
    """What clusterctl puts into a node's container, but for `wrong`."""
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": ",".join(gpus_of(host)),
        "GLOO_SOCKET_IFNAME": host["nic"],
        "NCCL_SOCKET_IFNAME": f"={host['nic']}",
        "NCCL_SOCKET_FAMILY": "AF_INET",
        "NCCL_IB_DISABLE": "1",
        "NCCL_IB_HCA": "",
        "VLLM_HOST_IP": host["ip"],
        **ray_env(HOSTS[0]["ip"]),
        **wrong,
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
def two_hosts(log: Path, **wrong: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Both hosts with a Ray that holds them; ended, whatever happens. `wrong` is the second's."""
    running = [_boot(HOSTS[0], log), _boot(HOSTS[1], log, **wrong)]
    try:
        _plug(running)
        for process in running:
            assert process.stdin
            process.stdin.write(b"go\n")
            process.stdin.flush()
        ask = inside(running[0], [sys.executable, "-c", _COUNT])
        until(lambda: _answers(ask, node_env(HOSTS[0]), "2"), FORMED_WITHIN, "two nodes in Ray")
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def _boot(host: Mapping[str, str], log: Path, **wrong: str) -> subprocess.Popen[bytes]:
    head = host is HOSTS[0]
    inside = ["sh", "-ec", _INSIDE, "host", host["host"], host["nic"], host["ip"], MTU]
    return subprocess.Popen(
        ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc",
         *inside, *ray_argv(host["host"], host["ip"], len(gpus_of(host)), head=head)],
        env=node_env(host, **wrong),
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
    spec = {"nodes": nodes, "gpu_backend": {"device": "cuda", "collectives": "nccl"}}
    process.stdin.write(json.dumps(spec) + "\n")
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
    """As it is, and limited."""
    with two_hosts(log) as running:
        found = {"cable": {**_gate_in(running, program), "iperf3": plain_tcp(running)}}
        for host, process in zip(HOSTS, running, strict=True):
            limit = ["tbf", "rate", LIMIT, "burst", "4mb", "latency", "20ms"]
            run(*inside(process, ["tc", "qdisc", "add", "dev", host["nic"], "root", *limit]))
        found["limited"] = {**_gate_in(running, program), "iperf3": plain_tcp(running)}
    return found


def misled(program: str, log: Path) -> dict[str, Any]:
    """The second host's NCCL is told an interface that the first one cannot reach."""
    with two_hosts(log, NCCL_SOCKET_IFNAME="=lo") as running:
        return {"misled": _gate_in(running, program)}


def _gate_in(running: Sequence[subprocess.Popen[bytes]], program: str) -> dict[str, Any]:
    nodes = [{"host": h["host"], "node_ip": h["ip"], "gpus": len(gpus_of(h))} for h in HOSTS]
    argv = inside(running[0], [sys.executable, program, "fabric"])
    return gate(argv, node_env(HOSTS[0]), nodes)


def plain_tcp(running: Sequence[subprocess.Popen[bytes]]) -> dict[str, float]:
    """Bytes/s that iperf3 gets through the cable, by the number of its connections; nothing where
    it is not installed."""
    return {str(n): _streams(running, n) for n in ((1, 4) if shutil.which("iperf3") else ())}


def _streams(running: Sequence[subprocess.Popen[bytes]], count: int) -> float:
    serve, ask = ["iperf3", "-s", "-1"], ["iperf3", "-c", HOSTS[1]["ip"], "-P", str(count)]
    server = subprocess.Popen(inside(running[1], serve), stdout=subprocess.DEVNULL)
    answers: list[str] = []
    argv = inside(running[0], [*ask, "-t", "3", "-J"])
    until(lambda: _said(argv, answers), 30, "an answer of iperf3")
    server.kill()
    server.wait()
    return float(json.loads(answers[-1])["end"]["sum_received"]["bits_per_second"]) / 8


def _said(argv: Sequence[str], answers: list[str]) -> bool:
    """Whether it measured; what it printed is kept. It is refused until its server listens."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    answers.append(done.stdout)
    return "sum_received" in done.stdout


_COUNT = (
    "import ray; ray.init(logging_level='error'); "
    "print('living', sum(n['Alive'] for n in ray.nodes()))"
)


def _answers(argv: Sequence[str], env: Mapping[str, str], wanted: str) -> bool:
    done = subprocess.run(argv, env=dict(env), capture_output=True, text=True, timeout=60)
    return f"living {wanted}" in done.stdout


def over_their_own_link(program: str, log: Path) -> dict[str, Any]:
    """One host with all GPUs: what NCCL makes of the link between them."""
    env = {**os.environ, **ray_env("127.0.0.1"), "VLLM_HOST_IP": "127.0.0.1"}
    env = {name: value for name, value in env.items() if name != "CUDA_VISIBLE_DEVICES"}
    env |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo", "NCCL_IB_DISABLE": "1"}
    run("ip", "link", "set", "lo", "up")
    gpus = sum(len(gpus_of(host)) for host in HOSTS)
    ray = subprocess.Popen(
        ray_argv("both", "127.0.0.1", gpus, head=True),
        env=env,
        stdout=log.with_suffix(".both").open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        ask = [sys.executable, "-c", _COUNT]
        until(lambda: _answers(ask, env, "1"), FORMED_WITHIN, "one node in Ray")
        node = {"host": "both", "node_ip": "127.0.0.1", "gpus": gpus}
        return {"link": gate([sys.executable, program, "fabric"], env, [node])}
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
    for work in (over_the_cable, misled, over_their_own_link):
        try:
            found.update(work(program, out.with_suffix("")))
        except Exception as error:
            found[work.__name__] = {"failed": f"{type(error).__name__}: {error}"}
        out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
