"""Find the weights: the path that every host has, or the hosts that lack the model.

vLLM opens the model by the same path on every rank, so all hosts of the cluster must have it there,
with the same config.json.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterctl.errors import ClusterctlError, RequirementsNotMet, UsageError, raise_all
from clusterctl.models.name import Model
from clusterctl.models.probe import ModelDirectory
from clusterctl.models.shape import ModelShape

# By host: the model directories found there, the most likely first.
Findings = Mapping[str, Sequence[ModelDirectory]]

RANDOM_WEIGHTS = "random weights: the model's real shape and size, but meaningless answers"


@dataclass(frozen=True)
class ModelLocation:
    """A model that every host has under the same path."""

    path: str
    shape: ModelShape | None  # None if config.json lacks keys
    weight_bytes: int  # On disk; 0 with random weights
    random_weights: bool  # To be served with `--load-format dummy`
    chat_template: bool
    tokenizer: bool
    config: str | None = None  # Text of config.json

    @property
    def note(self) -> str:
        """A note to the user about the weights; empty if there is none."""
        return RANDOM_WEIGHTS if self.random_weights else ""


def locate(
    model: Model,
    findings: Findings,
    *,
    random_weights: bool = False,
    head: str | None = None,
    models: str = "/data/models",
) -> ModelLocation:
    """Return the path and properties of the model that all hosts in `findings` have.

    With `random_weights` the user asked for `--load-format dummy`, so a config.json is enough, as
    it is for a directory with a RANDOM_WEIGHTS file. `head` is the preferred source of copies,
    `models` the inventory's models directory.

    Raises RequirementsNotMet for every host that lacks the model or has an incomplete one, and
    UsageError if no host has weights but some have a config.json.
    """
    path = _best_path(model, findings)
    if path is None:
        raise _nowhere(model, findings, models)
    there = {host: _at(path, found) for host, found in findings.items()}
    fix = _Fix(model, models)
    raise_all(_problems(path, there, fix, random_weights=random_weights, head=head))
    present = [directory for directory in there.values() if directory is not None]
    return _location(path, present, random_weights)


def copy_from(model: Model, models: str, path: str, source: str) -> str:
    """Return the command that copies the model in `path` from `source` to the other hosts."""
    return _Fix(model, models).from_host(path, source)


def _at(path: str, found: Sequence[ModelDirectory]) -> ModelDirectory | None:
    return next((directory for directory in found if directory.path == path), None)


def _best_path(model: Model, findings: Findings) -> str | None:
    """Return the path that is complete on most hosts, then the one that exists on most. The order
    of the model's candidates breaks ties."""
    complete: Counter[str] = Counter()
    known: Counter[str] = Counter()
    for found in findings.values():
        complete.update(directory.path for directory in found if directory.complete)
        known.update(directory.path for directory in found if directory.config is not None)
        known.update({directory.path: 0 for directory in found})
    if not known:
        return None
    return min(known, key=lambda path: (-complete[path], -known[path], _rank(model, path)))


def _rank(model: Model, path: str) -> int:
    """Return the index of the candidate that is `path` or a parent of it."""
    ranks = [i for i, c in enumerate(model.candidates) if path == c or path.startswith(f"{c}/")]
    return min(ranks, default=len(model.candidates))


def _problems(
    path: str,
    there: Mapping[str, ModelDirectory | None],
    fix: _Fix,
    *,
    random_weights: bool,
    head: str | None,
) -> list[ClusterctlError]:
    source = _source(there, head, random_weights)
    if source is None and any(found and _shape_only(found) for found in there.values()):
        return [_needs_dummy(path)]
    found = [
        problem
        for host, directory in there.items()
        if (problem := _problem(host, path, directory, fix.from_host(path, source), random_weights))
        is not None
    ]
    return [*found, *_different_configs(path, there, fix)]


def _usable(directory: ModelDirectory, random_weights: bool) -> bool:
    if directory.random_weights or random_weights:
        return directory.config is not None
    return directory.complete


def _shape_only(directory: ModelDirectory) -> bool:
    return directory.config is not None and not directory.weight_files and not directory.broken


def _source(
    there: Mapping[str, ModelDirectory | None], head: str | None, random_weights: bool
) -> str | None:
    """Return a host that has the whole model, preferably the head; None if there is none."""
    whole = [host for host, found in there.items() if found and _usable(found, random_weights)]
    if head in whole:
        return head
    return whole[0] if whole else None


def _problem(
    host: str,
    path: str,
    directory: ModelDirectory | None,
    hint: str,
    random_weights: bool,
) -> RequirementsNotMet | None:
    if directory is not None and _usable(directory, random_weights):
        return None
    if directory is None:
        return RequirementsNotMet(f"the model is missing: {path}", host=host, hint=hint)
    reason = _incomplete(directory)
    if directory.pointers:
        hint = f"git -C {path} lfs pull"
    return RequirementsNotMet(f"the model in {path} {reason}", host=host, hint=hint)


def _incomplete(directory: ModelDirectory) -> str:
    if directory.unreadable:
        return "has a config.json that cannot be read"
    if directory.config is None:
        return "has no config.json"
    if directory.pointers:
        return f"has {directory.pointers} git-lfs pointers in place of weights"
    if directory.missing:
        count = len(directory.missing)
        return f"lacks {count} of its weight files: {', '.join(directory.missing[:3])}"
    return "has no weights, only a config.json"


@dataclass(frozen=True)
class _Fix:
    """Builds the command that copies a model to hosts without it."""

    model: Model
    models: str

    def from_host(self, path: str, source: str | None) -> str:
        """Return the command to copy from the host `source`, or from elsewhere if it is None."""
        if source is None:
            return self.from_elsewhere()
        name = self._name(path)
        if name is None:
            return f"clusterctl ssh {source}, then there: rsync -a --partial {path}/ HOST:{path}/"
        return f"clusterctl model push {name} --from host:{source}"

    def from_elsewhere(self) -> str:
        """Return the command to copy from a hub, or from a directory of this machine."""
        name = self._name(self.model.candidates[0])
        if self.model.hub_id is not None and not self.model.asked.startswith("/"):
            return f"clusterctl model pull {self.model.asked}"
        if name is None:
            return f"put it at {self.model.candidates[0]} on every host"
        return f"clusterctl model push DIRECTORY --name {name}"

    def _name(self, path: str) -> str | None:
        """Return the name for `model push`; None for a path outside the models directory."""
        below = path.removeprefix(f"{self.models.rstrip('/')}/")
        return None if below == path else below.partition("/snapshots/")[0]


def _needs_dummy(path: str) -> UsageError:
    return UsageError(
        f"{path} has a config.json but no weights on any host",
        hint="put the weights there, or serve random ones: add -- --load-format dummy",
    )


def _different_configs(
    path: str, there: Mapping[str, ModelDirectory | None], fix: _Fix
) -> list[RequirementsNotMet]:
    """Return an error for every host whose config.json differs from that of most hosts."""
    hashes = {host: found.config_hash for host, found in there.items() if found and found.config}
    usual = Counter(hashes.values()).most_common(1)
    if not usual or usual[0][1] == len(hashes):
        return []
    most = usual[0][0]
    model_host = next(host for host, value in hashes.items() if value == most)
    return [
        RequirementsNotMet(
            f"{path}/config.json differs from the one on {model_host}: another model or revision",
            host=host,
            hint=fix.from_host(path, model_host),
        )
        for host, value in hashes.items()
        if value != most
    ]


def _nowhere(model: Model, findings: Findings, models: str) -> RequirementsNotMet:
    hosts = ", ".join(findings)
    source = f"; its name on the Hub is {model.hub_id}" if model.hub_id else ""
    return RequirementsNotMet(
        f"{model.asked} is on none of the hosts ({hosts}){source}",
        hint=_Fix(model, models).from_elsewhere(),
        detail="looked at:\n" + "\n".join(f"  {path}" for path in model.candidates),
    )


def _location(path: str, present: Sequence[ModelDirectory], random_weights: bool) -> ModelLocation:
    first = present[0]
    marked = any(found.random_weights and not found.weight_files for found in present)
    return ModelLocation(
        path=path,
        shape=first.shape,
        weight_bytes=max(directory.weight_bytes for directory in present),
        random_weights=random_weights or marked,
        chat_template=first.chat_template,
        tokenizer=first.tokenizer,
        config=first.config,
    )
