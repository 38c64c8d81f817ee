"""Host certificates that no ssh-keygen makes; tests/contract has those of a real one."""

from __future__ import annotations

import paramiko
from paramiko.message import Message

from clusterctl.transport.host_key import check_certificate


def certificate(after: int, before: int) -> bytes:
    """A certificate of gpu1 that its own new CA signed."""
    ca = paramiko.ECDSAKey.generate()
    names, blob = Message(), Message()
    names.add_string("gpu1")
    blob.add_string("ssh-ed25519-cert-v01@openssh.com")
    blob.add_string(b"n" * 32)
    blob.add_string(b"k" * 32)
    blob.add_int64(1)
    blob.add_int(2)
    blob.add_string("id")
    blob.add_string(names.asbytes())
    blob.add_int64(after)
    blob.add_int64(before)
    for _ in ("critical options", "extensions", "reserved"):
        blob.add_string(b"")
    blob.add_string(ca.asbytes())
    signature = ca.sign_ssh_data(blob.asbytes())
    blob.add_string(signature.asbytes())
    return blob.asbytes()


def test_a_certificate_for_ever_is_valid() -> None:
    assert check_certificate(certificate(0, 2**64 - 1), "gpu1", 1.8e9).problem is None


def test_a_certificate_from_a_time_beyond_the_calendar_is_refused() -> None:
    found = check_certificate(certificate(2**64 - 1, 2**64 - 1), "gpu1", 1.8e9)
    assert found.problem == "it is valid only from 9999-12-31 23:59:59 UTC"
