"""Accounts as they are found: odd login shells, start-up files that misbehave, sudo."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.errors import (
    AuthenticationRejected,
    ConnectionFailed,
    HostKeyProblem,
    RequirementsNotMet,
)
from clusterctl.inventory.model import Host
from clusterctl.serving.endpoint import key_line
from clusterctl.transport.base import lines
from clusterctl.transport.credentials import (
    SSH_PASSPHRASE,
    SSH_PASSWORD,
    SUDO_PASSWORD,
    Credentials,
)
from clusterctl.transport.dialer import Dialer
from clusterctl.transport.local import LocalTransport
from clusterctl.transport.ssh import SshTransport
from tests.contract.transport.conftest import MakePerson, Person, StartSshd
from tests.contract.transport.sshd import Sshd

pytestmark = pytest.mark.sshd

AWKWARD = ["a b", "$HOME", "it's", '"', "\\", "\\'", "!!", "a\nb", "`id`", "*", "", "~", "é", "%s"]


def log_in(sshd: Sshd, person: Person, tmp_path: Path, **environment: str) -> SshTransport:
    dialer = Dialer(Credentials(environment=environment), ssh_config=tmp_path / "none")
    return SshTransport(sshd.host(user=person.name), dialer)


@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/dash", "/usr/bin/fish", "/bin/tcsh"])
def test_any_login_shell_hands_arguments_on(
    shell: str, sshd: Sshd, make_person: MakePerson, tmp_path: Path
) -> None:
    if not Path(shell).exists():
        pytest.skip(f"{shell} is not installed")
    transport = log_in(sshd, make_person(shell), tmp_path)

    result = transport.run(["printf", "%s\\0", *AWKWARD], stdin=b"not for the shell")

    assert result.stdout.split("\0")[:-1] == AWKWARD
    transport.close()


def test_an_account_without_a_shell(sshd: Sshd, make_person: MakePerson, tmp_path: Path) -> None:
    transport = log_in(sshd, make_person("/usr/sbin/nologin"), tmp_path)

    with pytest.raises(ConnectionFailed) as caught:
        transport.run(["true"])

    assert "ended with status 1 before the command started" in caught.value.summary
    assert "not available" in (caught.value.detail or "")
    transport.close()


def test_a_start_up_file_that_exits(start_sshd: StartSshd, dialer: Dialer) -> None:
    daemon = start_sshd()
    (daemon.home / ".bashrc").write_text("echo 'log in as admin rather than root'; exit 0\n")
    transport = SshTransport(daemon.host(), dialer)

    with pytest.raises(ConnectionFailed) as caught:
        transport.run(["true"])

    assert "ended with status 0 before the command started" in caught.value.summary
    assert caught.value.detail == "log in as admin rather than root"
    transport.close()


def test_a_start_up_file_that_reads_stdin(start_sshd: StartSshd, dialer: Dialer) -> None:
    """It gets nothing to eat: input is sent once the command runs."""
    daemon = start_sshd()
    (daemon.home / ".bashrc").write_text("read -t 0.3 -r first_line\n")
    transport = SshTransport(daemon.host(), dialer)

    assert transport.run(["cat"], stdin=b"one\ntwo\n").stdout == "one\ntwo\n"
    transport.close()


def test_a_start_up_file_that_traces(start_sshd: StartSshd, dialer: Dialer) -> None:
    daemon = start_sshd()
    (daemon.home / ".bashrc").write_text("set -x\n")
    transport = SshTransport(daemon.host(), dialer)

    result = transport.run(["echo", "clean"])

    assert (result.stdout, result.stderr) == ("clean\n", "")
    transport.close()


@pytest.fixture
def person(make_person: MakePerson) -> Person:
    if shutil.which("sudo") is None:
        pytest.skip("sudo is not installed: apt-get install sudo")
    return make_person("/bin/bash")


def test_root_needs_no_sudo(ssh: SshTransport) -> None:
    assert ssh.user == "root"
    assert ssh.run(["id", "-u"], sudo=True).stdout == "0\n"


def test_sudo_without_a_password(sshd: Sshd, person: Person, tmp_path: Path) -> None:
    person.sudoers("ALL=(ALL) NOPASSWD: ALL")
    transport = log_in(sshd, person, tmp_path)

    assert transport.run(["id", "-u"]).stdout != "0\n"
    assert transport.run(["id", "-u"], sudo=True).stdout == "0\n"
    assert transport.run(["cat"], stdin=b"data", sudo=True).stdout == "data"
    transport.close()


def test_sudo_with_a_password(sshd: Sshd, person: Person, tmp_path: Path) -> None:
    person.sudoers("ALL=(ALL) ALL")
    transport = log_in(sshd, person, tmp_path, CLUSTERCTL_SUDO_PASSWORD=person.password)

    assert transport.run(["id", "-u"], sudo=True).stdout == "0\n"
    result = transport.run(["cat"], stdin=b"first\nsecond\n", sudo=True)
    assert (result.stdout, result.stderr) == ("first\nsecond\n", "")
    transport.close()


def test_a_password_that_sudo_does_not_want_goes_nowhere(
    sshd: Sshd, person: Person, tmp_path: Path
) -> None:
    person.sudoers("ALL=(ALL) NOPASSWD: ALL")
    transport = log_in(sshd, person, tmp_path, CLUSTERCTL_SUDO_PASSWORD=person.password)

    assert transport.run(["cat"], stdin=b"data", sudo=True).stdout == "data"
    transport.close()


def test_the_password_is_on_no_command_line(sshd: Sshd, person: Person, tmp_path: Path) -> None:
    person.sudoers("ALL=(ALL) ALL")
    transport = log_in(sshd, person, tmp_path, CLUSTERCTL_SUDO_PASSWORD=person.password)
    script = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'"

    listing = transport.run(["sh", "-c", script], sudo=True).stdout

    assert person.password not in listing
    transport.close()


def test_the_sudo_password_is_asked_for_when_sudo_wants_it(
    sshd: Sshd, person: Person, tmp_path: Path
) -> None:
    person.sudoers("ALL=(ALL) ALL")
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return person.password

    dialer = Dialer(Credentials(environment={}, ask=ask), ssh_config=tmp_path / "none")
    transport = SshTransport(sshd.host(user=person.name), dialer)

    for _ in range(2):
        assert transport.run(["id", "-u"], sudo=True).stdout == "0\n"
    assert asked == [f"sudo password of {person.name} (first asked for by gpu1): "]
    transport.close()


def test_no_sudo_password_goes_to_a_host_whose_key_was_accepted_in_this_run(
    sshd: Sshd, person: Person, tmp_path: Path
) -> None:
    person.sudoers("ALL=(ALL) ALL")
    variables = {"CLUSTERCTL_SUDO_PASSWORD": person.password}
    dialer = Dialer(Credentials(environment=variables), ssh_config=tmp_path / "none")
    known = tmp_path / "known"
    transport = SshTransport(
        sshd.host(user=person.name, known_hosts=known, accept_new=True), dialer
    )
    with pytest.raises(HostKeyProblem, match="no password was sent"):
        transport.run(["true"], sudo=True)

    person.sudoers("ALL=(ALL) NOPASSWD: ALL")
    assert transport.run(["id", "-u"], sudo=True).stdout == "0\n", "sudo wants none"
    transport.close()


def test_a_wrong_sudo_password(sshd: Sshd, person: Person, tmp_path: Path) -> None:
    person.sudoers("ALL=(ALL) ALL")
    transport = log_in(sshd, person, tmp_path, CLUSTERCTL_SUDO_PASSWORD="wrong")

    with pytest.raises(AuthenticationRejected) as caught:
        transport.run(["true"], sudo=True, stdin=b"payload\nlines\n")

    assert caught.value.summary == f"sudo did not accept the password of {person.name}"
    assert "CLUSTERCTL_SUDO_PASSWORD" in (caught.value.hint or "")
    assert "payload" not in (caught.value.detail or "")
    transport.close()


def test_sudo_that_wants_a_password_nobody_gives(
    sshd: Sshd, person: Person, tmp_path: Path
) -> None:
    person.sudoers("ALL=(ALL) ALL")
    transport = log_in(sshd, person, tmp_path)

    with pytest.raises(RequirementsNotMet) as caught:
        transport.run(["true"], sudo=True)

    assert f"sudo needs a password for {person.name}" in caught.value.summary
    assert "CLUSTERCTL_SUDO_PASSWORD" in (caught.value.hint or "")
    transport.close()


def test_an_account_that_may_not_use_sudo(sshd: Sshd, person: Person, tmp_path: Path) -> None:
    transport = log_in(sshd, person, tmp_path, CLUSTERCTL_SUDO_PASSWORD=person.password)

    with pytest.raises(RequirementsNotMet) as caught:
        transport.run(["true"], sudo=True)

    assert f"{person.name} may not use sudo" in caught.value.summary
    assert "sudoers" in (caught.value.detail or "")
    transport.close()


def only(folder: Path, *tools: str) -> str:
    """A PATH with these tools and no others."""
    folder.mkdir()
    for tool in tools:
        (folder / tool).symlink_to(shutil.which(tool) or "absent")
    return str(folder)


def test_a_host_without_sudo(
    start_sshd: StartSshd, sshd: Sshd, make_person: MakePerson, tmp_path: Path
) -> None:
    path = only(sshd.home / "without-sudo", "sh", "bash", "printf")
    daemon = start_sshd({"SetEnv": f"PATH={path} HOME=/tmp"})
    transport = log_in(daemon, make_person("/bin/bash"), tmp_path)

    with pytest.raises(RequirementsNotMet, match="sudo is not installed"):
        transport.run(["true"], sudo=True)
    transport.close()


def test_commands_run_without_coreutils_timeout(
    start_sshd: StartSshd, dialer: Dialer, tmp_path: Path
) -> None:
    path = only(tmp_path / "bin", "sh", "bash", "printf")
    transport = SshTransport(start_sshd({"SetEnv": f"PATH={path} HOME=/tmp"}).host(), dialer)

    assert transport.run(["printf", "fine"]).stdout == "fine"
    transport.close()


def test_put_and_channels_as_root_by_password(sshd: Sshd, person: Person, tmp_path: Path) -> None:
    person.sudoers("ALL=(ALL) ALL")
    transport = log_in(sshd, person, tmp_path, CLUSTERCTL_SUDO_PASSWORD=person.password)
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)

    transport.put(b"token\n", str(folder / "ray.token"), mode=0o600, sudo=True)

    written = folder / "ray.token"
    assert written.read_bytes() == b"token\n"
    assert (written.stat().st_uid, written.stat().st_mode & 0o777) == (0, 0o600)
    with transport.open_channel(["sh", "-c", "id -u; exec cat"], sudo=True) as channel:
        channel.send(b"both ways\n")
        channel.close_stdin()
        assert list(lines(channel)) == ["0", "both ways"]
    transport.close()


def test_the_printed_line_fetches_the_key_where_sudo_asks_and_no_terminal_is(
    sshd: Sshd, person: Person, tmp_path: Path
) -> None:
    person.sudoers("ALL=(ALL) ALL")
    key = tmp_path / "api.key"
    key.write_text("the-key")
    key.chmod(0o600)
    inventory = tmp_path / "inventory.yaml"
    ssh = {"user": person.name, "port": sshd.port, "known_hosts": str(sshd.known_hosts)}
    host = {"address": "127.0.0.1", "role": "head", "ssh": ssh}
    inventory.write_text(json.dumps({"cluster": "demo", "image": "x:1", "hosts": {"gpu1": host}}))
    done = subprocess.run(
        ["sh", "-c", f'{key_line("gpu1", str(key), sudo=True)}; echo "$CLUSTERCTL_API_KEY"'],
        env={
            **os.environ,
            "HOME": str(tmp_path),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "CLUSTERCTL_INVENTORY": str(inventory),
            "CLUSTERCTL_SSH_PASSWORD": person.password,
            "CLUSTERCTL_SUDO_PASSWORD": person.password,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "the-key\n", done.stderr


def test_programs_of_this_machine_do_not_get_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any program that a command line names would find them in its environment."""
    names = (SSH_PASSWORD, SSH_PASSPHRASE, SUDO_PASSWORD)
    for name in names:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("KEPT", "yes")
    here = LocalTransport(Host(name="here", address="localhost"))
    said = here.run(["env"]).stdout
    assert "secret" not in said
    assert "KEPT=yes" in said
