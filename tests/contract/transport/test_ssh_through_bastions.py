"""The way to hosts in a company: bastions with users of their own, certificates for users and for
hosts, and no key of the operator's in any authorized_keys."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.errors import AuthenticationRejected, ConnectionFailed
from clusterctl.inventory.model import Host, Ssh
from clusterctl.transport.dialer import Dialer
from clusterctl.transport.ssh import SshTransport
from tests.contract.transport.conftest import MakePerson, StartSshd
from tests.contract.transport.sshd import Sshd, make_key

pytestmark = [
    pytest.mark.sshd,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("useradd") is None, reason="makes accounts"
    ),
]

ME = "127.0.0.1"


class Company:
    """Its two CAs, the operator's certified key, and sshds that trust the CAs alone."""

    def __init__(self, folder: Path, start: StartSshd, principals: str) -> None:
        self._start, self._folder = start, folder
        self.users, self._hosts = make_key(folder / "users-ca"), make_key(folder / "hosts-ca")
        self.key = make_key(folder / "operator")
        self.sign(self.users, self.key, "-n", principals)
        self.known_hosts = folder / "known_hosts"
        public = Path(f"{self._hosts}.pub").read_text()
        self.known_hosts.write_text(
            f"@cert-authority {ME} {public}@cert-authority [{ME}]:* {public}"
        )

    def sign(self, ca: Path, key: Path, *options: str) -> None:
        words = ["ssh-keygen", "-q", "-s", str(ca), "-I", key.name, *options, f"{key}.pub"]
        subprocess.run(words, check=True, capture_output=True)

    def sshd(self, name: str, **options: str) -> Sshd:
        key = make_key(self._folder / name)
        self.sign(self._hosts, key, "-h", "-n", ME)
        trusted = self._folder / f"{name}-users-ca.pub"
        shutil.copy(f"{self.users}.pub", trusted)
        return self._start(
            {
                "HostKey": str(key),
                "HostCertificate": f"{key}-cert.pub",
                "TrustedUserCAKeys": str(trusted),
                "AuthorizedKeysFile": "none",
                "LogLevel": "VERBOSE",
                **options,
            }
        )

    def host(self, sshd: Sshd, **ssh: object) -> Host:
        options = {
            "user": "root",
            "port": sshd.port,
            "identity_file": self.key,
            "known_hosts": self.known_hosts,
            **ssh,
        }
        return Host(name="gpu1", address=ME, ssh=Ssh.model_validate(options))


@pytest.fixture
def company(tmp_path: Path, start_sshd: StartSshd) -> Callable[[str], Company]:
    return lambda principals: Company(tmp_path, start_sshd, principals)


def who_am_i(host: Host, dialer: Dialer) -> str:
    transport = SshTransport(host, dialer)
    try:
        return transport.run(["id", "-un"]).stdout.strip()
    finally:
        transport.close()


def logins(sshd: Sshd) -> list[str]:
    """The user of each login, and what it was by."""
    lines = (sshd.folder / "sshd.log").read_text().splitlines()
    words = [line.split() for line in lines if line.startswith("Accepted publickey")]
    return [f"{row[3]} {'certificate' if 'ED25519-CERT' in row else 'key'}" for row in words]


def test_two_bastions_with_users_of_their_own(
    company: Callable[[str], Company], make_person: MakePerson, dialer: Dialer
) -> None:
    outer, inner = make_person("/bin/sh"), make_person("/bin/sh")
    corp = company(f"root,{outer.name},{inner.name}")
    first, second, host = corp.sshd("first"), corp.sshd("second"), corp.sshd("gpu")
    way = f"{outer.name}@{ME}:{first.port},{inner.name}@{ME}:{second.port}"

    assert who_am_i(corp.host(host, proxy_jump=way), dialer) == "root"

    assert logins(first) == [f"{outer.name} certificate"]
    assert logins(second) == [f"{inner.name} certificate"]
    assert logins(host) == ["root certificate"]


def test_a_bastion_from_the_ssh_config_with_its_own_user(
    company: Callable[[str], Company], make_person: MakePerson, tmp_path: Path
) -> None:
    person = make_person("/bin/sh")
    corp = company(f"root,{person.name}")
    bastion, host = corp.sshd("bastion"), corp.sshd("gpu")
    (tmp_path / "config").write_text(
        f"Host bastion\n  HostName {ME}\n  Port {bastion.port}\n  User {person.name}\n"
        f"Host gpu\n  HostName {ME}\n  ProxyJump bastion\n"
    )
    dialer = Dialer(ssh_config=tmp_path / "config")
    known = corp.host(host).model_copy(update={"address": "gpu"})
    try:
        assert who_am_i(known, dialer) == "root"
    finally:
        dialer.close()
    assert logins(bastion) == [f"{person.name} certificate"]


def test_a_bastion_that_refuses_its_user_is_named(
    company: Callable[[str], Company], make_person: MakePerson, dialer: Dialer
) -> None:
    person = make_person("/bin/sh")
    corp = company("root")
    bastion, host = corp.sshd("bastion"), corp.sshd("gpu")
    way = f"{person.name}@{ME}:{bastion.port}"
    with pytest.raises(AuthenticationRejected) as refused:
        who_am_i(corp.host(host, proxy_jump=way), dialer)
    assert refused.value.host == "gpu1"
    assert refused.value.summary.startswith(f"jump host {ME}: {ME}:{bastion.port} accepted")
    assert f"{person.name}@{ME}" in str(refused.value.hint)


def test_a_bastion_with_a_certificate_of_another_ca_is_refused(
    company: Callable[[str], Company], dialer: Dialer, tmp_path: Path
) -> None:
    corp = company("root")
    other = make_key(tmp_path / "other")
    corp.sign(make_key(tmp_path / "other-ca"), other, "-h", "-n", ME)
    bastion = corp.sshd("bastion", HostKey=str(other), HostCertificate=f"{other}-cert.pub")
    host = corp.sshd("gpu")
    with pytest.raises(ConnectionFailed, match=f"jump host {ME}: its host key is not in"):
        who_am_i(corp.host(host, proxy_jump=f"root@{ME}:{bastion.port}"), dialer)
    assert logins(host) == []


def test_a_host_that_knows_the_plain_key_of_a_certified_one(
    company: Callable[[str], Company], dialer: Dialer, tmp_path: Path
) -> None:
    """As the bastion does where only the hosts behind it trust the CA."""
    corp = company("root")
    keys = tmp_path / "authorized_keys"
    keys.write_text(Path(f"{corp.key}.pub").read_text())
    plain = corp.sshd("plain", AuthorizedKeysFile=str(keys), TrustedUserCAKeys="none")
    host = corp.sshd("gpu")
    assert who_am_i(corp.host(host, proxy_jump=f"root@{ME}:{plain.port}"), dialer) == "root"
    assert logins(plain) == ["root key"]
    assert logins(host) == ["root certificate"]
