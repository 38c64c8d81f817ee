"""How servers outside the cluster are reached: the CA certificates to trust, and the variables of
the hosts' HTTP proxy.

The CA file is read when it is used, not by `load`, so that an expired CA does not keep anyone from
inspecting or stopping a cluster.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterctl.inventory.document import INVENTORY, Problem, file_error, read
from clusterctl.inventory.model import Inventory

LARGEST_CA_FILE = 1 << 20  # Bytes; all CAs of a browser take a quarter of it
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True)
class Certificate:
    """A CA certificate."""

    pem: str  # With a newline at the end
    ends: float  # Seconds since 1970
    subject: str

    @property
    def body(self) -> str:
        """Its base64 without line breaks: tools write PEM in lines of various lengths."""
        return "".join(self.pem.strip().splitlines()[1:-1])


@dataclass(frozen=True)
class Outside:
    """What is needed to reach servers outside the cluster; empty if nothing is."""

    certificates: tuple[Certificate, ...] = ()
    proxy: Mapping[str, str] = field(default_factory=dict)  # Environment variables, for hosts only
    # What Docker must know of `no_proxy`: it reaches the cluster's own hosts for nothing
    no_proxy: tuple[str, ...] = ()

    @property
    def ca(self) -> str:
        """The CA certificates in PEM."""
        return "".join(one.pem for one in self.certificates)


NOTHING = Outside()


def outside_of(inventory: Inventory) -> Outside:
    """Return the settings of `packages.ca` and `packages.proxy`. Raises InventoryError, with the
    place in the file, for an unusable CA file."""
    proxy = inventory.packages.proxy
    without = proxy.no_proxy if proxy else ()
    return Outside(_certificates(inventory), proxy_variables(inventory), without)


def proxy_variables(inventory: Inventory) -> dict[str, str]:
    """Return the variables of the hosts' HTTP proxy. `no_proxy` names the cluster's hosts one by
    one, and its network too: not every program supports networks."""
    proxy = inventory.packages.proxy
    if proxy is None:
        return {}
    own = ["localhost", "127.0.0.1", "::1"]
    for host in inventory.hosts:
        own += [host.name, host.address, *([host.node_ip] if host.node_ip else [])]
    own += [str(inventory.network.subnet)] if inventory.network.subnet else []
    without = ",".join(dict.fromkeys([*own, *proxy.no_proxy]))
    named = {"http_proxy": proxy.http, "https_proxy": proxy.https, "no_proxy": without}
    return {name: value.rstrip("/") for name, value in named.items() if value}


def _certificates(inventory: Inventory) -> tuple[Certificate, ...]:
    path = inventory.packages.ca
    if path is None:
        return ()
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_CA_FILE + 1).decode(errors="replace")
        found = parse_certificates(text, time.time())
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except ValueError as error:
        problem = str(error)
    else:
        return found
    position = read(inventory.source).at(("packages", "ca"))
    raise file_error(
        INVENTORY, inventory.source, [Problem(position, f"`packages.ca`: {path} {problem}")]
    )


def parse_certificates(text: str, now: float) -> tuple[Certificate, ...]:
    """Return the CA certificates in a PEM file. Raises ValueError, saying what is wrong, if the
    file contains anything but CA certificates that are valid at `now`."""
    if len(text) > LARGEST_CA_FILE:
        raise ValueError(f"is larger than {LARGEST_CA_FILE >> 20} MiB")
    if re.search(r"-----BEGIN [A-Z ]*PRIVATE KEY-----", text):
        raise ValueError("holds a private key, which must not leave the CA: keep the certificate")
    blocks = _CERTIFICATE.findall(text)
    if not blocks:
        raise ValueError(
            "is not PEM: it has no `-----BEGIN CERTIFICATE-----`; convert a DER file with: "
            "openssl x509 -inform der -in FILE -out ca.pem"
        )
    return tuple({one.pem: one for one in (_certificate(each, now) for each in blocks)}.values())


def _certificate(block: str, now: float) -> Certificate:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=block)
        der = ssl.PEM_cert_to_DER_cert(block)
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(f"has a damaged certificate: {error}") from None
    found = context.get_ca_certs()  # CAs only
    if not found:
        raise ValueError(
            "has a certificate that is not a CA's, so it would not be trusted as an issuer"
        )
    said: Any = found[0]
    names = {key: value for part in said["subject"] for key, value in part}
    subject = str(names.get("commonName") or ", ".join(map(str, names.values())))
    begins, ends = (ssl.cert_time_to_seconds(str(said[key])) for key in ("notBefore", "notAfter"))
    for wrong, when, words in ((ends < now, ends, "expired on"), (begins > now, begins, "begins")):
        if wrong:
            date = time.strftime("%Y-%m-%d", time.gmtime(when))
            raise ValueError(f"has the certificate of {subject}, which {words} {date}")
    return Certificate(ssl.DER_cert_to_PEM_cert(der), ends, subject)
