"""Reading and judging known_hosts; OpenSSH's own ssh-keygen is the judge of names."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.transport import known_hosts

ED = base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0 " + b"k" * 32).decode()
OTHER = base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0 " + b"o" * 32).decode()


def entries(tmp_path: Path, text: str) -> list[known_hosts.Entry]:
    file = tmp_path / "known_hosts"
    file.write_text(text)
    return known_hosts.read([file])


@pytest.mark.parametrize(
    ("pattern", "name", "covered"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.10", False),
        ("10.0.0.*", "10.0.0.7", True),
        ("10.0.0.?", "10.0.0.77", False),
        ("gpu1,gpu2", "gpu2", True),
        ("*.example,!bad.example", "good.example", True),
        ("*.example,!bad.example", "bad.example", False),
        ("[10.0.0.1]:2222", "[10.0.0.1]:2222", True),
        ("[10.0.0.1]:2222", "10.0.0.1", False),
        ("[::1]:2222", "[::1]:2222", True),
        ("GPU1", "gpu1", True),
    ],
)
def test_names_as_openssh_takes_them(
    tmp_path: Path, pattern: str, name: str, covered: bool
) -> None:
    (entry,) = entries(tmp_path, f"{pattern} ssh-ed25519 {ED}\n")

    assert entry.names(name) is covered
    if shutil.which("ssh-keygen"):
        found = subprocess.run(
            ["ssh-keygen", "-F", name, "-f", tmp_path / "known_hosts"], capture_output=True
        )
        assert (found.returncode == 0) is covered, "ssh-keygen sees it otherwise"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "unknown"),
        ("gpu2 ssh-ed25519 {ED}", "unknown"),
        ("gpu1 ssh-ed25519 {ED}", "known"),
        ("gpu1 ssh-ed25519 {OTHER}", "changed"),
        ("gpu1 ssh-ed25519 {OTHER}\ngpu1 ssh-ed25519 {ED}", "known"),
        ("gpu1 ssh-rsa {OTHER}", "changed"),
        ("@revoked gpu1 ssh-ed25519 {ED}\ngpu1 ssh-ed25519 {ED}", "revoked"),
        ("@revoked gpu1 ssh-ed25519 {OTHER}", "unknown"),
        ("@cert-authority gpu1 ssh-ed25519 {OTHER}", "unknown"),
        ("# gpu1 ssh-ed25519 {ED}", "unknown"),
        ("gpu1 ssh-ed25519", "unknown"),
        ("gpu1 ssh-ed25519 not-base64!", "unknown"),
        ("gpu1\tssh-ed25519   {ED}  a comment", "known"),
    ],
)
def test_verdicts(tmp_path: Path, text: str, kind: str) -> None:
    found = entries(tmp_path, text.format(ED=ED, OTHER=OTHER))

    assert known_hosts.judge(found, "gpu1", "ssh-ed25519", ED).kind == kind


def test_a_bare_name_vouches_for_a_port_but_does_not_speak_against_it(tmp_path: Path) -> None:
    """As OpenSSH does: another sshd on another port may well have another key."""
    found = entries(tmp_path, f"gpu1 ssh-ed25519 {ED}\n")

    assert known_hosts.judge(found, "[gpu1]:2222", "ssh-ed25519", ED).kind == "known"
    assert known_hosts.judge(found, "[gpu1]:2222", "ssh-ed25519", OTHER).kind == "unknown"


def test_a_verdict_names_the_line(tmp_path: Path) -> None:
    found = entries(tmp_path, f"# one\n\ngpu1 ssh-rsa {OTHER}\ngpu1 ssh-ed25519 {OTHER}\n")

    verdict = known_hosts.judge(found, "gpu1", "ssh-ed25519", ED)

    assert verdict.entry is not None
    assert (verdict.entry.line, verdict.entry.file) == (4, tmp_path / "known_hosts")


def test_files_that_are_not_there_are_empty(tmp_path: Path) -> None:
    assert known_hosts.read([tmp_path / "absent", tmp_path]) == []


def test_types_known_for_a_host(tmp_path: Path) -> None:
    text = f"gpu1 ecdsa-sha2-nistp256 {ED}\n[gpu1]:2222 ssh-rsa {ED}\n@revoked gpu1 x {ED}\n"
    found = entries(tmp_path, text)

    assert known_hosts.key_types(found, "gpu1") == ["ecdsa-sha2-nistp256"]
    assert known_hosts.key_types(found, "[gpu1]:2222") == ["ecdsa-sha2-nistp256", "ssh-rsa"]


@settings(deadline=None)
@given(st.from_regex(r"[a-z0-9.:-]{1,40}", fullmatch=True), st.integers(1, 65535), st.booleans())
def test_what_is_added_is_known(
    tmp_path_factory: pytest.TempPathFactory, address: str, port: int, hashed: bool
) -> None:
    file = tmp_path_factory.mktemp("known") / ".ssh" / "known_hosts"
    name = known_hosts.host_name(address, port)

    known_hosts.OfferedKey(file, name, "ssh-ed25519", ED, hashed).remember()

    found = known_hosts.read([file])
    assert known_hosts.judge(found, name, "ssh-ed25519", ED).kind == "known"
    assert known_hosts.judge(found, name, "ssh-ed25519", OTHER).kind == "changed"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text().startswith("|1|") is hashed


def test_the_fingerprint_is_the_one_that_ssh_keygen_prints(tmp_path: Path) -> None:
    if not shutil.which("ssh-keygen"):
        pytest.skip("ssh-keygen is not installed")
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    printed = subprocess.run(
        ["ssh-keygen", "-lf", key], capture_output=True, text=True, check=True
    ).stdout

    public = Path(f"{key}.pub").read_text().split()[1]
    assert known_hosts.fingerprint(public) in printed.split()
