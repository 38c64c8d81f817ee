"""A host must be who it claims to be: known_hosts against a real sshd."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clusterctl.errors import HostKeyProblem
from clusterctl.inventory.model import Host
from clusterctl.transport.dialer import Dialer
from clusterctl.transport.known_hosts import UnknownHostKey
from clusterctl.transport.ssh import SshTransport
from tests.contract.transport.sshd import Sshd, has_ipv6, make_key

pytestmark = pytest.mark.sshd


@pytest.fixture
def known(tmp_path: Path) -> Path:
    return tmp_path / "known_hosts"


def run_true(host: Host, dialer: Dialer) -> bool:
    transport = SshTransport(host, dialer)
    try:
        return transport.run(["true"]).ok
    finally:
        transport.close()


def refusal(host: Host, dialer: Dialer) -> HostKeyProblem:
    with pytest.raises(HostKeyProblem) as caught:
        run_true(host, dialer)
    assert caught.value.host == host.name
    return caught.value


def test_an_unknown_key_is_refused(sshd: Sshd, dialer: Dialer, known: Path) -> None:
    error = refusal(sshd.host(known_hosts=known), dialer)

    assert error.summary == f"its host key is not in {known}"
    assert f"ssh -p {sshd.port}" in (error.hint or "")
    assert "accept_new" in (error.hint or "")
    assert "SHA256:" in (error.hint or "")
    assert not known.exists()


def test_the_hint_is_a_command_that_works(sshd: Sshd, dialer: Dialer, known: Path) -> None:
    """Pasted with accept-new, OpenSSH writes the line that clusterctl then accepts."""
    host = sshd.host(known_hosts=known)
    command = (refusal(host, dialer).hint or "").split("once: ")[1].split(";")[0]
    accepting = command.replace("ssh ", "ssh -oStrictHostKeyChecking=accept-new -F none ", 1)

    subprocess.run(["sh", "-c", accepting], check=True, capture_output=True, timeout=60)

    assert run_true(host, dialer)


def test_accept_new_adds_the_key(sshd: Sshd, known: Path, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("HashKnownHosts no\n")  # Debian's default is yes
    dialer = Dialer(ssh_config=tmp_path / "config")
    known.write_text("# no newline at the end of this file")

    assert run_true(sshd.host(known_hosts=known, accept_new=True), dialer)

    added = known.read_text().splitlines()[1]
    assert added == sshd.known_line().strip()
    assert run_true(sshd.host(known_hosts=known), dialer), "and it is known from then on"


def test_accept_new_hashes_names_where_the_user_wants_it(
    sshd: Sshd, known: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text("HashKnownHosts yes\n")
    dialer = Dialer(ssh_config=config)

    assert run_true(sshd.host(known_hosts=known, accept_new=True), dialer)

    assert known.read_text().startswith("|1|")
    assert run_true(sshd.host(known_hosts=known), dialer)


def test_names_hashed_by_openssh_are_known(sshd: Sshd, dialer: Dialer, known: Path) -> None:
    known.write_text(sshd.known_line())
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", known], check=True, capture_output=True)
    assert known.read_text().startswith("|1|")

    assert run_true(sshd.host(known_hosts=known), dialer)


@pytest.mark.parametrize("accept_new", [False, True])
def test_a_changed_key_is_always_refused(
    sshd: Sshd, dialer: Dialer, known: Path, tmp_path: Path, accept_new: bool
) -> None:
    other = Path(f"{make_key(tmp_path / 'other')}.pub").read_text()
    text = f"# first line\n[127.0.0.1]:{sshd.port} {other}"
    known.write_text(text)

    error = refusal(sshd.host(known_hosts=known, accept_new=accept_new), dialer)

    assert error.summary == f"its host key differs from the known one: {known}:2"
    assert f"ssh-keygen -f {known} -R '[127.0.0.1]:{sshd.port}'" in (error.hint or "")
    assert known.read_text() == text


def test_a_revoked_key_is_refused(sshd: Sshd, dialer: Dialer, known: Path) -> None:
    known.write_text(f"{sshd.known_line()}@revoked {sshd.known_line()}")

    assert "is revoked" in refusal(sshd.host(known_hosts=known), dialer).summary


def test_the_host_is_asked_for_the_type_of_key_that_is_known(
    sshd: Sshd, dialer: Dialer, known: Path
) -> None:
    """By itself the sshd would show ed25519, which this file does not have."""
    known.write_text(sshd.known_line(key_type="ecdsa"))

    assert run_true(sshd.host(known_hosts=known), dialer)


def test_a_line_without_port_covers_other_ports(sshd: Sshd, dialer: Dialer, known: Path) -> None:
    known.write_text(sshd.known_line().replace(f"[127.0.0.1]:{sshd.port}", "127.0.0.1"))

    assert run_true(sshd.host(known_hosts=known), dialer)


def test_broken_lines_do_not_hide_good_ones(sshd: Sshd, dialer: Dialer, known: Path) -> None:
    known.write_text(f"nonsense\n[127.0.0.1]:{sshd.port} ssh-rsa !!!\n{sshd.known_line()}")

    assert run_true(sshd.host(known_hosts=known), dialer)


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_ipv6(sshd: Sshd, dialer: Dialer, known: Path) -> None:
    known.write_text(sshd.known_line("::1"))

    assert run_true(sshd.host(address="::1", known_hosts=known), dialer)


def test_the_offered_key_can_be_asked_about_and_then_only_it_is_accepted(
    sshd: Sshd, dialer: Dialer, known: Path
) -> None:
    host = sshd.host(known_hosts=known)
    error = refusal(host, dialer)
    assert isinstance(error, UnknownHostKey)
    assert error.offered is not None
    assert str(error.offered) in (error.hint or "")
    error.offered.remember()
    assert run_true(host, dialer)
    assert len(known.read_text().splitlines()) == 1
