"""Logins as public reports describe them: hardware keys, second factors, agents of password
managers, servers that ask for nothing or for a browser."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from clusterctl.errors import AuthenticationRejected, Unreachable
from clusterctl.inventory.model import Ssh
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.dialer import Dialer
from clusterctl.transport.target import SshTarget
from tests.contract.transport.conftest import StartSshd
from tests.contract.transport.sshd import Sshd, make_key
from tests.contract.transport.test_ssh_login import Questions, dialer_with, who
from tests.fakes.ssh_servers import Factors, TokenAgent, serving


def login(
    server: Factors,
    tmp_path: Path,
    *,
    ask: Questions | None = None,
    within: float = 5,
    **environment: str,
) -> None:
    """Log in to the server with a key and whatever `ask` answers."""
    known, key = tmp_path / "known", make_key(tmp_path / "key", "ecdsa")
    dialer = dialer_with(tmp_path, ask=ask, **environment)
    with serving(server, known) as port:
        ssh = Ssh(
            user="ops", port=port, identity_file=key, known_hosts=known, connect_timeout=within
        )
        try:
            dialer.connect(SshTarget("gpu1", "127.0.0.1", ssh)).close()
        finally:
            dialer.close()


def refused(server: Factors, tmp_path: Path, within: float = 5) -> AuthenticationRejected:
    with pytest.raises(AuthenticationRejected) as caught:
        login(server, tmp_path, within=within)
    return caught.value


def test_a_server_that_wants_nothing_lets_the_user_in(tmp_path: Path) -> None:
    """https://github.com/paramiko/paramiko/issues/2370: Tailscale's server."""
    server = Factors(["none"])
    login(server, tmp_path)
    assert server.asked == ["none"]


def test_a_code_after_the_key_is_asked_in_the_servers_words(tmp_path: Path) -> None:
    """https://github.com/paramiko/paramiko/issues/412"""
    ask = Questions("123456")
    server = Factors(["publickey", "keyboard-interactive"])
    login(server, tmp_path, ask=ask)
    assert ask.asked == ["gpu1 asks: Verification code: "]
    assert server.asked == ["none", "publickey", "keyboard-interactive"]


def test_a_code_that_nobody_can_type_is_named(tmp_path: Path) -> None:
    error = refused(Factors(["publickey", "keyboard-interactive"]), tmp_path)
    assert f"accepted {tmp_path / 'key'}, but requires keyboard-interactive" in error.summary
    assert "'Verification code:'" in error.summary
    assert "on a terminal" in str(error.hint)
    assert "neither" not in error.summary


def test_a_password_and_then_a_code(tmp_path: Path) -> None:
    """https://github.com/paramiko/paramiko/issues/1978: both in one conversation, no key."""
    prompts = (("Password: ", False), ("Duo two-factor login\nPasscode or option (1-2): ", True))
    server = Factors(["keyboard-interactive"], prompts, ("secret", "1"))
    ask = Questions("1")
    login(server, tmp_path, ask=ask, CLUSTERCTL_SSH_PASSWORD="secret")
    assert ask.asked == ["gpu1 asks: Duo two-factor login Passcode or option (1-2): "]


def test_a_key_after_a_password(tmp_path: Path) -> None:
    server = Factors(["password", "publickey"], right=("secret",))
    login(server, tmp_path, CLUSTERCTL_SSH_PASSWORD="secret")
    assert server.asked == ["none", "password", "publickey"]


def test_what_a_terminal_would_obey_is_not_in_the_prompt(tmp_path: Path) -> None:
    prompts = (("Code\x1b[2J\x07: ", False),)
    error = refused(Factors(["publickey", "keyboard-interactive"], prompts), tmp_path)
    assert "\x1b" not in f"{error.summary}{error.detail}"


def test_a_login_in_the_browser_is_named_with_its_address(tmp_path: Path) -> None:
    """https://github.com/paramiko/paramiko/issues/2425: Tailscale's check mode waits for it."""
    said = "# Tailscale SSH requires an additional check.\n# visit: https://login.example/a/f00\n"
    server = Factors(banner=said, holds=True)
    try:
        error = refused(server, tmp_path, within=1)
    finally:
        server.released.set()
    assert "waits for a confirmation in the browser" in error.summary
    assert error.hint == "open https://login.example/a/f00, then run it again"
    assert server.asked == ["none"]


def test_the_last_words_of_a_proxy_command(tmp_path: Path) -> None:
    config = "Host gpu1.corp\n  ProxyCommand sh -c 'echo token expired: log in again >&2; exit 1'\n"
    dialer = dialer_with(tmp_path, config=config)
    with pytest.raises(Unreachable) as caught:
        dialer.connect(SshTarget("gpu1", "gpu1.corp", Ssh(user="ops", connect_timeout=5)))
    assert caught.value.summary == "its ProxyCommand failed: token expired: log in again"


def test_what_a_server_says_before_ssh_begins(tmp_path: Path) -> None:
    """sshd since OpenSSH 9.8 says so to addresses that failed too often (PerSourcePenalties)."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.listen()

        def turn_away() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    connection.sendall(b"Not allowed at this time\r\n")
                    connection.close()

        threading.Thread(target=turn_away, daemon=True).start()
        ssh = Ssh(user="ops", port=listening.getsockname()[1], connect_timeout=2)
        with pytest.raises(Unreachable, match="was set up: Not allowed at this time"):
            dialer_with(tmp_path).connect(SshTarget("gpu1", "127.0.0.1", ssh))
        listening.shutdown(socket.SHUT_RDWR)


def test_tokens_of_ssh_config_are_as_openssh_has_them(tmp_path: Path) -> None:
    text = (
        "Host gpu*\n  HostName %h.corp.example\n  IdentityFile /keys/%n_%h_%r\n"
        "  UserKnownHostsFile /known/%h\n  CertificateFile /keys/%r-cert.pub\n"
        "  IdentityAgent /agents/%r\n  ProxyCommand relay %h %p %r\n"
    )
    end = dialer_with(tmp_path, config=text).resolve(SshTarget("g", "gpu1", Ssh(user="ops")))
    assert end.address == ("gpu1.corp.example", 22)
    assert end.identities() == [Path("/keys/gpu1_gpu1.corp.example_ops")]
    assert end.known_hosts_files()[0] == Path("/known/gpu1.corp.example")
    assert end.certificates() == [Path("/keys/ops-cert.pub")]
    assert end.agent_socket() == "/agents/ops"
    assert end.proxy_command() == "relay gpu1.corp.example 22 ops"


@pytest.fixture
def token(tmp_path: Path) -> Iterator[TokenAgent]:
    agent = TokenAgent(tmp_path / "agent.sock")
    yield agent
    agent.close()


@pytest.fixture
def trusting(start_sshd: StartSshd, token: TokenAgent) -> Sshd:
    """An sshd that lets in the hardware key, and no other."""
    daemon = start_sshd()
    (daemon.folder / "authorized_keys").write_text(token.public + "\n")
    return daemon


def key_file(token: TokenAgent, tmp_path: Path) -> Path:
    path = tmp_path / "id_ed25519_sk"
    path.write_text(token.private_file())
    path.chmod(0o600)
    Path(f"{path}.pub").write_text(token.public + "\n")
    return path


@pytest.mark.sshd
def test_a_hardware_key_in_the_agent_of_ssh_config(
    trusting: Sshd, token: TokenAgent, tmp_path: Path
) -> None:
    """https://github.com/paramiko/paramiko/issues/2299, and 2315: IdentityAgent."""
    host = trusting.host(identity_file=None)
    dialer = dialer_with(tmp_path, config=f"Host *\n  IdentityAgent {token.path}\n")
    assert who(host, dialer) == "root"


@pytest.mark.sshd
def test_a_hardware_keys_file_is_passed_over_for_the_agent(
    trusting: Sshd, token: TokenAgent, tmp_path: Path
) -> None:
    file = key_file(token, tmp_path)
    config = f"Host *\n  IdentityAgent {token.path}\n  IdentitiesOnly yes\n"
    assert who(trusting.host(identity_file=file), dialer_with(tmp_path, config=config)) == "root"


@pytest.mark.sshd
def test_identities_only_names_a_key_of_the_agent_by_its_public_file(
    trusting: Sshd, token: TokenAgent, tmp_path: Path
) -> None:
    """https://github.com/pyinfra-dev/pyinfra/issues/1592: as password managers document it."""
    public = Path(f"{key_file(token, tmp_path)}.pub")
    config = f"Host *\n  IdentityAgent {token.path}\n  IdentitiesOnly yes\n"
    assert who(trusting.host(identity_file=public), dialer_with(tmp_path, config=config)) == "root"


@pytest.mark.sshd
def test_a_hardware_key_without_an_agent_is_named_with_the_way_to_use_it(
    trusting: Sshd, token: TokenAgent, tmp_path: Path
) -> None:
    file = key_file(token, tmp_path)
    dialer = Dialer(Credentials(environment={}), ssh_config=tmp_path / "none")
    with pytest.raises(AuthenticationRejected) as caught:
        who(trusting.host(identity_file=file), dialer)
    assert f"{file} is in a hardware token" in caught.value.summary
    assert f"ssh-add {file}" in str(caught.value.hint)
