"""Find the weights: the path that every host has, or the hosts that lack the model.

vLLM opens the model under the same path on every rank, so all hosts of the cluster must have it
there, with the same config.json.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterctl.errors import ClusterctlError, RequirementsNotMet, UsageError, raise_all
from clusterctl.models.name import Model, did_you_mean
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
    random_weights: bool  # To be served with `--load-format dummy`
    chat_template: bool
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

    With `random_weights`, the user requested `--load-format dummy`, so a config.json is enough, as
    it is for a directory with a RANDOM_WEIGHTS file. `head` is the preferred source of copies,
    `models` the inventory's models directory.

    Raises RequirementsNotMet for every host that lacks the model or has an incomplete one, and
    UsageError if no host has weights but some have a config.json.
    """
    path = likeliest_path(model, findings)
    if path is None:
        if model.hub_id:
            source = f"; its name on the Hub is {model.hub_id}"
        else:
            source = did_you_mean(model.asked)
        raise RequirementsNotMet(
            f"{model.asked} is on none of the hosts ({', '.join(findings)}){source}",
            hint=copy_from(model, models, model.candidates[0], None),
            detail="looked at:\n" + "\n".join(f"  {path}" for path in model.candidates),
        )
    there = {
        host: next((directory for directory in found if directory.path == path), None)
        for host, found in findings.items()
    }
    raise_all(_problems(model, models, path, there, random_weights=random_weights, head=head))
    present = [directory for directory in there.values() if directory is not None]
    marked = any(found.random_weights and not found.weight_files for found in present)
    return ModelLocation(
        path=path,
        shape=present[0].shape,
        random_weights=random_weights or marked,
        chat_template=present[0].chat_template,
        config=present[0].config,
    )


def likeliest_path(model: Model, findings: Findings) -> str | None:
    """Return the path at which most hosts have the model, preferring weights to a config.json
    alone; None if no host has any."""
    complete: Counter[str] = Counter()
    known: Counter[str] = Counter()
    for found in findings.values():
        complete.update(directory.path for directory in found if directory.complete)
        known.update(directory.path for directory in found if directory.config is not None)
        known.update({directory.path: 0 for directory in found})

    def rank(path: str) -> int:
        """Return the index of the candidate that is `path` or a parent of it."""
        ranks = [i for i, c in enumerate(model.candidates) if path == c or path.startswith(f"{c}/")]
        return min(ranks, default=len(model.candidates))

    order = sorted(known, key=lambda path: (-complete[path], -known[path], rank(path)))
    return next(iter(order), None)


def copy_from(model: Model, models: str, path: str, source: str | None) -> str:
    """Return the command that copies the model in `path` to the hosts that lack it: from the host
    `source`, or, if that is None, from a hub or a directory on this machine."""
    if source is None:
        path = model.candidates[0]
    # The name for `model push`; empty for a path outside the models directory.
    below = path.removeprefix(f"{models.rstrip('/')}/")
    name = "" if below == path else below.partition("/snapshots/")[0]
    if source is not None and name:
        return f"clusterctl model push {name} --from host:{source}"
    if source is not None:
        return f"clusterctl ssh {source}, then on it: rsync -a --partial {path}/ HOST:{path}/"
    if model.hub_id is not None and not model.asked.startswith("/"):
        return f"clusterctl model pull {model.asked}"
    return (
        f"clusterctl model push DIRECTORY --name {name}"
        if name
        else f"put it at {path} on every host"
    )


def _problems(
    model: Model,
    models: str,
    path: str,
    there: Mapping[str, ModelDirectory | None],
    *,
    random_weights: bool,
    head: str | None,
) -> list[ClusterctlError]:
    """Return an error for every host whose directory is missing or incomplete, or whose config.json
    differs from that of most hosts."""
    whole = [
        host
        for host, found in there.items()
        if found and found.usable(random_weights=random_weights)
    ]
    if not whole and any(found and found.shape_only for found in there.values()):
        return [
            UsageError(
                f"{path} has a config.json but no weights on any host",
                hint="put the weights in it, or serve random ones: add -- --load-format dummy",
            )
        ]
    source = head if head in whole else next(iter(whole), None)
    problems: list[ClusterctlError] = []
    for host, directory in there.items():
        if host in whole:
            continue
        text = f"the model in {path} {directory.defect}" if directory else ""
        hint = copy_from(model, models, path, source)
        if directory and directory.pointers:
            hint = f"git -C {path} lfs pull"
        elif directory and directory.unreadable:
            real = f"clusterctl exec --limit {host} -- realpath {path}"
            hint = f"name the model by its real path: {real}"
        problems.append(
            RequirementsNotMet(text or f"the model is missing: {path}", host=host, hint=hint)
        )
    configs = {host: found.config for host, found in there.items() if found and found.config}
    usual = Counter(configs.values()).most_common(1)
    like = next((host for host, config in configs.items() if config == usual[0][0]), "")
    problems += [
        RequirementsNotMet(
            f"{path}/config.json differs from the one on {like}: a different model or revision",
            host=host,
            hint=copy_from(model, models, path, like),
        )
        for host, config in configs.items()
        if config != configs[like]
    ]
    return problems
