"""Find the model for `model push`: a directory on this machine or on a host."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

from clusterctl import deadlines
from clusterctl.containers.meter import Meter
from clusterctl.engine.events import EventSink, StepFinished, StepProgress
from clusterctl.engine.step import HostView
from clusterctl.errors import RequirementsNotMet, StepFailed, UsageError, raise_all
from clusterctl.models.name import resolve
from clusterctl.models.probe import look_for
from clusterctl.transfer.chain_link import PIECE
from clusterctl.transfer.weights.directory import (
    FilesSource,
    faults,
    is_passed_over,
    manifest_of,
    read_tree,
    unhashed,
)
from clusterctl.transfer.weights.hashing import HashCache, hashes
from clusterctl.transfer.weights.manifest import (
    FILE_NAME,
    Manifest,
    WeightFile,
    WeightLink,
    dump,
    in_order,
)
from clusterctl.transfer.weights.on_host import HostTree, look_at_models, run_as_root, script
from clusterctl.transfer.weights.receiver import Supply
from clusterctl.units import GIB

MOST_PARTS = 2  # Parts of a name: ORGANISATION/NAME


def require_name(name: str) -> None:
    """Raise UsageError unless `name` is a relative path that stays inside the models directory."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith(("/", ".")) or ".." in parts or len(parts) > MOST_PARTS:
        raise UsageError(
            f"--name {name!r} is not a valid name of a model directory",
            hint="use NAME or ORGANISATION/NAME, as for `serve`",
        )


def of_directory(
    directory: Path, name: str | None, sink: EventSink, *, whole: bool = True
) -> Supply:
    """Read a directory on this machine, and hash the files without a cached hash.

    Raises UsageError and RequirementsNotMet with all reasons why it is not a model, unless it is an
    adapter and not a `whole` model.
    """
    tree = read_tree(directory, name)
    if whole:
        raise_all(faults(tree))
    cache = HashCache()
    meter = Meter(
        lambda far: sink(StepProgress("here", "hash", f"{tree.name}: {far} hashed")),
        unhashed(tree, cache),
    )
    manifest = manifest_of(tree, cache=cache, say=meter.reached)
    sink(StepFinished("here", "hash", "unchanged", 0.0))
    source = FilesSource(tree, manifest)
    return Supply(manifest, "here", source, trouble=source.changes)


def of_host(asked: str, models: str, view: HostView, name: str | None, sink: EventSink) -> Supply:
    """Find a model on a host, and hash it if it has no valid manifest. `asked`: a directory's name,
    a path, or a name of the catalogue. Raises RequirementsNotMet if it is not there."""
    candidates = [f"{models}/{asked}"]
    with suppress(UsageError):  # any directory may be named
        candidates += resolve(asked, models).candidates
    for path in map(PurePosixPath, candidates):
        directory = models if path.is_relative_to(models) else str(path.parent)
        found = look_at_models(view.transport, directory)
        if tree := found.tree(str(path.relative_to(directory))):
            break
    else:
        host = view.host.name
        raise RequirementsNotMet(f"{asked} is not on {host}", hint="clusterctl model ls", host=host)
    manifest = tree.manifest
    if manifest is None or tree.lacking:
        text = f"hashing {tree.path} on it: {tree.size / GIB:.1f} GiB"
        sink(StepProgress(view.host.name, "hash", text))
        manifest = _hashed(view, directory, tree, sink)
        sink(StepFinished(view.host.name, "hash", "unchanged", 0.0))
    # The name is the user's, not the host's: under another one it would replace another model.
    wanted = replace(manifest, name=name or tree.path)
    return Supply.held_by(view, wanted, f"{directory}/{tree.path}")


def _hashed(view: HostView, directory: str, tree: HostTree, sink: EventSink) -> Manifest:
    """Hash the tree on the host, and write its manifest to it. Raises RequirementsNotMet for an
    incomplete model, StepFailed for a file that changes while it is hashed."""
    path = f"{directory}/{tree.path}"
    whole = next(iter(look_for(view.transport, [path])), None)
    if whole is None or not (whole.complete or whole.random_weights):
        lacking = ", ".join(whole.missing[:3]) if whole and whole.missing else "weights"
        raise RequirementsNotMet(
            f"{path} is not a complete model: it lacks {lacking}", host=view.host.name
        )
    kept = {p: seen for p, seen in tree.files.items() if not is_passed_over(p)}
    found = hashes(
        view.transport,
        [f"{path}/{p}" for p in kept],
        sum(seen.size for seen in kept.values()),
        piece_size=PIECE,
        say=lambda far: sink(StepProgress(view.host.name, "hash", f"{tree.path}: {far}")),
    )
    again = look_at_models(view.transport, directory).tree(tree.path)
    files = []
    for p, seen in kept.items():
        hashed = found.get(f"{path}/{p}")
        if hashed is None:
            raise StepFailed(
                f"{path}/{p} cannot be read, or only through another user's link",
                host=view.host.name,
                hint=f"clusterctl exec --limit {view.host.name} -- ls -l {path}",
            )
        if again is None or again.files.get(p) != seen:
            raise StepFailed(
                f"{path}/{p} changed while it was read",
                host=view.host.name,
                hint="wait until nothing writes to it, then run the same command again",
            )
        files.append(WeightFile(p, seen.size, 0o644, hashed.sha256, hashed.chunks))
    links = (WeightLink(p, target) for p, target in sorted(tree.links.items()))
    complete = tuple(link for link in links if link.leads_to in kept)
    try:
        manifest = Manifest(tree.path, in_order(files), complete)
    except ValueError as error:
        raise StepFailed(f"{path} cannot be sent: {error}", host=view.host.name) from error
    argv, lines = (*script("seal"), path), dump(manifest).splitlines()
    run_as_root(
        view.transport,
        argv,
        doing=f"writing {path}/{FILE_NAME}",
        timeout=deadlines.HELD_KEEP,
        lines=lines,
    )
    return manifest
