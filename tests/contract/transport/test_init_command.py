"""`init` as a user runs it, against a real sshd: keys are asked about, nothing is overwritten."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.inventory.load import load
from clusterctl.transport.known_hosts import fingerprint
from tests.contract.transport.sshd import Sshd

pytestmark = pytest.mark.sshd


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Nobody's home: no known hosts, no configuration."""
    (tmp_path / ".ssh").mkdir(mode=0o700)
    return tmp_path


def command(sshd: Sshd, home: Path, *words: str) -> list[str]:
    known = str(home / "known_hosts")
    return [
        *(sys.executable, "-m", "clusterctl", "init", *words),
        *("--user", "root", "--identity", str(sshd.client_key), "--known-hosts", known),
    ]


def run(sshd: Sshd, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(sshd, home, *words),
        cwd=home,
        env={**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home / "state")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def shown_fingerprint(sshd: Sshd) -> str:
    return fingerprint(sshd.known_line().split()[2])


def test_unknown_keys_and_silent_hosts_are_told_together(
    sshd: Sshd, home: Path, closed_port: int
) -> None:
    here, closed = f"127.0.0.1:{sshd.port}", f"127.0.0.1:{closed_port}"
    done = run(sshd, home, here, closed)
    assert done.returncode == 4
    assert f"error: {here}: its host key is not in" in done.stderr
    assert shown_fingerprint(sshd) in done.stderr
    assert "--accept-new-host-keys" in done.stderr
    assert f"error: {closed}: {closed} refused the connection" in done.stderr
    assert not (home / "inventory.yaml").exists()
    assert not (home / "known_hosts").exists()


def test_the_file_loads_and_is_never_overwritten_unasked(sshd: Sshd, home: Path) -> None:
    words = (f"127.0.0.1:{sshd.port}", "--accept-new-host-keys")
    first = run(sshd, home, *words)
    assert first.returncode == 0, first.stderr
    assert "1 host" in first.stdout
    file = home / "inventory.yaml"
    (host,) = load(file).hosts
    assert (host.address, host.ssh.port, host.role) == ("127.0.0.1", sshd.port, "head")
    text = file.read_text()
    refused = run(sshd, home, *words)
    assert refused.returncode == 2
    assert "--force" in refused.stderr
    assert run(sshd, home, *words, "--force").returncode == 0
    assert file.read_text() == text
    assert run(sshd, home, *words, "-o", "-").stdout == text
    assert [path.name for path in home.glob(".init-*")] == []


def test_an_alias_of_the_ssh_config_is_a_host(sshd: Sshd, home: Path) -> None:
    (home / ".ssh" / "config").write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {sshd.port}\n  UserKnownHostsFile {home}/own\n"
    )
    (home / "own").write_text(sshd.known_line())
    (home / "known_hosts").write_text(sshd.known_line())
    done = run(sshd, home, "box")
    assert done.returncode == 0, done.stderr
    assert load(home / "inventory.yaml").hosts[0].address == "box"


@pytest.mark.parametrize(("typed", "status"), [(b"y\n", 0), (b"n\n", 4)])
def test_on_a_terminal_the_keys_are_shown_and_asked_about(
    sshd: Sshd, home: Path, typed: bytes, status: int
) -> None:
    ours, theirs = os.openpty()
    with subprocess.Popen(
        command(sshd, home, f"127.0.0.1:{sshd.port}"),
        cwd=home,
        env={
            **os.environ,
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "TERM": "dumb",
        },
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        seen = ""
        while "[y/N]" not in seen:
            assert select.select([ours], [], [], 60)[0], f"no question came: {seen!r}"
            seen += os.read(ours, 4096).decode(errors="replace")
        os.write(ours, typed)
        assert process.wait(timeout=60) == status
    os.close(ours)
    os.close(theirs)
    assert shown_fingerprint(sshd) in seen
    assert (home / "known_hosts").exists() == (status == 0)
    assert (home / "inventory.yaml").exists() == (status == 0)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("10.0.0.300",), "is not a valid host"),
        (("gpu1", "--image", "No Image"), "--image: must be an image name"),
        (("gpu1", "--models", "data"), "--models: must be an absolute path"),
        (("gpu1", "--cluster", "My Cluster"), "--cluster: must be lower case"),
        (("gpu1", "--subnet", "10.0.0.1/24"), "did you mean 10.0.0.0/24?"),
        (("gpu1", "--subnet", "eth0"), "fix: without --subnet, init chooses"),
        (("gpu1", "-o", "nowhere/inventory.yaml"), "is in a directory that does not exist"),
        (("gpu1", "-o", "/proc/inventory.yaml"), "cannot be written: No such file"),
    ],
)
def test_what_no_inventory_may_hold_is_told_before_any_host_is_asked(
    sshd: Sshd, home: Path, words: tuple[str, ...], text: str
) -> None:
    done = run(sshd, home, *words)
    assert done.returncode == 2, done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr
