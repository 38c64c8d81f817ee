"""Hosts that are down, drop, stall, or are reached through others."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterctl.errors import ConnectionFailed, Unreachable
from clusterctl.inventory.model import Host, Ssh
from clusterctl.transport.dialer import Dialer, Pulse
from clusterctl.transport.fanout import fan_out, values
from clusterctl.transport.ssh import SshTransport
from clusterctl.transport.target import target_of
from tests.contract.transport.conftest import StartSshd
from tests.contract.transport.sshd import Sshd, eventually, kill_tree, session_of

pytestmark = pytest.mark.sshd


def unreachable(host: Host, dialer: Dialer) -> Unreachable:
    with pytest.raises(Unreachable) as caught:
        SshTransport(host, dialer).connect()
    assert caught.value.host == host.name
    assert (caught.value.hint or "").startswith("ssh ")
    return caught.value


def test_nothing_listens(dialer: Dialer, closed_port: int) -> None:
    host = Host(name="gpu1", address="127.0.0.1", ssh=Ssh(port=closed_port, user="root"))

    error = unreachable(host, dialer)

    assert error.summary == f"127.0.0.1:{closed_port} refused the connection: no sshd listens on it"
    assert error.hint == f"ssh -p {closed_port} root@127.0.0.1 true"


def test_a_name_that_does_not_resolve(dialer: Dialer) -> None:
    host = Host(name="gpu1", address="no-such-host.invalid")

    assert unreachable(host, dialer).summary == (
        "the name 'no-such-host.invalid' cannot be resolved"
    )


def test_no_route(dialer: Dialer) -> None:
    """240.0.0.0/4 is reserved: Linux has no route to it."""
    host = Host(name="gpu1", address="255.255.255.254", ssh=Ssh(connect_timeout=1))

    assert "255.255.255.254:22" in unreachable(host, dialer).summary


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Accepts connections and says nothing, as a hung sshd does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_host_that_says_nothing_is_given_up_in_time(dialer: Dialer, silent_port: int) -> None:
    ssh = Ssh(port=silent_port, connect_timeout=1)
    started = time.monotonic()

    error = unreachable(Host(name="gpu1", address="127.0.0.1", ssh=ssh), dialer)

    assert error.summary == f"127.0.0.1:{silent_port} did not answer within 1 s"
    assert time.monotonic() - started < 10


def test_something_else_than_ssh(dialer: Dialer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(3):
                connection, _peer = listener.accept()
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.close()

        threading.Thread(target=serve, daemon=True).start()
        host = Host(name="gpu1", address="127.0.0.1", ssh=Ssh(port=listener.getsockname()[1]))

        error = unreachable(host, dialer)

    words = "closed the connection before SSH was set up: HTTP/1.1 400 Bad Request"
    assert error.summary.endswith(words)


def test_a_busy_sshd_is_tried_again(sshd: Sshd, dialer: Dialer) -> None:
    """What MaxStartups does: the first connections are closed before the banner."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            for _ in range(2):
                listener.accept()[0].close()
            client, _peer = listener.accept()
            server = socket.create_connection(("127.0.0.1", sshd.port))
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=_relay, args=(source, target), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        known = sshd.folder / "known_busy"
        known.write_text(sshd.known_line().replace(f":{sshd.port}", f":{port}"))
        transport = SshTransport(sshd.host(port=port, known_hosts=known), dialer)

        assert transport.run(["true"]).ok
        transport.close()


def _relay(source: socket.socket, target: socket.socket) -> None:
    with source, target, contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)


def test_a_connection_killed_mid_command(sshd: Sshd, dialer: Dialer, tmp_path: Path) -> None:
    transport = SshTransport(sshd.host(), dialer)
    session, running = session_of(transport), tmp_path / "running"

    def kill() -> None:
        assert eventually(running.exists)
        kill_tree(session)

    started = time.monotonic()
    killer = threading.Thread(target=kill)
    killer.start()

    with pytest.raises(ConnectionFailed) as caught:
        transport.run(["sh", "-c", 'touch "$1"; exec sleep 60', "sh", str(running)])

    assert caught.value.summary == "the connection was lost while `sh` ran"
    assert time.monotonic() - started < 50
    killer.join()
    assert transport.run(["echo", "back"]).stdout == "back\n", "the next use connects again"
    transport.close()


def test_a_connection_lost_between_commands_is_made_again(sshd: Sshd, dialer: Dialer) -> None:
    transport = SshTransport(sshd.host(), dialer)
    kill_tree(session_of(transport))

    assert transport.run(["echo", "back"]).stdout == "back\n"
    transport.close()


def test_a_login_shell_killed_by_the_host(ssh: SshTransport) -> None:
    """As the kernel does when memory runs out; the connection stays."""
    result = ssh.run(["sh", "-c", "kill -9 $(awk '/^PPid/ {print $2}' /proc/$PPID/status)"])

    assert result.status == 137
    assert ssh.run(["true"]).ok


def test_a_host_that_falls_silent_is_noticed(sshd: Sshd, dialer: Dialer) -> None:
    """A stopped session stands for a host without power: its packets are never answered."""
    quick = functools.partial(Pulse, interval=0.1, answer_limit=3)
    transport = SshTransport(sshd.host(), dialer, pulse=quick)
    session = session_of(transport)
    with transport.open_channel(["cat"]) as channel:
        os.kill(session, signal.SIGSTOP)
        try:
            channel.settimeout(30)
            assert channel.recv(1) == b""
            assert channel.wait(30) == -1
        finally:
            kill_tree(session)
    transport.close()


def test_an_idle_connection_stays(sshd: Sshd, dialer: Dialer) -> None:
    connection = dialer.connect(target_of(sshd.host()))
    beats: list[str] = []
    request = connection.transport.global_request

    def counted(kind: str, **options: bool) -> object:
        beats.append(kind)
        return request(kind, **options)

    connection.transport.global_request = counted
    pulse = Pulse(connection.transport, interval=0.02, answer_limit=30)

    assert eventually(lambda: len(beats) > 5)
    assert connection.transport.is_active()
    pulse.stop()
    connection.close()


def test_a_hardened_host_with_two_sessions(start_sshd: StartSshd, dialer: Dialer) -> None:
    transport = SshTransport(start_sshd({"MaxSessions": "2"}).host(), dialer)

    with ThreadPoolExecutor(6) as crew:
        results = list(
            crew.map(lambda n: transport.run(["sh", "-c", f"sleep 0.1; echo {n}"]), range(6))
        )

    assert [result.stdout for result in results] == [f"{n}\n" for n in range(6)]
    transport.close()


def test_no_more_than_four_commands_at_once(ssh: SshTransport, tmp_path: Path) -> None:
    script = 'mkdir "$1/$$"; ls "$1" | wc -l; sleep 0.2; rmdir "$1/$$"'

    def count(_: int) -> int:
        return int(ssh.run(["sh", "-c", script, "sh", str(tmp_path)]).stdout)

    with ThreadPoolExecutor(8) as crew:
        assert max(crew.map(count, range(8))) <= 4


def test_a_jump_host_is_connected_to_once(
    start_sshd: StartSshd, sshd: Sshd, dialer: Dialer
) -> None:
    jump = start_sshd()
    known = jump.folder / "both"
    known.write_text(jump.known_line() + sshd.known_line())
    way = f"root@127.0.0.1:{jump.port}"
    hosts = {f"gpu{n}": sshd.host(f"gpu{n}", known_hosts=known, proxy_jump=way) for n in range(8)}
    transports = {name: SshTransport(host, dialer) for name, host in hosts.items()}

    outcomes = fan_out(transports, lambda transport: transport.run(["echo", "here"]).stdout)

    assert values(outcomes) == dict.fromkeys(hosts, "here\n")
    log = (jump.folder / "sshd.log").read_text()
    assert log.count("Accepted publickey") == 1
    for transport in transports.values():
        transport.close()


def test_two_jumps_in_a_row(start_sshd: StartSshd, sshd: Sshd, tmp_path: Path) -> None:
    """Named in ~/.ssh/config, since the inventory takes one."""
    first, second = start_sshd(), start_sshd()
    known = first.folder / "all"
    known.write_text(first.known_line() + second.known_line() + sshd.known_line())
    way = f"root@127.0.0.1:{first.port},root@127.0.0.1:{second.port}"
    (tmp_path / "config").write_text(f"Host gpu\n  ProxyJump {way}\n  HostName 127.0.0.1\n")
    dialer = Dialer(ssh_config=tmp_path / "config")
    transport = SshTransport(sshd.host(address="gpu", known_hosts=known), dialer)

    assert transport.run(["echo", "here"]).stdout == "here\n"
    assert "Accepted publickey" in (first.folder / "sshd.log").read_text()
    assert "Accepted publickey" in (second.folder / "sshd.log").read_text()
    transport.close()
    dialer.close()


def test_a_jump_host_that_is_down(sshd: Sshd, dialer: Dialer, closed_port: int) -> None:
    host = sshd.host(proxy_jump=f"root@127.0.0.1:{closed_port}")

    with pytest.raises(Unreachable) as caught:
        SshTransport(host, dialer).connect()

    assert caught.value.host == "gpu1"
    assert caught.value.summary.startswith("jump host 127.0.0.1: ")
    assert "refused" in caught.value.summary


def test_a_host_behind_a_jump_that_is_down(sshd: Sshd, dialer: Dialer, closed_port: int) -> None:
    host = sshd.host(port=closed_port, proxy_jump=f"root@127.0.0.1:{sshd.port}")

    with pytest.raises(Unreachable, match=f"cannot reach 127.0.0.1:{closed_port}"):
        SshTransport(host, dialer).connect()
