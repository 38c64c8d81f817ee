"""Which precision of a model in the catalogue suits given GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.models.catalogue import CATALOGUE, CatalogueEntry
from clusterctl.planning.hardware import GpuModel

_GB_PER_GIB = 1.073741824


@dataclass(frozen=True)
class EditionOnGpus:
    """A checkpoint, and whether there is as much memory as its recipe requires."""

    entry: CatalogueEntry
    runs: bool  # There are kernels for its format
    fits: bool


@dataclass(frozen=True)
class FoundModel:
    """A model that a search found, with its checkpoints."""

    entry: CatalogueEntry
    editions: tuple[EditionOnGpus, ...]


def search(text: str, gpus: Sequence[GpuModel] = ()) -> tuple[FoundModel, ...]:
    """Return the models with all these words in alias, Hub ID or kind; with `gpus`, only those with
    a checkpoint that fits, by its recipe or its published size in bf16."""
    words = text.casefold().split()
    found = []
    for entry in CATALOGUE:
        told = f"{entry.alias} {entry.hub_id} {entry.kind}".casefold()
        if not all(word in told for word in words):
            continue
        editions = editions_on(entry, gpus) if gpus else _all_editions(entry)
        if not gpus or any(each.fits for each in editions) or _small_enough(entry, gpus):
            found.append(FoundModel(entry, editions))
    return tuple(found)


def _all_editions(entry: CatalogueEntry) -> tuple[EditionOnGpus, ...]:
    named = (each for each in entry.editions if each.least_gb)
    return tuple(EditionOnGpus(each, runs=True, fits=True) for each in named)


def _small_enough(entry: CatalogueEntry, gpus: Sequence[GpuModel]) -> bool:
    """Return whether a model whose recipe names no minimum fits with a tenth to spare."""
    named = any(each.least_gb for each in entry.editions)
    memory = sum(gpu.memory_gib for gpu in gpus) * _GB_PER_GIB
    return not named and entry.billions * 2 * 1.1 < memory


def editions_on(entry: CatalogueEntry, gpus: Sequence[GpuModel]) -> tuple[EditionOnGpus, ...]:
    """Return a model's checkpoints whose recipe names a minimum memory, on GPUs that serve it
    together."""
    memory = sum(gpu.memory_gib for gpu in gpus) * _GB_PER_GIB
    least = min((gpu.capability for gpu in gpus), default=0)
    return tuple(
        EditionOnGpus(
            each, runs=each.runs_on(least), fits=each.runs_on(least) and each.least_gb <= memory
        )
        for each in model_of(entry).editions
        if each.least_gb
    )


def model_of(entry: CatalogueEntry) -> CatalogueEntry:
    """Return the model that an edition is a variant of, or the entry itself."""
    for model in CATALOGUE:
        if any(each.hub_id == entry.hub_id for each in model.variants):
            return model
    return entry


def best_edition(
    entry: CatalogueEntry, gpus: Sequence[GpuModel], *, besides: str = ""
) -> CatalogueEntry | None:
    """Return the checkpoint with the most bits that fits, preferring formats in which the GPUs
    compute; None if none fits. `besides`: the Hub id of one that is known not to."""
    least = min((gpu.capability for gpu in gpus), default=0)
    found = [each.entry for each in editions_on(entry, gpus) if each.fits]
    fitting = [each for each in found if each.hub_id != besides]
    return max(fitting, key=lambda each: (each.computes_on(least), each.least_gb), default=None)


def edition_note(
    entry: CatalogueEntry, gpus: Sequence[GpuModel], *, fits: bool = True
) -> str | None:
    """Return a sentence that names the editions and the best one; None without a choice. `fits`:
    whether the plan for `entry` itself does."""
    if any(gpu.is_cpu for gpu in gpus):
        return None
    editions = editions_on(entry, gpus)
    if len(editions) < 2:
        return None
    needs = ", ".join(f"{each.entry.precision} {each.entry.least_gb} GB" for each in editions)
    memory = sum(gpu.memory_gib for gpu in gpus) * _GB_PER_GIB
    best = best_edition(entry, gpus, besides="" if fits else entry.hub_id)
    text = f"its recipe names as minimum: {needs}; these GPUs have {memory:.0f} GB"
    if best is None:
        return text if any(each.fits for each in editions) else f"{text}, too few for each"
    if best.hub_id == entry.hub_id:
        return f"{text}, and {best.precision}, as planned, suits them best"
    return f"{text}, and {best.precision} suits them best: {best.alias} ({best.hub_id})"
