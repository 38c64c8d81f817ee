"""From a host of the inventory to a target, a command line, a transport, an answer."""

from __future__ import annotations

import base64
import shlex
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paramiko.auth_strategy import AuthResult

from clusterctl.inventory.model import Host, Ssh
from clusterctl.transport.authentication import Identities, KeyRing, LoginFailed, SshLogin
from clusterctl.transport.command import NotStarted
from clusterctl.transport.connect import Connections
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.dialer import explain
from clusterctl.transport.local import LocalTransport
from clusterctl.transport.ssh import SshTransport
from clusterctl.transport.target import jump_target, target_of

NOBODY = SshLogin("ann", "gpu1", keys=KeyRing(Credentials()), identities=Identities())


@pytest.fixture(scope="module")
def key() -> bytes:
    """A private key as ssh-keygen writes it, without the armor."""
    text = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
    )
    return base64.b64decode(b"".join(text.splitlines()[1:-1]))


@given(data=st.data())
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_key_is_an_error_of_its_file(
    key: bytes, tmp_path: Path, data: st.DataObject
) -> None:
    """Byte 50 on is what is not the name of a cipher or of a key derivation."""
    at = data.draw(st.integers(50, len(key) - 1))
    damaged = key[:at] + data.draw(st.binary(max_size=8)) + key[at + 1 :]
    file = tmp_path / "id_ed25519"
    armor = b"-----%s OPENSSH PRIVATE KEY-----\n"
    file.write_bytes(armor % b"BEGIN" + base64.encodebytes(damaged) + armor % b"END")
    with suppress(ValueError):
        KeyRing(Credentials()).key(file)


def test_openssh_gets_the_same_options() -> None:
    ssh = Ssh(
        user="ada", port=2222, identity_file=Path("/k/a key"), proxy_jump="jump", accept_new=True
    )
    target = target_of(Host(name="gpu1", address="10.0.0.1", ssh=ssh))

    assert target.argv("true") == [
        "ssh", "-p", "2222", "-i", "/k/a key", "-J", "jump",
        "-o", "StrictHostKeyChecking=accept-new", "ada@10.0.0.1", "true",
    ]  # fmt: skip
    assert shlex.split(target.command_line("true")) == target.argv("true")


@pytest.mark.parametrize(
    ("ssh", "line"),
    [
        (Ssh(user="ann"), "ssh-copy-id ann@10.0.0.1"),
        (Ssh(user="ann", port=22), "ssh-copy-id ann@10.0.0.1"),
        (Ssh(port=2222), "ssh-copy-id -p 2222 10.0.0.1"),
        (
            Ssh(user="ann", identity_file=Path("/k/a key"), proxy_jump="jump"),
            "ssh-copy-id -i '/k/a key' -o ProxyJump=jump ann@10.0.0.1",
        ),
    ],
)
def test_a_host_without_the_key_gets_it_by_ssh_copy_id(ssh: Ssh, line: str) -> None:
    target = target_of(Host(name="gpu1", address="10.0.0.1", ssh=ssh))
    rejected = LoginFailed(AuthResult(NOBODY), ["publickey", "password"], [])

    found = explain(rejected, target, "10.0.0.1:22")

    assert found.hint == (
        f"{line} copies your key to it; then this works: {target.command_line('true')}"
    )


def test_ssh_copy_id_is_not_named_where_no_password_is_taken() -> None:
    target = target_of(Host(name="gpu1", address="10.0.0.1", ssh=Ssh(user="ann")))
    rejected = LoginFailed(AuthResult(NOBODY), ["publickey"], [])

    found = explain(rejected, target, "10.0.0.1:22")

    assert found.hint == "check that this works: ssh ann@10.0.0.1 true"


def test_what_the_inventory_leaves_open_is_left_to_ssh() -> None:
    assert target_of(Host(name="gpu1", address="10.0.0.1")).argv() == ["ssh", "10.0.0.1"]


@pytest.mark.parametrize(
    ("jump", "user", "address", "port"),
    [
        ("bastion", None, "bastion", None),
        ("ada@bastion:2222", "ada", "bastion", 2222),
        ("ada@[fe80::1]:2222", "ada", "fe80::1", 2222),
        ("[fe80::1]", None, "fe80::1", None),
        ("fe80::1", None, "fe80::1", None),
    ],
)
def test_jump_hosts(jump: str, user: str | None, address: str, port: int | None) -> None:
    behind = Ssh(user="root", port=22, identity_file=Path("/k"), connect_timeout=3)

    target = jump_target(jump, behind, through="first")

    assert target.address == address
    assert target.ssh == Ssh(
        user=user, port=port, identity_file=Path("/k"), proxy_jump="first", connect_timeout=3
    )


def test_localhost_is_this_machine() -> None:
    with Connections() as connections:
        assert isinstance(connections.to(Host(name="a", address="localhost")), LocalTransport)
        assert isinstance(connections.to(Host(name="b", address="127.0.0.1")), SshTransport)


def test_a_host_has_one_transport() -> None:
    host = Host(name="a", address="10.0.0.1")
    with Connections() as connections, ThreadPoolExecutor(8) as crew:
        found = set(crew.map(lambda _: id(connections.to(host)), range(32)))

    assert len(found) == 1


def test_a_hurried_command_wins_over_the_inventory() -> None:
    host = Host(name="a", address="10.0.0.1", ssh=Ssh(connect_timeout=60, user="ada"))
    with Connections(connect_timeout=2) as connections:
        ssh = connections.to(host).host.ssh

    assert (ssh.connect_timeout, ssh.user) == (2, "ada")


def test_fabric_is_not_imported_before_a_host_needs_it() -> None:
    code = (
        "import sys; from clusterctl.transport import connect, fanout, lock, tcp, local; "
        "sys.exit(sum(name in sys.modules for name in ('fabric', 'paramiko')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_threads_that_need_the_same_answer_wait_for_one_question() -> None:
    asked: list[str] = []
    all_here = threading.Barrier(8, timeout=60)

    def ask(question: str) -> str:
        asked.append(question)
        return "secret"

    credentials = Credentials(environment={}, ask=ask)

    def need(_: int) -> str | None:
        all_here.wait()
        return credentials.password("ada", "gpu1")

    with ThreadPoolExecutor(8) as crew:
        assert set(crew.map(need, range(8))) == {"secret"}
    assert len(asked) == 1


def test_a_person_who_gives_no_answer_is_not_asked_again() -> None:
    asked: list[str] = []
    credentials = Credentials(environment={}, ask=lambda question: asked.append(question))

    assert credentials.passphrase(Path("/k")) is None
    assert credentials.passphrase(Path("/k")) is None
    assert asked == ["Passphrase of /k: "]


def test_the_environment_answers_first() -> None:
    environment = {
        "CLUSTERCTL_SSH_PASSWORD": "one",
        "CLUSTERCTL_SSH_PASSPHRASE": "two",
        "CLUSTERCTL_SUDO_PASSWORD": "three",
    }
    credentials = Credentials(environment=environment)

    assert credentials.password("ada", "gpu1") == "one"
    assert credentials.passphrase(Path("/k")) == "two"
    assert credentials.ask_sudo_password("ada", "gpu1") == "three"


def test_secrets_are_not_in_the_repr() -> None:
    credentials = Credentials(environment={"CLUSTERCTL_SSH_PASSWORD": "hunter2"})

    assert "hunter2" not in repr(credentials)


@pytest.mark.parametrize(
    ("words", "summary"),
    [
        ("sudo: a password is required", "sudo needs a password for "),
        ("sudo: interactive authentication is required", "sudo needs a password for "),
        ("sudo: a terminal is required to read the password; either use ...", "sudo needs a "),
        ("ops is not in the sudoers file.", " may not use sudo"),
        ("sudo: I'm sorry ops. I'm afraid I can't do that", " may not use sudo"),
        ("sudo: account validation failure, is your account locked?",
         "sudo failed (account validation failure, is your account locked?)"),
        ("sudo: Ein Passwort ist notwendig", "sudo failed (Ein Passwort ist notwendig)"),
    ],
)  # fmt: skip
def test_what_sudo_says_is_understood_or_shown(words: str, summary: str) -> None:
    """https://github.com/ansible/ansible/issues/85837: sudo-rs of Ubuntu 25.10 and later."""
    local = LocalTransport(Host(name="gpu1", address="local"), Credentials(environment={}))
    refused = local._sudo_refused(NotStarted(1, words, prompts=0))
    assert summary in refused.summary
