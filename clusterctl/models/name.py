"""Resolve the user's name for a model: an alias, a Hub id, or a directory on the hosts."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from clusterctl.errors import UsageError
from clusterctl.models.catalogue import EDITIONS, CatalogueEntry, by_alias, by_directory, by_hub_id

_DIRECTORY = re.compile(r"^[A-Za-z0-9][\w.-]*$")
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")

_NEAR = 0.7  # llama-3-8b and gemma-4-31b are alike to 0.57, qwen3 and qwen3-8b to 0.77

LIST_COMMAND = "clusterctl model ls"


@dataclass(frozen=True)
class Model:
    """A model by name. `location` checks whether hosts have it."""

    asked: str  # As the user typed it
    served_name: str  # The `model` in API requests, unless the user chooses another
    candidates: tuple[str, ...]  # Absolute paths where hosts may have it, the most likely first
    hub_id: str | None = None
    entry: CatalogueEntry | None = None


def resolve(name: str, models_dir: str) -> Model:
    """Return the model called `name`, which hosts may have under `models_dir`.

    A name that is not in the catalogue is a directory's, as `model ls` shows it. Raises UsageError
    if it can be none of these.
    """
    if name.startswith("/"):
        path = PurePosixPath(name)
        if not path.name or ".." in path.parts:
            raise UsageError(f"{name} is not the path of a model directory")
        entry = by_directory(path.name)
        hub_id = entry.hub_id if entry else None
        return Model(name, path.name, (str(path),), hub_id=hub_id, entry=entry)
    entry = by_alias(name) or by_hub_id(name)
    if entry is not None:
        served = entry.hub_id if "/" in name else entry.alias
        candidates = hub_candidates(models_dir, entry.hub_id, entry.names)
        return Model(name, served, candidates, hub_id=entry.hub_id, entry=entry)
    if is_hub_id(name):
        return Model(name, name, hub_candidates(models_dir, name), hub_id=name)
    if "/" in name:
        raise UsageError(
            f"{name} is neither a Hub id (organisation/name) nor an absolute path",
            hint="give the absolute path on the hosts: /data/models/NAME",
        )
    if not _DIRECTORY.match(name):
        raise UsageError(
            f"{name!r} is not the name of a model",
            hint=f"{LIST_COMMAND}   or give a Hub id (organisation/name) or an absolute path",
        )
    return Model(name, name, (f"{models_dir.rstrip('/')}/{name}",))


def is_hub_id(name: str) -> bool:
    """Return whether `name` has the form of a Hub id: ORGANISATION/NAME."""
    return _HUB_ID.match(name) is not None


def did_you_mean(name: str) -> str:
    """Return `; did you mean X or Y?` for the nearest names in the catalogue, or ""."""
    names = {alias: entry.alias for entry in EDITIONS for alias in entry.names}
    close = difflib.get_close_matches(name.casefold(), names, n=3, cutoff=_NEAR)
    near = dict.fromkeys(names[alias] for alias in close)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def hub_candidates(models_dir: str, hub_id: str, names: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the usual paths of a Hub model: cloned under its own name, under its organisation,
    under one of `names`, or in a Hugging Face cache (the probe searches its `snapshots`)."""
    organisation, _, directory = hub_id.partition("/")
    cache = f"models--{organisation}--{directory}"
    tails = (directory, hub_id, *names, cache, f"hub/{cache}", f"huggingface/hub/{cache}")
    return tuple(dict.fromkeys(f"{models_dir.rstrip('/')}/{tail}" for tail in tails))
