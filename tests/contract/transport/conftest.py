"""Transports for the contract tests: this machine, and a real sshd on it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterctl.inventory.model import Host
from clusterctl.transport.base import Transport
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.dialer import Dialer
from clusterctl.transport.local import LocalTransport
from clusterctl.transport.ssh import SshTransport
from tests.contract.transport.sshd import SSHD, Sshd, make_key, running_sshd

NOISY_BASHRC = """\
echo "Welcome to a chatty host"
printf 'no newline at the end'
echo "a warning" >&2
"""

StartSshd = Callable[..., Sshd]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Name the reason where there is no sshd, instead of failing one by one."""
    if Path(SSHD).exists():
        return
    skip = pytest.mark.skip(reason="sshd is not installed: apt-get install openssh-server")
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("sshd"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def client_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_key(tmp_path_factory.mktemp("client") / "id")


@pytest.fixture
def start_sshd(client_key: Path) -> Iterator[StartSshd]:
    """Starts an sshd with further options, ended with the test."""
    with ExitStack() as stack:

        def start(options: Mapping[str, str] | None = None) -> Sshd:
            folder = stack.enter_context(_open_folder())
            return stack.enter_context(running_sshd(folder, client_key=client_key, options=options))

        yield start


@pytest.fixture(scope="session")
def sshd(client_key: Path) -> Iterator[Sshd]:
    """One sshd for tests that leave it as it is; its login shell is noisy."""
    with _open_folder() as folder, running_sshd(folder, client_key=client_key) as daemon:
        (daemon.home / ".bashrc").write_text(NOISY_BASHRC)
        yield daemon


@contextmanager
def _open_folder() -> Iterator[Path]:
    """A folder that other users may enter: sshd reads their authorized_keys as themselves.
    pytest's own folders are closed to them by every run of pytest."""
    with tempfile.TemporaryDirectory(prefix="clusterctl-sshd-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of 127.0.0.1 that is taken, and where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def dialer(tmp_path: Path) -> Iterator[Dialer]:
    """Knows nothing of the ~/.ssh/config of whoever runs the tests."""
    found = Dialer(Credentials(environment={}), ssh_config=tmp_path / "no_ssh_config")
    yield found
    found.close()


@pytest.fixture
def ssh(sshd: Sshd, dialer: Dialer) -> Iterator[SshTransport]:
    transport = SshTransport(sshd.host(), dialer)
    yield transport
    transport.close()


@pytest.fixture(params=["local", pytest.param("ssh", marks=pytest.mark.sshd)])
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    """Every transport: what is tested with it holds for all."""
    if request.param == "ssh":
        yield request.getfixturevalue("ssh")
        return
    local = LocalTransport(Host(name="here", address="localhost"))
    yield local
    local.close()


@dataclass(frozen=True)
class Person:
    """An account on this machine, made for tests."""

    name: str
    password: str
    home: Path

    def sudoers(self, rule: str) -> None:
        """Give a rule such as `ALL=(ALL) NOPASSWD: ALL`; "" takes it away."""
        file = Path(f"/etc/sudoers.d/{self.name}")
        file.write_text(f"{self.name} {rule}\n" if rule else "")
        file.chmod(0o440)


MakePerson = Callable[[str], Person]


@pytest.fixture
def make_person() -> Iterator[MakePerson]:
    """Makes accounts with a given login shell; they are gone after the test."""
    if os.geteuid() != 0 or shutil.which("useradd") is None:
        pytest.skip("making accounts takes root and useradd")
    made: list[Person] = []

    def make(shell: str) -> Person:
        person = Person(f"cctl{os.getpid()}x{len(made)}", "pass:word $1", Path())
        person = Person(person.name, person.password, Path("/home") / person.name)
        subprocess.run(["useradd", "-m", "-s", shell, person.name], check=True)
        made.append(person)
        entry = f"{person.name}:{person.password}".encode()
        subprocess.run(["chpasswd"], input=entry, check=True)
        return person

    yield make
    for person in made:
        Path(f"/etc/sudoers.d/{person.name}").unlink(missing_ok=True)
        subprocess.run(["userdel", "-rf", person.name], check=True, capture_output=True)
