"""Decide what a host needs of a model, stage it next to the others, and rename it once complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Literal

from clusterctl import deadlines
from clusterctl.containers.meter import gib
from clusterctl.errors import RequirementsNotMet
from clusterctl.transfer.chain_link import FilePlace
from clusterctl.transfer.content import Blob
from clusterctl.transfer.weights.hashing import Hashed
from clusterctl.transfer.weights.manifest import Manifest, dump
from clusterctl.transfer.weights.on_host import (
    INCOMING,
    SHARED_FROM,
    SLASH,
    HostModels,
    model_staged_in,
    run_as_root,
    script,
)
from clusterctl.transport.base import Transport

# complete: every file is there as the manifest says. partial: the same model, but files are
# missing or changed. unverified: files without a manifest. differs: another model or version by
# that name.
State = Literal["complete", "absent", "partial", "unverified", "differs"]

# Bytes per second, slower than any disk in use: for the time limits of copying and syncing.
WRITTEN_PER_SECOND = 50e6

# Bytes to be left free on a host's disk: directories, manifests, the host's own logs.
HEADROOM = 64 << 20


@dataclass(frozen=True)
class Need:
    """The contents of a manifest that a host has, and those that it lacks."""

    state: State
    # Files that the host already has in some model: sha256 to absolute path.
    linked: Mapping[str, str]
    # Files of the right path and size whose hash is unknown: absolute path to the sha256 that the
    # file must have.
    unverified: Mapping[str, str]
    # All other contents, each once; including those of `unverified`, which may turn out right.
    brought: tuple[Blob, ...]
    # Staging directories that interrupted runs left of a complete model: name to bytes. Those of
    # an incomplete model are removed by the run that completes it.
    leftovers: Mapping[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(blob.size for blob in self.brought)

    @property
    def least(self) -> int:
        """Bytes to send if all `unverified` files turn out to be correct."""
        doubtful = set(self.unverified.values())
        return sum(blob.size for blob in self.brought if blob.hex not in doubtful)

    @property
    def origin(self) -> dict[str, str]:
        """Files that the host has and can pass on: digest to absolute path."""
        return {f"sha256:{digest}": path for digest, path in self.linked.items()}

    def had(self, paths: Mapping[str, str]) -> Need:
        """Return this need for a host that also has the contents in `paths`: sha256 to absolute
        path."""
        wanted = {blob.hex for blob in self.brought}
        more = {digest: path for digest, path in paths.items() if digest in wanted}
        rest = tuple(blob for blob in self.brought if blob.hex not in more)
        return replace(self, linked={**self.linked, **more}, brought=rest)

    def proven(self, hashes: Mapping[str, Hashed]) -> Need:
        """Return this need after the host hashed its unverified files. `hashes`: by absolute
        path."""
        right = {
            digest: path
            for path, digest in self.unverified.items()
            if path in hashes and hashes[path].sha256 == digest
        }
        return replace(self.had(right), unverified={})

    @property
    def complete(self) -> bool:
        return self.state == "complete"


def need(manifest: Manifest, host: HostModels) -> Need:
    """Compare the models of `host` with `manifest`; return the contents present and missing."""
    there = host.tree(manifest.name)
    state: State = "absent"
    if there is not None:
        if there.manifest is None:
            state = "unverified"
        elif there.manifest.identity != manifest.identity:
            state = "differs"
        else:
            state = "partial" if there.lacking else "complete"
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
    unverified = {
        f"{host.directory}/{manifest.name}/{file.path}": file.sha256
        for file in manifest.files
        if file.sha256 not in linked and file.path in seen and seen[file.path].size == file.size
    }
    brought = tuple(blob for blob in manifest.blobs if blob.hex not in linked)
    return Need(state, linked, unverified, brought)


def no_room(manifest: Manifest, found: Need, host: HostModels) -> RequirementsNotMet | None:
    """Return an error if the model does not fit on the disk, else None. Bytes staged by an earlier
    attempt count as present; a replaced directory is removed only once the new one is complete."""
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


def staging(manifest: Manifest) -> str:
    """Name below INCOMING of the staging directory of `manifest`; the same in every attempt."""
    return f"{manifest.name.replace('/', SLASH)}.{manifest.identity[:12]}"


def staging_path(manifest: Manifest, directory: str) -> str:
    """The staging directory, absolute."""
    return f"{directory}/{INCOMING}/{staging(manifest)}"


def places(manifest: Manifest, directory: str) -> dict[str, FilePlace]:
    """Return the file to write each content to, by digest: its first path in the staging
    directory."""
    staged = staging_path(manifest, directory)
    return {
        file.blob.digest: FilePlace(f"{staged}/{file.path}", file.chunks, file.mode)
        for file in manifest.firsts.values()
    }


def prepare(transport: Transport, manifest: Manifest, found: Need, directory: str) -> None:
    """Create the staging directory, and link or copy into it what the host already has. Idempotent.
    Raises what `run_as_root` raises."""
    directories = {str(PurePosixPath(file.path).parent) for file in manifest.files} - {"."}
    lines = [f"dir\t{path}" for path in sorted(directories)]
    size, firsts = 0, manifest.firsts
    for digest, path in found.linked.items():
        first = firsts[digest]
        word = "take" if first.size >= SHARED_FROM else "copy"
        lines.append(f"{word}\t{path}\t{first.path}")
        size += first.size  # A hard link costs nothing, but it may have to be a copy
    argv = (*script("prepare"), staging_path(manifest, directory))
    _run(transport, argv, doing=f"beginning {manifest.name}", size=size, lines=lines)


def settle(transport: Transport, manifest: Manifest, directory: str) -> None:
    """Rename the staged tree to the model's directory. Raises CommandFailed if a file is
    incomplete. A previous directory of that name is removed only once the new one is in place."""
    firsts = manifest.firsts
    lines = [
        f"same\t{firsts[file.sha256].path}\t{file.path}"
        for file in manifest.files
        if firsts[file.sha256] is not file
    ]
    lines += [f"link\t{link.target}\t{link.path}" for link in manifest.links]
    lines += [f"file\t{file.size}\t{file.path}" for file in manifest.files]
    lines += ["manifest", *dump(manifest).splitlines()]
    final = f"{directory}/{manifest.name}"
    argv = (*script("settle"), staging_path(manifest, directory), final)
    doing = f"finishing {manifest.name}"
    _run(transport, argv, doing=doing, size=manifest.size, lines=lines)


def clear(transport: Transport, found: Need, directory: str) -> None:
    """Remove this model's staging directories from earlier, interrupted runs."""
    argv = (*script("remove"), f"{directory}/{INCOMING}", *found.leftovers)
    size = sum(found.leftovers.values())
    _run(transport, argv, doing="removing leftover staging directories", size=size)


def _run(
    transport: Transport,
    argv: Sequence[str],
    *,
    doing: str,
    size: int = 0,
    lines: Iterable[str] = (),
) -> None:
    """Run a command that copies, syncs or removes `size` bytes. Raises what `run_as_root`
    raises."""
    limit = deadlines.PLACING + size / WRITTEN_PER_SECOND
    run_as_root(transport, argv, doing=doing, timeout=limit, lines=lines)
