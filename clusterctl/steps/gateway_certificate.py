"""Step for the gateway's certificate on the head: the user's, or one made for the cluster.

The private key passes only through memory and stdin, into a file of mode 0600. The gateway's
supervisor notices a changed file and reloads HAProxy without losing a connection.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from clusterctl.engine.step import Change, HostView
from clusterctl.errors import RequirementsNotMet
from clusterctl.inventory.model import GatewayAccess
from clusterctl.node.files import NodePaths
from clusterctl.steps.files import root_script
from clusterctl.steps.secrets import LOOK

# Clients are given this one certificate to trust, so a new one is work for all of them.
MADE_FOR = timedelta(days=3650)
RENEWED_BEFORE = timedelta(days=30)


class GatewayCertificate:
    """Step on the head: the gateway has the certificate that the inventory specifies.

    names   what clients call the gateway: addresses and host names
    """

    title = "gateway certificate"

    def __init__(self, cluster: str, wanted: GatewayAccess, names: Sequence[str]) -> None:
        paths = NodePaths(cluster)
        self._pem, self._public = str(paths.certificate), str(paths.public_certificate)
        self._cluster = cluster
        given = (wanted.certificate, wanted.key)
        self._files = [path for path in given if path]  # Certificate and key, or neither
        self._names = tuple(dict.fromkeys(_as_written(name) for name in names))

    def check(self, view: HostView) -> Change | None:
        """Raises RequirementsNotMet if the user's certificate cannot be used."""
        found = root_script(view, LOOK, self._pem, self._public, doing="looking at certificates")
        if self._files:
            chain, pem = self._given(view)
            seals = [_seal(pem), _seal(chain)]
            if found.splitlines() == seals:
                return None
            [first, *_] = x509.load_pem_x509_certificates(chain)
            return Change(f"write {self._pem}{_described(first, self._names)}")
        why = self._why_made(view, found.splitlines())
        return Change(f"create {self._pem} for {', '.join(self._names)}: {why}") if why else None

    def apply(self, view: HostView, _change: Change) -> None:
        if self.check(view) is None:
            return  # A certificate that was made is not made again
        if self._files:
            chain, pem = self._given(view)
        else:
            chain, pem = made(self._cluster, self._names)
        # The public part first: `check` misses the other one after an interruption.
        view.transport.put(chain, self._public, mode=0o600, sudo=True)
        view.transport.put(pem, self._pem, mode=0o600, sudo=True)

    def _given(self, view: HostView) -> tuple[bytes, bytes]:
        """Return the user's certificates, without and with their key. Raises RequirementsNotMet."""
        try:
            chain, key = (path.read_bytes() for path in self._files)
        except OSError as error:
            raise _unusable(view, error.filename, error.strerror or str(error)) from error
        if problem := problem_of(chain, key, datetime.now(UTC)):
            raise _unusable(view, self._files[0], problem)
        # Of a file that has certificates and the key, the public part without the key.
        found = x509.load_pem_x509_certificates(chain)
        chain = b"".join(each.public_bytes(Encoding.PEM) for each in found)
        private = serialization.load_pem_private_key(key, password=None)
        return chain, chain + private.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )

    def _why_made(self, view: HostView, seals: Sequence[str]) -> str:
        """Return why a certificate has to be made; "" if the head's can stay."""
        pem = view.transport.read_file(self._pem, sudo=True) if "none" not in seals else None
        chain = view.transport.read_file(self._public, sudo=True) if pem else None
        if not pem or not chain:
            return "it has none, and clients use https from then on"
        if seals != [_seal(pem), _seal(chain)]:
            return "its files are readable by others, or changed meanwhile"
        soon = datetime.now(UTC) + RENEWED_BEFORE
        if problem := problem_of(chain, pem, soon):
            return "it expires within 30 days" if "expired" in problem else problem
        [first, *_] = x509.load_pem_x509_certificates(chain)
        missing = [name for name in self._names if name not in names_of(first)]
        if first.issuer != first.subject:
            return "it has one from the inventory"
        return f"it lacks {', '.join(missing)}" if missing else ""


def problem_of(chain: bytes, key: bytes, now: datetime) -> str:
    """Return why the first certificate of a PEM file cannot be used with the key of another; "" if
    it can."""
    try:
        [first, *_] = x509.load_pem_x509_certificates(chain)
    except (ValueError, x509.InvalidVersion):
        return "it has no certificate in PEM format"
    try:
        private = serialization.load_pem_private_key(key, password=None)
    except TypeError:
        return "its key is encrypted, and nobody can enter a password when the gateway starts"
    except (ValueError, UnsupportedAlgorithm):
        return "its key is not a private key in PEM format"
    try:
        fits = private.public_key() == first.public_key()
    except (ValueError, UnsupportedAlgorithm):
        return "its certificate is for a key of an unknown kind"
    if not fits:
        return "its key belongs to a different certificate"
    if now >= first.not_valid_after_utc:
        return f"it expired on {first.not_valid_after_utc:%Y-%m-%d}"
    if now < first.not_valid_before_utc:
        return f"it is not valid before {first.not_valid_before_utc:%Y-%m-%d}"
    return ""


def names_of(certificate: x509.Certificate) -> frozenset[str]:
    """Return the host names and addresses that a certificate is for."""
    try:
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return frozenset()
    names = alternatives.value.get_values_for_type(x509.DNSName)
    addresses = alternatives.value.get_values_for_type(x509.IPAddress)
    return frozenset([*names, *map(str, addresses)])


def _described(certificate: x509.Certificate, wanted: Sequence[str]) -> str:
    """Return until when a certificate is valid, with a warning if it is for different names."""
    names = sorted(names_of(certificate))
    text = f", valid until {certificate.not_valid_after_utc:%Y-%m-%d}, for {', '.join(names)}"
    if not any(name in names or f"*.{name.partition('.')[2]}" in names for name in wanted):
        text += f" (warning: not for {', '.join(wanted)}, so clients must use a different name)"
    return text


def made(cluster: str, names: Sequence[str]) -> tuple[bytes, bytes]:
    """Return a new certificate for these names, without and with its key. It is self-signed:
    clients have to trust it explicitly."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"clusterctl {cluster}"[:64])])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of clients may be late.
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + MADE_FOR)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .sign(key, hashes.SHA256())
    )
    chain = certificate.public_bytes(Encoding.PEM)
    return chain, chain + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _as_written(name: str) -> str:
    """Return a name as `names_of` does: an address has many spellings."""
    try:
        return str(ip_address(name))
    except ValueError:
        return name


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _seal(data: bytes) -> str:
    return f"600 0 {hashlib.sha256(data).hexdigest()}"


def _unusable(view: HostView, path: Path | str, problem: str) -> RequirementsNotMet:
    return RequirementsNotMet(
        f"the gateway cannot use {path}: {problem}",
        host=view.host.name,
        hint="correct gateway.certificate and gateway.key in the inventory, or remove both: then "
        "a certificate is made for the cluster",
    )
