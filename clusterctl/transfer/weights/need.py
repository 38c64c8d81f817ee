"""Decide what a host needs of a model: files it has, can link, or must receive. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from clusterctl.containers.meter import gib
from clusterctl.errors import RequirementsNotMet
from clusterctl.transfer.content import Blob
from clusterctl.transfer.weights.manifest import Manifest
from clusterctl.transfer.weights.on_host import INCOMING, SLASH, HostModels, model_staged_in

# complete: every file is there as the manifest says. partial: the same model, but files are
# missing or changed. unproven: files without a manifest. differs: another model or version by
# that name.
State = Literal["complete", "absent", "partial", "unproven", "differs"]

# Bytes to be left free on a host's disk: directories, manifests, the host's own logs.
HEADROOM = 64 << 20


@dataclass(frozen=True)
class Need:
    """What one host needs of one manifest."""

    state: State
    # Files that the host already has in some model: sha256 to absolute path.
    linked: Mapping[str, str]
    # Files of the right path and size whose hash is unknown: absolute path to the sha256 that the
    # file must have.
    unproven: Mapping[str, str]
    # All other contents, each once; including those of `unproven`, which may turn out right.
    brought: tuple[Blob, ...]
    # Staging directories that interrupted runs left of a complete model: name to bytes. Those of
    # an incomplete model are removed by the run that completes it.
    leftovers: Mapping[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(blob.size for blob in self.brought)

    @property
    def least(self) -> int:
        """Bytes to send if all `unproven` files turn out to be right."""
        doubtful = set(self.unproven.values())
        return sum(blob.size for blob in self.brought if blob.hex not in doubtful)

    def had(self, paths: Mapping[str, str]) -> Need:
        """Return this need for a host that also has the contents `paths`: sha256 to absolute
        path."""
        wanted = {blob.hex for blob in self.brought}
        more = {digest: path for digest, path in paths.items() if digest in wanted}
        rest = tuple(blob for blob in self.brought if blob.hex not in more)
        return Need(self.state, {**self.linked, **more}, self.unproven, rest)

    def proven(self, hashes: Mapping[str, str]) -> Need:
        """Return this need after the host hashed its unproven files: `hashes` by absolute path."""
        right = {
            digest: path for path, digest in self.unproven.items() if hashes.get(path) == digest
        }
        rest = tuple(blob for blob in self.brought if blob.hex not in right)
        return Need(self.state, {**self.linked, **right}, {}, rest)

    @property
    def complete(self) -> bool:
        return self.state == "complete"

    @property
    def is_noop(self) -> bool:
        """Whether nothing has to be done on the host."""
        return self.complete and not self.leftovers


def need(manifest: Manifest, host: HostModels) -> Need:
    """Return what `host` needs to have `manifest` under its name."""
    there = host.tree(manifest.name)
    state: State = "absent"
    if there is not None:
        if there.manifest is None:
            state = "unproven"
        elif there.manifest.identity != manifest.identity:
            state = "differs"
        else:
            state = "complete" if there.intact else "partial"
    wanted = {file.sha256 for file in manifest.files}
    contents = host.contents(manifest.name)
    linked = {digest: path for digest, path in contents.items() if digest in wanted}
    if state == "complete":
        leftovers = {
            name: size
            for name, size in host.incoming.items()
            if name in host.idle and model_staged_in(name) == manifest.name
        }
        return Need(state, linked, {}, (), leftovers)
    # Files of the directory that may be right: same path, same size, no hash known.
    seen = there.files if there else {}
    unproven = {
        f"{host.directory}/{manifest.name}/{file.path}": file.sha256
        for file in manifest.files
        if file.sha256 not in linked and file.path in seen and seen[file.path].size == file.size
    }
    brought = tuple(blob for blob in manifest.blobs if blob.hex not in linked)
    return Need(state, linked, unproven, brought)


def staging(manifest: Manifest) -> str:
    """Name below INCOMING of the staging directory of `manifest`; the same in every attempt."""
    return f"{manifest.name.replace('/', SLASH)}.{manifest.identity[:12]}"


def staging_path(manifest: Manifest, directory: str) -> str:
    """The staging directory, absolute."""
    return f"{directory}/{INCOMING}/{staging(manifest)}"


def no_room(manifest: Manifest, found: Need, host: HostModels) -> RequirementsNotMet | None:
    """Return an error if the model does not fit on the disk, else None. Staged bytes of an earlier
    attempt count as present; a replaced directory is removed only after the new one is complete."""
    if found.complete:
        return None
    if host.read_only:
        return RequirementsNotMet(f"{host.read_only} cannot be written to")
    needed = found.least - host.incoming.get(staging(manifest), 0) + HEADROOM
    if needed <= host.free:
        return None
    return RequirementsNotMet(
        f"{manifest.name} needs {gib(needed)} in {host.directory}, and {gib(host.free)} are free",
        hint=f"make room there: du -xh --max-depth=1 {host.directory} | sort -h",
    )
