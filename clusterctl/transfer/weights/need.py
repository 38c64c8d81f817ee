"""What one host needs of a model: what it has, what can be linked, what has to be brought. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from clusterctl.containers.meter import gib
from clusterctl.errors import RequirementsNotMet
from clusterctl.transfer.content import Blob
from clusterctl.transfer.weights.manifest import Manifest
from clusterctl.transfer.weights.on_host import INCOMING, SLASH, HostModels, model_staged_in

# complete: every file is there as the manifest says. partial: the same model, and files of it are
# gone or changed. unproven: files are there without a manifest. differs: another model or version
# by that name.
State = Literal["complete", "absent", "partial", "unproven", "differs"]

# Bytes to be left free on a host's disk: directories, manifests, the host's own logs.
HEADROOM = 64 << 20


@dataclass(frozen=True)
class Need:
    """For one host and one manifest."""

    state: State
    # sha256 of what the host has in some model already: its absolute path.
    linked: Mapping[str, str]
    # Absolute path of a file without a hash, of the size that is wanted: the sha256 that it has if
    # it is the one.
    unproven: Mapping[str, str]
    # All else, each content once. Less, if `unproven` turn out to be right.
    brought: tuple[Blob, ...]
    # What ended runs left of a model that is complete: names of staging directories, and bytes. Of
    # others, the run that makes them complete takes it away.
    leftovers: Mapping[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(blob.size for blob in self.brought)

    @property
    def least(self) -> int:
        """Bytes to bring if all that is unproven is right."""
        doubtful = set(self.unproven.values())
        return sum(blob.size for blob in self.brought if blob.hex not in doubtful)

    def had(self, paths: Mapping[str, str]) -> Need:
        """The same, for a host that has further contents: by sha256, their absolute paths."""
        wanted = {blob.hex for blob in self.brought}
        more = {digest: path for digest, path in paths.items() if digest in wanted}
        rest = tuple(blob for blob in self.brought if blob.hex not in more)
        return Need(self.state, {**self.linked, **more}, self.unproven, rest)

    def proven(self, hashes: Mapping[str, str]) -> Need:
        """The same after the host hashed its unproven files: `hashes` by absolute path."""
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
        """Whether the host may be left alone."""
        return self.complete and not self.leftovers


def need(manifest: Manifest, host: HostModels) -> Need:
    """What `host` needs so that it has `manifest` under its name."""
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
    """The directory below INCOMING that the tree grows in; the same one in every attempt."""
    return f"{manifest.name.replace('/', SLASH)}.{manifest.identity[:12]}"


def staging_path(manifest: Manifest, directory: str) -> str:
    """The staging directory, absolute."""
    return f"{directory}/{INCOMING}/{staging(manifest)}"


def no_room(manifest: Manifest, found: Need, host: HostModels) -> RequirementsNotMet | None:
    """Why it does not fit on the disk; None when it fits. What an earlier attempt left counts.
    A directory that is replaced is removed only after the new one is complete."""
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
