"""The models with an alias: their Hub id, their public config.json, the vLLM flags that they need,
and their variants by precision. The data is in catalogue.json, where each model is one line;
`scripts/recipes.py` takes releases, variants and flags from vllm-project/recipes, and
`scripts/catalogue.py` creates the `config` of a new one: the part of its config.json that affects
memory.

So `fit` works without weights and without a network. `sources` has the origin and date of each
figure. `own_code` is as in vLLM's tests/models/registry.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from clusterctl.errors import UsageError
from clusterctl.models.config_json import architecture_of, describe
from clusterctl.models.shape import ModelShape
from clusterctl.models.version import Version, parse_version

Config = Mapping[str, Any]
Kind = Literal["text", "vision", "embed", "rerank", "speech", "ocr"]
GpuClass = Literal["hopper", "blackwell"]

# The least compute capability, times ten, that computes in a format; others decompress weights,
# which vLLM does for FP8 from 7.5 and for FP4 from 8.0 on.
_COMPUTES_FROM = {"fp8": 89, "mxfp8": 100, "nvfp4": 100, "mxfp4": 100}
_RUNS_FROM = {"fp8": 75, "mxfp8": 80, "nvfp4": 80, "mxfp4": 80, "int4": 75, "int8": 75}


def config_file(hub_id: str) -> Path:
    """Return clusterctl's file with the sizes in that model's config.json, if there is one."""
    return Path(__file__).parent / "configs" / f"{hub_id.replace('/', '--')}.json"


def gpu_class(capability: int) -> GpuClass | None:
    """Return the recipes' name for GPUs of a compute capability (90 for 9.0)."""
    return "blackwell" if capability >= 100 else "hopper" if capability == 90 else None


@dataclass(frozen=True)
class ModelFlag:
    """Arguments of `vllm serve`, and the releases that accept them."""

    tokens: tuple[str, ...]
    since: Version = (0, 0, 0)
    until: Version | None = None  # The first release without them

    def known_to(self, version: Version | None) -> bool:
        """Return whether that release accepts them. An unknown version counts as the newest."""
        if version is None:
            return self.until is None
        return self.since <= version and (self.until is None or version < self.until)


@dataclass(frozen=True)
class CatalogueEntry:
    """A model in the catalogue, or a variant of it in another precision."""

    alias: str
    hub_id: str
    given: Config = field(default_factory=dict)  # `config`, where catalogue.json has it
    # Further aliases; they are also common names of directories with this model.
    other_names: tuple[str, ...] = ()
    flags: tuple[ModelFlag, ...] = ()
    note: str = ""
    billions: float = 0.0  # Published number of parameters, without layers that vLLM does not load
    # vLLM does not start it without --trust-remote-code, which the user has to give: it runs Python
    # code that comes with the model.
    own_code: bool = False
    kind: Kind = "text"
    since: Version = (0, 0, 0)  # The first release with which its recipe works
    precision: str = ""  # As its recipe names it: bf16, fp8, nvfp4, int4, ...
    least_gb: int = 0  # GPU memory in GB that its recipe names as the minimum; 0: not said
    gpu_flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # By class of GPU
    variants: tuple[CatalogueEntry, ...] = ()  # The same model in other precisions
    named_architecture: str = ""  # Where no config.json could be had

    @cached_property
    def config(self) -> Config:
        """The keys of its config.json that affect memory; empty if it was not available."""
        if self.given:
            return self.given
        file = config_file(self.hub_id)
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}

    @property
    def architecture(self) -> str:
        return architecture_of(self.config) or self.named_architecture

    @cached_property
    def shape(self) -> ModelShape:
        """The model's shape. Raises UsageError if the catalogue has no config.json of it."""
        if not self.config:
            raise UsageError(
                f"the catalogue has no config.json of {self.hub_id}, which planning needs",
                hint=f"clusterctl fit {self.hub_id} reads it from the Hub, if reachable; or pass "
                "a directory with config.json",
            )
        return describe(self.config, self.hub_id, whole=False)

    @property
    def known_shape(self) -> ModelShape | None:
        """The model's shape, if the catalogue has its config.json."""
        return self.shape if self.config else None

    @property
    def editions(self) -> tuple[CatalogueEntry, ...]:
        """The model itself and its variants."""
        return (self, *self.variants)

    def runs_on(self, capability: int) -> bool:
        """Return whether vLLM has kernels for its format on GPUs of that capability, times ten."""
        return capability >= _RUNS_FROM.get(self.precision, 0)

    def computes_on(self, capability: int) -> bool:
        """Return whether those GPUs compute in its format, instead of decompressing weights."""
        return capability >= _COMPUTES_FROM.get(self.precision, 0)

    @property
    def directory(self) -> str:
        """The directory's name after `git clone` or a download by name."""
        return self.hub_id.partition("/")[2]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.alias, *self.other_names)

    def tokens(self, version: Version | None, capability: int = 0) -> tuple[str, ...]:
        """Return the flags that this vLLM accepts, including those for GPUs of that compute
        capability, times ten, as command-line tokens."""
        known = (flag.tokens for flag in self.flags if flag.known_to(version))
        of_class = self.gpu_flags.get(gpu_class(capability) or "", ())
        return tuple(token for tokens in (*known, of_class) for token in tokens)


def _catalogue() -> tuple[CatalogueEntry, ...]:
    document = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    flags = {
        name: tuple(
            ModelFlag(
                tuple(each["tokens"]),
                parse_version(each.get("since", "")) or (0, 0, 0),
                parse_version(each.get("until", "")),
            )
            for each in group
        )
        for name, group in document["flags"].items()
    }
    return tuple(_entry(model, flags) for model in document["models"])


def _entry(model: Mapping[str, Any], groups: Mapping[str, tuple[ModelFlag, ...]]) -> CatalogueEntry:
    since = parse_version(model.get("since", "")) or (0, 0, 0)
    flags = [flag for name in model.get("flags", ()) for flag in groups[name]]
    if "tokens" in model:
        flags.append(ModelFlag(tuple(model["tokens"]), since))
    entry = CatalogueEntry(
        alias=model["alias"],
        hub_id=model["hub_id"],
        given=model.get("config", {}),
        other_names=tuple(model.get("names", ())),
        flags=tuple(flags),
        note=model.get("note", ""),
        billions=model.get("billions", 0.0),
        own_code=model.get("own_code", False),
        kind=model.get("kind", "text"),
        since=since,
        gpu_flags={name: tuple(each) for name, each in model.get("gpu_flags", {}).items()},
        named_architecture=model.get("architecture", ""),
    )
    variants = []
    for each in model.get("variants", ()):
        edition = replace(
            entry, precision=each["precision"], least_gb=each.get("least_gb", 0),
            flags=(*entry.flags, ModelFlag(tuple(each.get("tokens", ())), since)),
        )  # fmt: skip
        if each["hub_id"] == entry.hub_id:
            entry = edition
            continue
        alias = f"{entry.alias}-{each['precision']}"
        edition = replace(
            edition, alias=alias, hub_id=each["hub_id"], other_names=(),
            given={}, named_architecture=entry.named_architecture or architecture_of(entry.given),
        )  # fmt: skip
        variants.append(edition)
    return replace(entry, variants=tuple(variants))


CATALOGUE = _catalogue()


def _editions() -> Iterator[CatalogueEntry]:
    """Yield all models, then the variants that are not listed as models themselves."""
    yield from CATALOGUE
    listed = {entry.hub_id.casefold() for entry in CATALOGUE}
    for entry in CATALOGUE:
        yield from (each for each in entry.variants if each.hub_id.casefold() not in listed)


EDITIONS = tuple(_editions())


def by_alias(name: str) -> CatalogueEntry | None:
    """Return the entry with that alias, ignoring case."""
    folded = name.casefold()
    return next((entry for entry in EDITIONS if folded in entry.names), None)


def by_hub_id(hub_id: str) -> CatalogueEntry | None:
    """Return the entry with that Hub id, ignoring case."""
    folded = hub_id.casefold()
    return next((entry for entry in EDITIONS if entry.hub_id.casefold() == folded), None)


def by_directory(name: str) -> CatalogueEntry | None:
    """Return the entry for a directory of that name, judging only by the name."""
    folded = name.casefold()
    found = (entry for entry in EDITIONS if entry.directory.casefold() == folded)
    return next(found, None) or by_alias(name)
