"""Endpoints of registries: URLs, and the certificates to trust."""

from __future__ import annotations

import ipaddress
import json
import ssl
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from clusterctl.containers.reference import DOCKER_HUB
from clusterctl.errors import RequirementsNotMet

DOCKER = Path("/etc/docker")  # Directory of this machine's Docker: daemon.json, certs.d

LOOPBACK = ("127.0.0.0/8", "::1/128")

_HUB_HOST = "registry-1.docker.io"


@dataclass(frozen=True)
class RegistryEndpoint:
    """The address of a registry. An insecure one may use plain HTTP or an untrusted certificate."""

    registry: str  # As in references: docker.io, registry:5000
    insecure: bool
    # A directory as Docker's: CA files (*.crt), client certificates (*.cert), keys (*.key).
    certificates: Path | None = None
    ca: str = ""  # CA certificates in PEM

    @property
    def loopback(self) -> bool:
        """Whether the registry is on this machine: no proxy is used."""
        host = _host(self.registry)
        return host == "localhost" or _in_networks(host, LOOPBACK)

    @property
    def urls(self) -> tuple[str, ...]:
        """Base URLs, to try in this order."""
        host = _HUB_HOST if self.registry == DOCKER_HUB else self.registry
        return (f"https://{host}", f"http://{host}") if self.insecure else (f"https://{host}",)

    def trust(self) -> ssl.SSLContext:
        """Return a TLS context that trusts the machine's CAs (or SSL_CERT_FILE; certifi's if there
        are none), `ca` and the registry's. Raises RequirementsNotMet for invalid certificate
        files."""
        context = trusting(self.ca)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        directory = self.certificates
        if directory and directory.is_dir():
            try:
                for path in sorted(directory.glob("*.crt")):
                    context.load_verify_locations(path)
                for path in sorted(directory.glob("*.cert")):
                    context.load_cert_chain(path, path.with_suffix(".key"))
            except (OSError, ssl.SSLError) as error:
                raise RequirementsNotMet(
                    f"the registry's certificates in {directory} cannot be used: {error}",
                    hint=f"ls -l {directory}",
                ) from error
        return context


def trusting(ca: str) -> ssl.SSLContext:
    """Return a TLS context that trusts the machine's CAs, certifi's if there are none, and `ca` in
    PEM."""
    context = ssl.create_default_context()
    if not context.get_ca_certs():
        import certifi

        context.load_verify_locations(certifi.where())
    if ca:
        context.load_verify_locations(cadata=ca)
    return context


def find_endpoint(
    registry: str, insecure: Collection[str] = (), docker: Path = DOCKER, ca: str = ""
) -> RegistryEndpoint:
    """Return the endpoint of `registry`. As for Docker, loopback registries are insecure, and those
    in `insecure` or in Docker's configuration, by host:port or by network (10.0.0.0/8)."""
    named = {*insecure, *_of_daemon("insecure-registries", docker)}
    host = _host(registry)
    free = registry in named or host == "localhost" or _in_networks(host, {*named, *LOOPBACK})
    return RegistryEndpoint(registry, free, docker / "certs.d" / registry, ca)


def _host(registry: str) -> str:
    """Return `registry` without its port."""
    return registry.rpartition(":")[0] if ":" in registry.rpartition("]")[2] else registry


def find_mirrors(
    registry: str, docker: Path = DOCKER, ca: str = ""
) -> tuple[RegistryEndpoint, ...]:
    """Return the mirrors of Docker Hub in Docker's configuration; other registries have none."""
    if registry != DOCKER_HUB:
        return ()
    urls = [urlsplit(one) for one in _of_daemon("registry-mirrors", docker)]
    return tuple(
        find_endpoint(url.netloc, [url.netloc] if url.scheme == "http" else (), docker, ca)
        for url in urls
        if url.netloc and "@" not in url.netloc and url.path in ("", "/")
    )


def _of_daemon(key: str, docker: Path) -> tuple[str, ...]:
    """Return a list in daemon.json; empty without the file or the key."""
    read: Any = None
    with suppress(OSError, ValueError):
        read = json.loads((docker / "daemon.json").read_text())
    found = read.get(key) if isinstance(read, dict) else None
    return tuple(str(one) for one in found) if isinstance(found, list) else ()


def _in_networks(host: str, names: Collection[str]) -> bool:
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    for name in names:
        with suppress(ValueError):
            if address in ipaddress.ip_network(name, strict=False):
                return True
    return False
