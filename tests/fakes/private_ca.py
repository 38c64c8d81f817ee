"""A CA of a company's own, and servers with its certificates."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    kind = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())


@dataclass(frozen=True)
class PrivateCa:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def key_pem(self) -> str:
        return _pem_of(self.key).decode()

    def issue(self, directory: Path, *names: str) -> Path:
        """Write the certificate and key of a server with these names and addresses, as server.crt
        and server.key; return the certificate's path."""
        key = ec.generate_private_key(ec.SECP256R1())
        others: list[x509.GeneralName] = []
        for name in names:
            try:
                others.append(x509.IPAddress(ipaddress.ip_address(name)))
            except ValueError:
                others.append(x509.DNSName(name))
        signed = (
            _certificate(names[0], key.public_key(), self.certificate.subject, DAY)
            .add_extension(x509.SubjectAlternativeName(others), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "server.crt"
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        path.with_suffix(".key").write_bytes(_pem_of(key))
        return path

    def server_context(self, directory: Path, *names: str) -> ssl.SSLContext:
        path = self.issue(directory, *names)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path, path.with_suffix(".key"))
        return context


def _certificate(
    name: str, public: ec.EllipticCurvePublicKey, issuer: x509.Name, lasts: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + min(lasts, timedelta()) - DAY)
        .not_valid_after(now + lasts)
    )


def private_ca(name: str = "Example Corp Root", *, lasts: timedelta = DAY) -> PrivateCa:
    """Make a CA; one that has expired if `lasts` is negative."""
    key = ec.generate_private_key(ec.SECP256R1())
    made = (
        _certificate(name, key.public_key(), _named(name), lasts)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return PrivateCa(key, made)
