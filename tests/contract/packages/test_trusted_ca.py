"""The store of trusted CAs of a real Debian: this machine's, in copies of its directories."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.engine.step import Change, HostView
from clusterctl.inventory.model import Host
from clusterctl.inventory.outside import parse_certificates
from clusterctl.steps.trusted_ca import PENDING, TrustedCa
from clusterctl.transport.command import Wire
from clusterctl.transport.local import LocalTransport
from tests.fakes.host import FakeHost, fake_view
from tests.fakes.private_ca import PrivateCa, private_ca
from tests.unit.steps.stage import facts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts directories")

OWN = ("/etc/ssl/certs", "/usr/local/share/ca-certificates", "/etc/docker", "/var/lib/clusterctl")
BINDS = 'while [ "$1" != -- ]; do mount --bind "$1" "$2"; shift 2; done; shift; exec "$@"'
IMAGE = "registry.corp:5000/vllm:1"


class HostWithOwnStore(LocalTransport):
    """This machine, with copies of `OWN` below `folder` for every command."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Host(name="gpu1", address="localhost"))
        self._folder = folder
        for path in map(Path, OWN):
            if path.is_dir():
                shutil.copytree(path, self.at(path), symlinks=True)
            else:
                self.at(path).mkdir(parents=True)

    def at(self, path: str | Path) -> Path:
        return self._folder / str(path).lstrip("/")

    def _start(self, argv: Sequence[str]) -> tuple[Wire, Callable[[], None]]:
        binds = [str(word) for path in OWN for word in (self.at(path), path)]
        return super()._start(["unshare", "-m", "sh", "-c", BINDS, "host", *binds, "--", *argv])

    @property
    def picture(self) -> dict[str, str]:
        roots = [self.at(path) for path in OWN]
        files = (file for root in roots for file in sorted(root.rglob("*")) if file.is_file())
        files = (file for file in files if file.name != "cacerts")  # Java's has the time in it
        return {str(file): file.read_text(errors="replace") for file in files}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HostWithOwnStore]:
    missing = [path for path in OWN if not Path(path).is_dir()]
    for path in missing:
        Path(path).mkdir(parents=True)  # where the copies are mounted
    yield HostWithOwnStore(tmp_path / "host")
    for path in missing:
        Path(path).rmdir()


def view_of(host: HostWithOwnStore) -> HostView:
    return replace(fake_view(FakeHost("gpu1"), facts()), transport=host)


def trusting(*cas: PrivateCa, image: str = IMAGE, cluster: str = "demo") -> TrustedCa:
    text = "".join(ca.pem for ca in cas)
    return TrustedCa(cluster, parse_certificates(text, time.time()) if cas else (), image)


def do(step: TrustedCa, host: HostWithOwnStore) -> str:
    """Apply the step; what it said it would do."""
    view = view_of(host)
    change = step.check(view)
    assert isinstance(change, Change)
    step.apply(view, change)
    assert step.check(view) is None
    return change.summary


def is_trusted(host: HostWithOwnStore, ca: PrivateCa) -> bool:
    """Whether programs of the host take a certificate of that CA's."""
    bundle = host.at("/etc/ssl/certs/ca-certificates.crt")
    context = ssl.create_default_context(cafile=str(bundle))
    found = {ssl.DER_cert_to_PEM_cert(der) for der in context.get_ca_certs(binary_form=True)}
    return ca.pem in found


def test_a_host_trusts_the_ca_until_it_is_another_and_then_none(host: HostWithOwnStore) -> None:
    first, second, third = private_ca("One"), private_ca("Two"), private_ca("Three")
    store = host.at("/usr/local/share/ca-certificates")
    store.chmod(0o2775)
    before = host.picture
    said = do(trusting(first, second), host)
    assert store.stat().st_mode & 0o7777 == 0o2775
    assert said == "trust the CA One, Two, also for Docker at registry.corp:5000"
    assert is_trusted(host, first)
    assert is_trusted(host, second)
    (docker,) = host.at("/etc/docker/certs.d/registry.corp:5000").iterdir()
    assert docker.read_text() == first.pem + second.pem
    assert docker.suffix == ".crt"  # others Docker does not read

    do(trusting(second, third, image="other.corp/vllm:1"), host)
    assert [is_trusted(host, ca) for ca in (first, second, third)] == [False, True, True]
    assert [path.name for path in host.at("/etc/docker/certs.d").iterdir()] == ["other.corp"]

    do(trusting(), host)
    assert host.picture == before
    assert not list(host.at("/etc").rglob("clusterctl*")), "links to nowhere"


def test_clusters_on_one_host_leave_each_other_s_alone(host: HostWithOwnStore) -> None:
    first, second = private_ca("One"), private_ca("Two")
    do(trusting(first, cluster="a"), host)
    do(trusting(second, cluster="a-b"), host)
    assert trusting(first, cluster="a").check(view_of(host)) is None
    do(trusting(cluster="a"), host)
    assert not is_trusted(host, first)
    assert is_trusted(host, second)


def test_a_ca_that_the_host_trusts_already_is_left_to_its_owner(host: HostWithOwnStore) -> None:
    ca = private_ca()
    with host.at("/etc/ssl/certs/ca-certificates.crt").open("a") as bundle:
        bundle.write(ca.pem.replace("\n", "\r\n"))
    assert trusting(ca, image="vllm:1").check(view_of(host)) is None
    do(trusting(ca), host)
    assert not list(host.at("/usr/local/share/ca-certificates").glob("clusterctl*"))


def test_an_update_that_was_cut_short_is_done_again(host: HostWithOwnStore) -> None:
    first = private_ca()
    do(trusting(first), host)
    for file in host.at("/usr/local/share/ca-certificates").glob("clusterctl*"):
        file.unlink()
    for file in host.at("/etc/docker").rglob("clusterctl*"):
        file.unlink()
    host.at(PENDING).touch()
    assert do(trusting(), host) == "update the store of CAs"
    assert not is_trusted(host, first)


def test_openssl_of_the_host_verifies_a_server(host: HostWithOwnStore, tmp_path: Path) -> None:
    """Not our reading of the bundle: the directory of hashes is up to date, too."""
    ca = private_ca()
    issued = ca.issue(tmp_path / "tls", "mirror.corp")
    verify = ["openssl", "verify", "-CApath", "/etc/ssl/certs", str(issued)]
    assert host.run(verify).status != 0
    do(trusting(ca), host)
    assert host.run(verify).ok
    assert subprocess.run(verify, capture_output=True).returncode != 0, "this machine is unchanged"
