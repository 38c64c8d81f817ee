"""The digest of an image's name in its registry, recorded on each host that got the image from
there, so that it can be shown, and compared between hosts and with the registry."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.containers.reference import tagged
from clusterctl.engine.step import HostView
from clusterctl.errors import MALFORMED
from clusterctl.node.documents import PRIVATE
from clusterctl.steps.files import make_private
from clusterctl.transport.base import Transport

DIGESTS = f"{PRIVATE}/digests"  # One file per name of an image

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class DigestRecord:
    """What a name stood for when its image last came from the registry."""

    digest: str  # Of the manifest or index: NAME@DIGEST pins it
    layers: tuple[str, ...]  # Diff IDs of the image that came

    def of(self, layers: Sequence[str]) -> str | None:
        """Return the digest if the image with `layers` is the recorded one; None if another image
        has taken its name since, such as one from an archive."""
        return self.digest if self.layers == tuple(layers) else None


def record_file(reference: str) -> str:
    """Return the name's file on a host; a digest in `reference` makes no difference."""
    return f"{DIGESTS}/{hashlib.sha256(tagged(reference).encode()).hexdigest()}.json"


def parse_record(data: bytes | None) -> DigestRecord | None:
    """Parse the file; None if it is missing or not a record."""
    try:
        read = json.loads(data or b"")
        digest, layers = str(read["digest"]), tuple(map(str, read["layers"]))
    except MALFORMED:
        return None
    return DigestRecord(digest, layers) if _DIGEST.fullmatch(digest) else None


def read_record(transport: Transport, reference: str) -> DigestRecord | None:
    return parse_record(transport.read_file(record_file(reference)))


def write_record(view: HostView, reference: str, record: DigestRecord) -> None:
    """Record the digest. Call it before the image gets its name: until then, no image of that name
    matches the record, which therefore claims nothing."""
    make_private(view, DIGESTS)
    text = {"image": tagged(reference), "digest": record.digest, "layers": record.layers}
    data = json.dumps(text, indent=1).encode()
    view.transport.put(data, record_file(reference), mode=0o600, sudo=True)
