"""Place a model's directory on a host: stage it beside the others, then rename it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import PurePosixPath

from clusterctl import deadlines
from clusterctl.errors import CommandFailed
from clusterctl.transfer.chain_link import FilePlace
from clusterctl.transfer.weights.manifest import Manifest, WeightFile, dump
from clusterctl.transfer.weights.need import Need, staging_path
from clusterctl.transfer.weights.on_host import INCOMING, SHARED_FROM
from clusterctl.transport.base import Transport

# Bytes per second, slower than any disk in use: for the time limits of copying and syncing.
WRITTEN_PER_SECOND = 50e6


def places(manifest: Manifest, directory: str) -> dict[str, FilePlace]:
    """Where to write each content, by digest: its first path in the staging directory."""
    staged = staging_path(manifest, directory)
    return {
        file.blob.digest: FilePlace(f"{staged}/{file.path}", file.chunks, file.mode)
        for file in _firsts(manifest).values()
    }


def settled(manifest: Manifest, directory: str) -> dict[str, str]:
    """Where each content is after `settle`, by digest."""
    final = f"{directory}/{manifest.name}"
    return {file.blob.digest: f"{final}/{file.path}" for file in manifest.files}


def origin(found: Need) -> dict[str, str]:
    """Files that the host already has and can pass on, by digest."""
    return {f"sha256:{digest}": path for digest, path in found.linked.items()}


def prepare(transport: Transport, manifest: Manifest, found: Need, directory: str) -> None:
    """Make the staging directory, and link or copy what the host already has into it.
    Idempotent."""
    directories = {str(PurePosixPath(file.path).parent) for file in manifest.files} - {"."}
    lines = [f"dir\t{path}" for path in sorted(directories)]
    firsts = _firsts(manifest)
    for digest, path in found.linked.items():
        word = "take" if firsts[digest].size >= SHARED_FROM else "copy"
        lines.append(f"{word}\t{path}\t{firsts[digest].path}")
    argv = ("sh", "-c", _script("prepare.sh"), "prepare", staging_path(manifest, directory))
    # A hard link costs nothing; where none is possible, all of these bytes are copied.
    size = sum(firsts[digest].size for digest in found.linked)
    _run(transport, argv, lines, doing=f"beginning {manifest.name}", size=size)


def settle(transport: Transport, manifest: Manifest, directory: str) -> None:
    """Rename the staged tree to the model's directory. Raises CommandFailed when a file is
    incomplete; a former directory of that name is removed only after the new one is in place."""
    final = f"{directory}/{manifest.name}"
    argv = ("sh", "-c", _script("settle.sh"), "settle", staging_path(manifest, directory), final)
    firsts = _firsts(manifest)
    lines = [
        f"same\t{firsts[file.sha256].path}\t{file.path}"
        for file in manifest.files
        if firsts[file.sha256] is not file
    ]
    lines += [f"link\t{link.target}\t{link.path}" for link in manifest.links]
    lines += [f"file\t{file.size}\t{file.path}" for file in manifest.files]
    lines += ["manifest", *dump(manifest).splitlines()]
    _run(transport, argv, lines, doing=f"finishing {manifest.name}", size=manifest.size)


def clear(transport: Transport, found: Need, directory: str) -> None:
    """Remove staging directories of this model that earlier, interrupted runs left behind."""
    paths = [f"{directory}/{INCOMING}/{name}" for name in found.leftovers]
    size = sum(found.leftovers.values())
    _run(transport, ("rm", "-rf", "--", *paths), (), doing="removing what was left", size=size)


MOVE = """\
set -e
[ "$1" = "$2" ] && exit 0
rm -rf "$2"
mv "$1" "$2"
"""


def rename_staged(transport: Transport, staged: str, manifest: Manifest, directory: str) -> None:
    """Rename the directory `staged` to the staging directory of `manifest`."""
    argv = ("sh", "-c", MOVE, "rename", staged, staging_path(manifest, directory))
    _run(transport, argv, (), doing=f"beginning {manifest.name}", size=0)


def _firsts(manifest: Manifest) -> dict[str, WeightFile]:
    """The first file of each content, by sha256."""
    firsts: dict[str, WeightFile] = {}
    for file in manifest.files:
        firsts.setdefault(file.sha256, file)
    return firsts


def _script(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _run(
    transport: Transport, argv: Sequence[str], lines: Iterable[str], *, doing: str, size: int
) -> str:
    text = "".join(f"{line}\n" for line in lines)
    limit = deadlines.PLACING + size / WRITTEN_PER_SECOND
    result = transport.run(argv, stdin=text.encode(), sudo=True, timeout=limit)
    if not result.ok:
        last = result.last_lines()
        why = last.splitlines()[-1] if last else f"status {result.status}"
        raise CommandFailed(f"{doing} failed: {why}", host=transport.host.name, detail=last)
    return result.stdout
