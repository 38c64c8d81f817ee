"""An image in a registry, as a source: blobs are fetched when someone asks for them."""

from __future__ import annotations

from clusterctl.containers.driver import Say
from clusterctl.distribution.blob_store import BlobStore
from clusterctl.distribution.location import LocalImage
from clusterctl.transport.credentials import Ask, nobody


def registry_image(
    reference: str,
    platform: str,
    store: BlobStore,
    *,
    say: Say,
    ask: Ask = nobody,
    insecure: frozenset[str] = frozenset(),
) -> LocalImage:
    """The image that `reference` names, for `platform` (linux/amd64); only the manifest and
    the config are fetched here.

    A blob is fetched into the store by the first `open` of it, and read as it arrives; at most
    4 arrive at a time. `ask` gets user name and password where the registry wants a login that
    no file has. `insecure` names registries (host:port) that are reached without TLS, beside
    loopback ones and those that Docker on this machine calls so.

    Raises StepFailed and RequirementsNotMet (login, platform), with what to do.
    """
    raise NotImplementedError(reference, platform, store, say, ask, insecure)
