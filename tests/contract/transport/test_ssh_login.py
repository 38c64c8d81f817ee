"""Getting in: keys, agents, passwords, ~/.ssh/config, and what is said when nothing works."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterctl.errors import AuthenticationRejected, HostKeyProblem, UsageError
from clusterctl.inventory.model import Host, Ssh
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.dialer import Dialer
from clusterctl.transport.ssh import SshTransport
from clusterctl.transport.ssh_config import SshConfig
from clusterctl.transport.target import target_of
from tests.contract.transport.conftest import MakePerson, Person, StartSshd
from tests.contract.transport.sshd import Sshd, make_key

pytestmark = pytest.mark.sshd


RELAY = """\
import os, socket, threading
s = socket.create_connection(('127.0.0.1', {port}))
def up():
    while data := os.read(0, 65536): s.sendall(data)
threading.Thread(target=up, daemon=True).start()
while data := s.recv(65536): os.write(1, data)
"""


class Questions:
    """A person who gives one answer, and remembers what was asked."""

    def __init__(self, answer: str | None) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def __call__(self, question: str) -> str | None:
        self.asked.append(question)
        return self.answer


def dialer_with(
    tmp_path: Path, *, config: str = "", ask: Questions | None = None, **environment: str
) -> Dialer:
    file = tmp_path / "ssh_config"
    file.write_text(config)
    asking = ask or Questions(None)
    return Dialer(Credentials(environment=environment, ask=asking), ssh_config=file)


def who(host: Host, dialer: Dialer) -> str:
    transport = SshTransport(host, dialer)
    try:
        return transport.run(["id", "-un"]).stdout.strip()
    finally:
        transport.close()
        dialer.close()


@pytest.fixture
def person(make_person: MakePerson) -> Person:
    return make_person("/bin/bash")


@pytest.fixture
def locked_key(start_sshd: StartSshd, tmp_path: Path) -> tuple[Sshd, Path]:
    """An sshd that lets in a key which is encrypted with the passphrase `open sesame`."""
    daemon = start_sshd()
    key = make_key(tmp_path / "locked", passphrase="open sesame")
    (daemon.folder / "authorized_keys").write_text(Path(f"{key}.pub").read_text())
    return daemon, key


def test_a_password_from_the_environment(sshd: Sshd, person: Person, tmp_path: Path) -> None:
    dialer = dialer_with(tmp_path, CLUSTERCTL_SSH_PASSWORD=person.password)
    host = sshd.host(user=person.name, identity_file=None)

    assert who(host, dialer) == person.name


def test_a_password_is_asked_for_once_for_all_hosts(
    sshd: Sshd, person: Person, tmp_path: Path
) -> None:
    ask = Questions(person.password)
    dialer = dialer_with(tmp_path, ask=ask)
    make_key(tmp_path / "stranger")

    for name in ("gpu1", "gpu2"):
        host = sshd.host(name, user=person.name, identity_file=tmp_path / "stranger")
        assert who(host, dialer) == person.name

    assert ask.asked == [f"SSH password of {person.name} (first asked for by gpu1): "]


def test_no_password_goes_to_a_host_whose_key_was_accepted_in_this_run(
    sshd: Sshd, person: Person, tmp_path: Path
) -> None:
    known = tmp_path / "known"
    host = sshd.host(user=person.name, identity_file=None, known_hosts=known, accept_new=True)
    before = (sshd.folder / "sshd.log").read_text().count("Accepted password")
    credentials = Credentials(environment={"CLUSTERCTL_SSH_PASSWORD": person.password})
    for _ in range(2):  # also after the key was written, and for other connections of this run
        dialer = Dialer(credentials, ssh_config=tmp_path / "none")
        with pytest.raises(HostKeyProblem, match="no password was sent") as caught:
            who(host, dialer)
    assert "ssh-ed25519 SHA256:" in (caught.value.hint or "")
    assert (sshd.folder / "sshd.log").read_text().count("Accepted password") == before

    later = dialer_with(tmp_path, CLUSTERCTL_SSH_PASSWORD=person.password)
    assert who(host, later) == person.name


def test_a_user_who_confirms_a_new_key_gets_in_by_password(
    sshd: Sshd, person: Person, tmp_path: Path
) -> None:
    ask = Questions("yes")
    dialer = dialer_with(tmp_path, ask=ask, CLUSTERCTL_SSH_PASSWORD=person.password)
    known = tmp_path / "known"

    assert (
        who(
            sshd.host(user=person.name, identity_file=None, known_hosts=known, accept_new=True),
            dialer,
        )
        == person.name
    )

    (asked,) = ask.asked
    assert asked.startswith("gpu1 is new and presented ssh-ed25519 SHA256:")


def test_nobody_is_asked_when_a_key_opens(sshd: Sshd, tmp_path: Path) -> None:
    ask = Questions("wrong")

    assert who(sshd.host(), dialer_with(tmp_path, ask=ask)) == "root"
    assert ask.asked == []


def test_a_wrong_password_is_tried_once(sshd: Sshd, person: Person, tmp_path: Path) -> None:
    dialer = dialer_with(tmp_path, CLUSTERCTL_SSH_PASSWORD="not it")
    host = sshd.host(user=person.name, identity_file=None)

    with pytest.raises(AuthenticationRejected) as caught:
        who(host, dialer)

    assert caught.value.host == "gpu1"
    assert f"127.0.0.1:{sshd.port} accepted neither a key nor a password" in caught.value.summary
    hint = caught.value.hint or ""
    assert hint.startswith(f"ssh-copy-id -p {sshd.port} ")
    assert f"{person.name}@127.0.0.1 copies your key to it" in hint
    assert f"{person.name}@127.0.0.1 true" in hint
    assert "password: Authentication failed" in (caught.value.detail or "")
    assert "not it" not in str(vars(caught.value))
    log = (sshd.folder / "sshd.log").read_text()
    assert log.count(f"Failed password for {person.name}") == 1


def test_what_was_tried_is_told(sshd: Sshd, tmp_path: Path) -> None:
    stranger = make_key(tmp_path / "stranger")

    with pytest.raises(AuthenticationRejected) as caught:
        who(sshd.host(identity_file=stranger), dialer_with(tmp_path))

    detail = caught.value.detail or ""
    assert str(stranger) in detail
    assert "CLUSTERCTL_SSH_PASSWORD" in detail


def test_a_missing_key_file_is_told(sshd: Sshd, tmp_path: Path) -> None:
    with pytest.raises(
        AuthenticationRejected, match="accepted neither a key nor a password"
    ) as caught:
        who(sshd.host(identity_file=tmp_path / "absent"), dialer_with(tmp_path))

    assert "No such file" in (caught.value.detail or "")


def test_a_passphrase_from_the_environment(locked_key: tuple[Sshd, Path], tmp_path: Path) -> None:
    daemon, key = locked_key
    dialer = dialer_with(tmp_path, CLUSTERCTL_SSH_PASSPHRASE="open sesame")

    assert who(daemon.host(identity_file=key), dialer) == "root"


def test_a_passphrase_is_asked_for_once(locked_key: tuple[Sshd, Path], tmp_path: Path) -> None:
    daemon, key = locked_key
    ask = Questions("open sesame")
    dialer = dialer_with(tmp_path, ask=ask)

    assert who(daemon.host("gpu1", identity_file=key), dialer) == "root"
    assert who(daemon.host("gpu2", identity_file=key), dialer) == "root"
    assert ask.asked == [f"Passphrase of {key}: "]


def test_a_wrong_passphrase_is_named(locked_key: tuple[Sshd, Path], tmp_path: Path) -> None:
    daemon, key = locked_key
    dialer = dialer_with(tmp_path, CLUSTERCTL_SSH_PASSPHRASE="shut")

    with pytest.raises(AuthenticationRejected) as caught:
        who(daemon.host(identity_file=key), dialer)

    assert f"{key}: the passphrase is wrong" in (caught.value.detail or "")


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty ssh-agent."""
    socket = tmp_path / "agent"
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    process.stdout.readline()  # it prints its environment once it listens
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    yield
    process.terminate()
    process.wait()
    process.stdout.close()


def test_a_locked_key_in_the_agent_needs_no_passphrase(
    locked_key: tuple[Sshd, Path], agent: None, tmp_path: Path
) -> None:
    daemon, key = locked_key
    helper = tmp_path / "askpass"
    helper.write_text(f"#!{sys.executable}\nprint('open sesame')\n")
    helper.chmod(0o755)
    environment = {**os.environ, "SSH_ASKPASS": str(helper), "SSH_ASKPASS_REQUIRE": "force"}
    subprocess.run(["ssh-add", "-q", key], env=environment, check=True, timeout=60)
    ask = Questions(None)

    assert who(daemon.host(identity_file=key), dialer_with(tmp_path, ask=ask)) == "root"
    assert ask.asked == []


def test_an_alias_from_ssh_config(sshd: Sshd, tmp_path: Path) -> None:
    config = f"""\
Host big-gpu
    HostName 127.0.0.1
    Port {sshd.port}
    User root
    IdentityFile {sshd.client_key}
    UserKnownHostsFile {sshd.known_hosts}
"""
    host = Host(name="gpu1", address="big-gpu")

    assert who(host, dialer_with(tmp_path, config=config)) == "root"


def test_the_inventory_wins_over_ssh_config(sshd: Sshd, tmp_path: Path) -> None:
    config = "Host *\n    Port 1\n    User nobody\n    IdentityFile /nowhere\n"

    assert who(sshd.host(), dialer_with(tmp_path, config=config)) == "root"


def test_many_threads_share_one_ssh_config(tmp_path: Path) -> None:
    """What they share must not be written to: each host has its own key file here."""
    blocks = (f"Host gpu{n}\n  IdentityFile /keys/{n}\n  Port {n + 1}\n" for n in range(20))
    dialer = dialer_with(tmp_path, config="".join(blocks))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(16) as crew:
            names = [f"gpu{n % 20}" for n in range(400)]
            hosts = [Host(name=name, address=name) for name in names]
            found = list(crew.map(lambda host: dialer.resolve(target_of(host)), hosts))
    finally:
        sys.setswitchinterval(before)

    for name, endpoint in zip(names, found, strict=True):
        assert endpoint.identities() == [Path("/keys") / name[3:]]
        assert endpoint.connection.authentication.strategy_class is None


def test_an_ssh_config_that_cannot_be_read(sshd: Sshd, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ssh_config cannot be read") as caught:
        who(sshd.host(), dialer_with(tmp_path, config="Host a\n    ???\n"))

    assert "???" in (caught.value.detail or "")


def test_a_proxy_command_from_ssh_config(sshd: Sshd, tmp_path: Path) -> None:
    relay = tmp_path / "relay.py"
    relay.write_text(RELAY.format(port=sshd.port))
    config = f"Host 192.0.2.7\n    ProxyCommand {sys.executable} {relay}\n"
    sshd.known_hosts.write_text(sshd.known_line() + sshd.known_line("192.0.2.7"))

    assert who(sshd.host(address="192.0.2.7"), dialer_with(tmp_path, config=config)) == "root"


def aliased(sshd: Sshd) -> Host:
    """A host that is known by a name of ssh_config only."""
    ssh = Ssh(identity_file=sshd.client_key, known_hosts=sshd.known_hosts)
    return Host(name="gpu1", address="cluster-gpu1", ssh=ssh)


@pytest.mark.parametrize(
    "config",
    [
        "Include {folder}/more.d/*\n",
        'Match originalhost cluster-* exec "true"\n  HostName 127.0.0.1\n  Port {port}\n'
        "  User root\n",
    ],
)
def test_include_and_match_are_followed_as_openssh_does(
    sshd: Sshd, tmp_path: Path, config: str
) -> None:
    (tmp_path / "more.d").mkdir()
    (tmp_path / "more.d/hosts").write_text(
        f"Host cluster-gpu1\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User root\n"
    )
    text = config.format(folder=tmp_path, port=sshd.port)
    assert who(aliased(sshd), dialer_with(tmp_path, config=text)) == "root"


def test_a_proxy_command_of_an_included_file_is_run(sshd: Sshd, tmp_path: Path) -> None:
    relay = tmp_path / "relay.py"
    relay.write_text(RELAY.format(port=sshd.port))
    (tmp_path / "more").write_text(
        f"Host 127.0.0.1\n  ProxyCommand {sys.executable} {relay} %h %p\n"
    )
    assert who(sshd.host(), dialer_with(tmp_path, config=f"Include {tmp_path}/more\n")) == "root"


def test_a_match_that_only_openssh_knows_counts(sshd: Sshd, tmp_path: Path) -> None:
    text = (
        "Match final host 127.0.0.1\n  User root\n"
        f"Host cluster-gpu1\n  HostName 127.0.0.1\n  Port {sshd.port}\n"
    )
    assert who(aliased(sshd), dialer_with(tmp_path, config=text)) == "root"


def test_without_an_ssh_the_rest_of_the_file_counts(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"Include {tmp_path}/*\nHost cluster-gpu1\n  HostName 127.0.0.1\n  Port {sshd.port}\n"
    dialer = dialer_with(tmp_path, config=text + "  User root\n")
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(tmp_path))
    connection = dialer.resolve(target_of(aliased(sshd))).connection
    monkeypatch.setenv("PATH", path)
    assert (connection.host, connection.port, connection.user) == ("127.0.0.1", sshd.port, "root")
    assert who(aliased(sshd), dialer) == "root"


def test_several_key_files_of_ones_own_are_not_taken_for_openssh_s_defaults(
    sshd: Sshd, tmp_path: Path
) -> None:
    file = tmp_path / "config"
    file.write_text("Match all\n  IdentityFile ~/.ssh/id_work\n  IdentityFile ~/.ssh/id_lab\n")
    found = SshConfig(file).of(target_of(sshd.host())).values["identityfile"]
    assert [Path(name).name for name in found] == ["id_work", "id_lab"]


def test_a_match_that_hangs_is_named(sshd: Sshd, tmp_path: Path) -> None:
    file = tmp_path / "ssh_config"
    file.write_text('Match exec "sleep 60"\n  User nobody\n')
    with pytest.raises(UsageError, match=r"did not answer within 0\.5 s") as caught:
        SshConfig(file, limit=0.5).of(target_of(sshd.host()))
    assert "ssh -vG 127.0.0.1" in (caught.value.hint or "")


def test_what_ssh_refuses_in_a_file_is_told_in_its_words(sshd: Sshd, tmp_path: Path) -> None:
    file = tmp_path / "ssh_config"
    file.write_text("Match all\n  Nonsense yes\n")
    with pytest.raises(UsageError) as caught:
        SshConfig(file).of(target_of(sshd.host()))
    assert "Bad configuration option: nonsense" in (caught.value.detail or "")
