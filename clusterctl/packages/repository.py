"""Package repositories to add to hosts, and the keys that sign them: downloaded to this machine,
and verified by their fingerprints.

URLs and layouts: NVIDIA's installation guide for the container toolkit, and Docker's installation
pages for Debian, Ubuntu, RHEL, CentOS and Fedora.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

from clusterctl import deadlines
from clusterctl.errors import RequirementsNotMet, StepFailed, UsageError
from clusterctl.packages.target import DOCKER_REPOSITORY, PackageSystem

NVIDIA_URL = "https://nvidia.github.io/libnvidia-container"
DOCKER_URL = "https://download.docker.com/linux"

NVIDIA_KEYS = frozenset({"C95B321B61E88C1809C4F759DDCAE044F796ECB0"})
# The subkey signs the lists.
DOCKER_APT_KEYS = frozenset(
    {"9DC858229FC7DD38854AE2D88D81803C0EBFCD88", "D3306A018370199E527AE7997EA0A9C3F273FCD8"}
)
# Fingerprints of the keys that sign today's repositories
DOCKER_RPM_KEYS = frozenset({"060A61C51B558A7F742B77AAC52FEB6B621E9F35"})

APT_KEYRINGS = "/etc/apt/keyrings"
RPM_KEYS = "/etc/pki/rpm-gpg"


@dataclass(frozen=True)
class Repository:
    """A signed repository, for one release of a system."""

    name: str  # Used in the names of its files on hosts
    url: str
    key_url: str
    # The key must have one of these, and its subkeys too; empty for a key given by the user
    fingerprints: frozenset[str]
    suite: str = ""  # apt: `bookworm stable`, or `/` for a repository without releases
    signed_packages: bool = True  # dnf: the packages are signed, not only their lists
    key_file: Path | None = None  # The user's own key, on the operator's machine


def nvidia(target: PackageSystem, url: str | None = None, key: Path | None = None) -> Repository:
    """Return the repository of NVIDIA's container toolkit, the same for all releases."""
    base = (url or NVIDIA_URL).rstrip("/")
    keys = frozenset[str]() if key else NVIDIA_KEYS
    name = "nvidia-container-toolkit"
    if target.family == "apt":
        return Repository(
            name, f"{base}/stable/deb/$(ARCH)", f"{base}/gpgkey", keys, "/", key_file=key
        )
    return Repository(
        name, f"{base}/stable/rpm/$basearch", f"{base}/gpgkey", keys,
        signed_packages=False, key_file=key,
    )  # fmt: skip


def docker(target: PackageSystem, url: str | None = None, key: Path | None = None) -> Repository:
    """Return the repository of Docker's own packages. Raises RequirementsNotMet, without the host,
    if it has no directory for `target`."""
    base = (url or DOCKER_URL).rstrip("/")
    if not target.known:
        raise RequirementsNotMet(
            f"Docker makes no packages for {target.system} {target.version}, and clusterctl does "
            "not know which release it corresponds to",
            hint="install an engine on it from the system's own packages and start it; or bring "
            "Docker's static archive: docs/offline.md",
        )
    system = DOCKER_REPOSITORY[target.system]
    if target.family == "apt":
        keys = frozenset[str]() if key else DOCKER_APT_KEYS
        return Repository(
            "docker", f"{base}/{system}", f"{base}/{system}/gpg", keys,
            f"{target.codename} stable", key_file=key,
        )  # fmt: skip
    keys = frozenset[str]() if key else DOCKER_RPM_KEYS
    return Repository(
        "docker", f"{base}/{system}/{target.version}/$basearch/stable", f"{base}/{system}/gpg",
        keys, key_file=key,
    )  # fmt: skip


def key_path(repository: Repository, target: PackageSystem) -> str:
    """Return the key's path on hosts. apt reads armored keys only from files that end in .asc."""
    if target.family == "apt":
        return f"{APT_KEYRINGS}/clusterctl-{repository.name}.asc"
    return f"{RPM_KEYS}/RPM-GPG-KEY-clusterctl-{repository.name}"


def source_path(repository: Repository, target: PackageSystem) -> str:
    if target.family == "apt":
        return f"/etc/apt/sources.list.d/clusterctl-{repository.name}.list"
    return f"/etc/yum.repos.d/clusterctl-{repository.name}.repo"


def source_text(repository: Repository, target: PackageSystem) -> str:
    """Return the content of `source_path`; the key is trusted for this repository only."""
    key = key_path(repository, target)
    if target.family == "apt":
        line = f"deb [signed-by={key}] {repository.url} {repository.suite}"
        return f"# Written by clusterctl.\n{line}\n"
    packages, lists = (1, 0) if repository.signed_packages else (0, 1)
    return (
        f"# Written by clusterctl.\n[clusterctl-{repository.name}]\nname={repository.name}\n"
        f"baseurl={repository.url}\nenabled=1\ngpgcheck={packages}\nrepo_gpgcheck={lists}\n"
        f"gpgkey=file://{key}\n"
    )


LARGEST = 1 << 20

# By repository: the fix if its key cannot be downloaded
_INSTEAD = {
    "docker": "name a mirror: --docker URL",
    "nvidia-container-toolkit": "name a mirror: --nvidia URL; or leave it out: --engine-only",
}


def vendor_key(repository: Repository) -> bytes:
    """Return the signing key: the user's, or the vendor's after verifying its fingerprint.

    Raises UsageError for a different or malformed key, StepFailed if it cannot be downloaded.
    """
    file, url = repository.key_file, repository.key_url
    if url.startswith("file:/") and not url.startswith("file://"):
        url = f"file://{url.removeprefix('file:')}"  # apt's `file:/path`
    if file:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise UsageError(f"the key {file} cannot be read: {error.strerror}") from error
    else:
        try:
            with urllib.request.urlopen(url, timeout=deadlines.KEY_DOWNLOAD) as answer:  # noqa: S310 - the user's own words
                data = bytes(answer.read(LARGEST))
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(error, HTTPError):
                error.close()  # It is an open response
            raise StepFailed(
                f"the signing key {url} cannot be downloaded here: {reason}",
                hint="run it on a machine that reaches that address, or "
                f"{_INSTEAD[repository.name]}",
            ) from error
    try:
        return pinned(repository, data)
    except OtherKey as error:
        raise UsageError(
            f"{repository.key_url} returned a different key than {repository.name}'s: {error}",
            hint="for your own mirror, name its key: --nvidia-key FILE, --docker-key FILE",
        ) from error
    except ValueError as error:
        raise UsageError(f"{file or repository.key_url} is not a signing key: {error}") from error


class OtherKey(ValueError):
    """The data has a different key than the pinned one, or an additional one."""


def pinned(repository: Repository, data: bytes) -> bytes:
    """Return the key to trust for the repository: for a vendor's, only the verified packets,
    armored again; the user's own unchanged.

    Raises OtherKey unless a vendor's has exactly one primary key, the pinned one; and ValueError if
    `data` contains no key.
    """
    packets = _key_packets(data)
    found = [_fingerprint(body) for kind, body, _ in packets if kind == _PUBLIC_KEY]
    if repository.key_file:
        return data
    if len(found) != 1 or found[0] not in repository.fingerprints:
        raise OtherKey(f"its fingerprint is {', '.join(sorted(found))}")
    return _armored(b"".join(_known(repository, packets)))


def _known(repository: Repository, packets: list[tuple[int, bytes, bytes]]) -> Iterator[bytes]:
    """Yield the packets except unpinned subkeys and their signatures: the file's author may have
    added subkeys, and not every rpm checks their binding (CVE-2021-3521)."""
    pinned_one = True
    for kind, body, raw in packets:
        if kind != _SIGNATURE:
            pinned_one = kind != _SUBKEY or _fingerprint(body) in repository.fingerprints
        if pinned_one:
            yield raw


_ARMOR = re.compile(
    rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(?:[^\r\n]+\r?\n)*\r?\n(.*?)\r?\n-----END",
    re.DOTALL,
)
_PUBLIC_KEY = 6  # Packet type of a primary key
_SIGNATURE, _SUBKEY = 2, 14
_OF_A_KEY = frozenset({_PUBLIC_KEY, _SIGNATURE, _SUBKEY, 13, 17})  # User IDs and attributes


def _key_packets(data: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return type, body and bytes of each packet of a public key, armored or not. Raises ValueError
    if there is no primary key, or a packet outside a key."""
    if blocks := _ARMOR.findall(data):
        try:
            # The last line of a block may be `=` and a CRC of 24 bits.
            data = b"".join(
                base64.b64decode(re.sub(rb"^=[^=]{4}$", b"", block, flags=re.MULTILINE))
                for block in (block.replace(b"\r", b"") for block in blocks)
            )
        except binascii.Error as error:
            raise ValueError(f"a damaged OpenPGP key: {error}") from None
    packets = list(_packets(data))
    if not packets or packets[0][0] != _PUBLIC_KEY:
        raise ValueError("no OpenPGP public key in it")
    if other := {kind for kind, _, _ in packets} - _OF_A_KEY:
        raise ValueError(f"an OpenPGP packet of type {min(other)}, which belongs to no public key")
    return packets


def _fingerprint(body: bytes) -> str:
    """Return the fingerprint of a version 4 key as 40 upper-case hex digits; for another version,
    that version (RFC 9580, 5.5.4)."""
    if body[:1] != b"\x04" or len(body) >= 2**16:
        return f"that of a key of version {body[:1].hex() or 'none'}"
    return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()  # noqa: S324 - RFC 9580


def _armored(packets: bytes) -> bytes:
    """Return the packets with ASCII armor and its CRC, which rpm requires (RFC 9580, 6)."""
    crc = 0xB704CE
    for byte in packets:
        crc ^= byte << 16
        for _ in range(8):
            crc = (crc << 1) ^ (0x864CFB if crc & 0x800000 else 0)
        crc &= 0xFFFFFF
    text = base64.b64encode(packets)
    return b"\n".join(
        (
            b"-----BEGIN PGP PUBLIC KEY BLOCK-----",
            b"",
            *(text[at : at + 64] for at in range(0, len(text), 64)),
            b"=" + base64.b64encode(crc.to_bytes(3, "big")),
            b"-----END PGP PUBLIC KEY BLOCK-----",
            b"",
        )
    )


def _packets(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield type, body and bytes of each packet (RFC 9580, 4.2). Raises ValueError."""
    position = 0
    while position < len(data):
        start, first, position = position, data[position], position + 1
        if not first & 0x80:
            raise ValueError("not OpenPGP data")
        if first & 0x40:
            kind = first & 0x3F
            octet = data[position] if position < len(data) else 255
            if octet < 192:
                length, position = octet, position + 1
            elif octet < 224:
                length = (
                    ((octet - 192) << 8) + int.from_bytes(data[position + 1 : position + 2]) + 192
                )
                position += 2
            elif octet == 255:
                length = int.from_bytes(data[position + 1 : position + 5], "big")
                position += 5
            else:
                raise ValueError("a packet of unknown length")
        else:
            kind = (first >> 2) & 0x0F
            width = {0: 1, 1: 2, 2: 4}.get(first & 3)
            if width is None:
                raise ValueError("a packet without length")
            length = int.from_bytes(data[position : position + width], "big")
            position += width
        if position + length > len(data):
            raise ValueError("a damaged OpenPGP key: its last packet is cut short")
        yield kind, data[position : position + length], data[start : position + length]
        position += length
