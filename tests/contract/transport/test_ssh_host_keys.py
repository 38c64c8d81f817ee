"""A host must be who it claims to be: known_hosts against a real sshd."""

from __future__ import annotations

import base64
import contextlib
import subprocess
import time
from pathlib import Path

import paramiko
import pytest

from clusterctl.errors import HostKeyProblem
from clusterctl.inventory.model import Host
from clusterctl.transport.dialer import Dialer
from clusterctl.transport.host_key import check_certificate
from clusterctl.transport.known_hosts import UnknownHostKey
from clusterctl.transport.ssh import SshTransport
from tests.contract.transport.conftest import StartSshd
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


class Authority:
    """A CA, and an sshd whose host key it signed. `known`: a known_hosts file with the CA."""

    def __init__(self, start_sshd: StartSshd, folder: Path, *options: str) -> None:
        self.ca = make_key(folder / "ca")
        key = make_key(folder / "own")
        sign = [
            "ssh-keygen",
            "-q",
            "-s",
            str(self.ca),
            "-h",
            "-I",
            "gpu1's key",
            *options,
            f"{key}.pub",
        ]
        subprocess.run([*sign, f"{key}.pub"], check=True, capture_output=True)
        certificate = f"{key}-cert.pub"
        self.sshd = start_sshd({"HostKey": str(key), "HostCertificate": certificate})
        self.known = folder / "known_hosts"
        self.trust()

    def trust(self, marker: str = "@cert-authority", names: str = "127.0.0.*") -> None:
        with self.known.open("a") as file:
            file.write(f"{marker} {names} {Path(f'{self.ca}.pub').read_text()}")

    @property
    def host(self) -> Host:
        return self.sshd.host(known_hosts=self.known)


@pytest.mark.parametrize("principals", ["127.0.0.1", "gpu9,127.0.0.?"])
def test_a_certificate_of_a_known_ca_is_accepted(
    start_sshd: StartSshd, dialer: Dialer, tmp_path: Path, principals: str
) -> None:
    assert run_true(Authority(start_sshd, tmp_path, "-n", principals).host, dialer)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("-n", "gpu9"), "it is for gpu9, not for 127.0.0.1"),
        ((), "it is for no host, not for 127.0.0.1"),
        (("-n", "127.0.0.1", "-V", "20200101:20200102"), "it expired on 2020-01-0"),
        (("-n", "127.0.0.1", "-V", "20990101:20990102"), "it is valid only from 20"),
    ],
)
def test_a_certificate_that_does_not_prove_the_host_is_refused(
    start_sshd: StartSshd,
    dialer: Dialer,
    tmp_path: Path,
    options: tuple[str, ...],
    problem: str,
) -> None:
    error = refusal(Authority(start_sshd, tmp_path, *options).host, dialer)
    assert error.summary.startswith(f"its host certificate is not valid: {problem}")
    assert "gpu1's key" in (error.detail or "")
    assert "ssh-keygen -s CA -h" in (error.hint or "")


def test_a_certificate_of_another_ca_leaves_the_key_unknown(
    start_sshd: StartSshd, dialer: Dialer, tmp_path: Path
) -> None:
    signed = Authority(start_sshd, tmp_path, "-n", "127.0.0.1")
    other = Path(f"{make_key(tmp_path / 'other')}.pub").read_text()
    signed.known.write_text(f"@cert-authority * {other}")
    assert isinstance(refusal(signed.host, dialer), UnknownHostKey)


def test_a_ca_for_other_names_does_not_count(
    start_sshd: StartSshd, dialer: Dialer, tmp_path: Path
) -> None:
    signed = Authority(start_sshd, tmp_path, "-n", "127.0.0.1")
    signed.known.write_text("")
    signed.trust(names="*.example")
    assert isinstance(refusal(signed.host, dialer), UnknownHostKey)


def test_a_revoked_ca_is_refused(start_sshd: StartSshd, dialer: Dialer, tmp_path: Path) -> None:
    signed = Authority(start_sshd, tmp_path, "-n", "127.0.0.1")
    signed.trust("@revoked")
    assert "the CA of its host certificate is revoked" in refusal(signed.host, dialer).summary


def test_a_certificate_whose_signature_was_changed_proves_nothing(tmp_path: Path) -> None:
    ca, key = make_key(tmp_path / "ca"), make_key(tmp_path / "own")
    sign = ["ssh-keygen", "-q", "-s", str(ca), "-h", "-I", "x", "-n", "gpu1", f"{key}.pub"]
    subprocess.run(sign, check=True, capture_output=True)
    blob = base64.b64decode(Path(f"{key}-cert.pub").read_text().split()[1])
    good = check_certificate(blob, "gpu1", time.time())
    assert good.problem is None
    signature = len(blob) - 83  # with its length, its type and its own length
    for at in (*range(signature), *range(len(blob) - 64, len(blob))):
        changed = bytearray(blob)
        changed[at] ^= 1
        with contextlib.suppress(ValueError, paramiko.SSHException):
            found = check_certificate(bytes(changed), "gpu1", time.time())
            assert found.problem or found.authority != good.authority, f"byte {at}"
    for size in range(len(blob)):
        with contextlib.suppress(ValueError, paramiko.SSHException):
            assert check_certificate(blob[:size], "gpu1", time.time()).problem, f"{size} bytes"
