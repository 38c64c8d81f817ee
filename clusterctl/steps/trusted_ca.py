"""Step that makes a host trust the inventory's CA certificates: in the system's store, which apt,
dnf, curl and Docker read, and for the image's registry in Docker's own directory, which a running
Docker reads at every pull (the store only once).

A certificate that is already in the store is left alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from clusterctl import deadlines
from clusterctl.containers.reference import DOCKER_HUB, parse
from clusterctl.engine.step import Change, HostView
from clusterctl.errors import RequirementsNotMet
from clusterctl.inventory.outside import Certificate
from clusterctl.node.documents import PRIVATE
from clusterctl.steps.files import make_private, root_script

DOCKER_CERTIFICATES = "/etc/docker/certs.d"

# Exists while the store may lag behind its files.
PENDING = f"{PRIVATE}/ca-pending"

# Arguments: beginning of the names of our files, PENDING. On stdin base64 of each certificate, a
# line each, which are too long for arguments if the file is a system's own bundle; programs write
# certificates in lines of various lengths.
LOOK = f"""\
PATH=$PATH:/usr/sbin:/sbin
debian=/usr/local/share/ca-certificates redhat=/etc/pki/ca-trust/source/anchors
prefix=$1 pending=$2
all=
if command -v update-ca-certificates >/dev/null; then
  echo "store=$debian"; all=/etc/ssl/certs/ca-certificates.crt
elif command -v update-ca-trust >/dev/null; then
  echo "store=$redhat"; all=/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem
fi
while IFS= read -r body; do
  if [ -f "$all" ] && tr -d '\\r\\n' <"$all" | grep -qF -e "$body"
  then echo trusted=yes; else echo trusted=no; fi
done
for file in "$debian/$prefix"* "$redhat/$prefix"* {DOCKER_CERTIFICATES}/*/"$prefix"*; do
  [ ! -f "$file" ] || echo "own=$(sha256sum <"$file" | cut -c1-64) $file"
done
[ ! -e "$pending" ] || echo pending=yes
"""

# The modes of directories that are there, such as the store's own, are left alone.
MAKE = 'umask 022; mkdir -p -- "$@"\n'

# Arguments: PENDING, or nothing if the store stays as it is; files to remove.
UPDATE = f"""\
set -e
PATH=$PATH:/usr/sbin:/sbin
pending=$1; shift
[ -z "$pending" ] || : >"$pending"
fresh=
[ $# -eq 0 ] || fresh=--fresh  # Otherwise links to files that are gone may stay
for file in "$@"; do
  rm -f -- "$file"
  case $file in {DOCKER_CERTIFICATES}/*)
    rmdir -p "${{file%/*}}" 2>/dev/null || true;;
  esac
done
[ -n "$pending" ] || exit 0
if command -v update-ca-certificates >/dev/null; then update-ca-certificates $fresh >/dev/null
elif command -v update-ca-trust >/dev/null; then update-ca-trust extract
fi
rm -f "$pending"
rmdir "${{pending%/*}}" 2>/dev/null || true
"""


@dataclass(frozen=True)
class TrustFound:
    """The parsed output of `LOOK`."""

    store: str  # Directory for certificates to add; empty without a store
    trusted: tuple[bool, ...]  # For each certificate
    own: Mapping[str, str]  # Path of a file of ours to its SHA-256
    pending: bool


def found_in(text: str) -> TrustFound:
    rows = [line.partition("=")[::2] for line in text.splitlines()]
    pairs = [value.partition(" ") for name, value in rows if name == "own"]
    return TrustFound(
        store=next((value for name, value in rows if name == "store"), ""),
        trusted=tuple(value == "yes" for name, value in rows if name == "trusted"),
        own={path: digest for digest, _, path in pairs},
        pending=("pending", "yes") in rows,
    )


class TrustedCa:
    """Step: the host trusts these certificates, and no others that this step added for the
    cluster."""

    title = "CA"

    def __init__(self, cluster: str, certificates: tuple[Certificate, ...], image: str) -> None:
        """`image`: the reference whose registry Docker will trust with them."""
        self._prefix = f"clusterctl.{cluster}."  # Names of clusters have no dot
        self._certificates = certificates
        registry = parse(image).registry
        # Docker reads no certificates of its own directory for Docker Hub.
        self._registry = registry if certificates and registry != DOCKER_HUB else ""

    def check(self, view: HostView) -> Change | None:
        found = self._look(view)
        if self._certificates and not found.store:
            raise RequirementsNotMet(
                "packages.ca needs the package ca-certificates on it, which manages trusted CAs",
                host=view.host.name,
                hint="apt-get install ca-certificates; on RHEL: dnf install ca-certificates",
            )
        lacking = self._lacking(found)
        stale = self._stale(found)
        if not (lacking or stale or found.pending or not all(found.trusted)):
            return None
        if not self._certificates:
            return Change(f"remove {', '.join(stale)}" if stale else "update the store of CAs")
        names = ", ".join(one.subject for one in self._certificates)
        where = f", also for Docker at {self._registry}" if self._registry else ""
        return Change(f"trust the CA {names}{where}")

    def apply(self, view: HostView, _change: Change) -> None:
        found = self._look(view)
        lacking, stale = self._lacking(found), self._stale(found)
        of_docker = all(path.startswith(DOCKER_CERTIFICATES) for path in (*lacking, *stale))
        pending = "" if of_docker and all(found.trusted) and not found.pending else PENDING
        if pending:
            make_private(view, PRIVATE)
        if lacking:
            directories = {path.rpartition("/")[0]: None for path in lacking}
            root_script(view, MAKE, *directories, doing="making directories for certificates")
        for path, text in lacking.items():
            view.transport.put(text.encode(), path, sudo=True)
        doing = "updating the store of CAs"
        root_script(view, UPDATE, pending, *stale, doing=doing, timeout=deadlines.SYSTEMD)

    def _look(self, view: HostView) -> TrustFound:
        bodies = "".join(f"{one.body}\n" for one in self._certificates).encode()
        doing = "looking at trusted CAs"
        return found_in(root_script(view, LOOK, self._prefix, PENDING, doing=doing, stdin=bodies))

    def _wanted(self, found: TrustFound) -> dict[str, str]:
        """Return our files, with their contents. The store's tools expect one certificate per
        file."""
        wanted = {}
        for one, trusted in zip(self._certificates, found.trusted, strict=True):
            digest = hashlib.sha256(one.body.encode()).hexdigest()[:16]
            path = f"{found.store}/{self._prefix}{digest}.crt"
            if path in found.own or not trusted:
                wanted[path] = one.pem
        if self._registry:
            path = f"{DOCKER_CERTIFICATES}/{self._registry}/{self._prefix}crt"
            wanted[path] = "".join(one.pem for one in self._certificates)
        return wanted

    def _lacking(self, found: TrustFound) -> dict[str, str]:
        return {
            path: text
            for path, text in self._wanted(found).items()
            if found.own.get(path) != hashlib.sha256(text.encode()).hexdigest()
        }

    def _stale(self, found: TrustFound) -> list[str]:
        return sorted(found.own.keys() - self._wanted(found).keys())
