"""A model's config.json from the Hugging Face Hub: `fit` needs no more, and nobody's weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub

from clusterctl.errors import RequirementsNotMet, StepFailed
from clusterctl.models.config_files import QUANTIZATION_FILE, parse_config, with_quantization
from clusterctl.transfer.weights.hub import Listing, hub_session
from clusterctl.transfer.weights.huggingface import HuggingFace

_FILE = "config.json"

_INSTEAD = (
    "HF_ENDPOINT names a mirror and HTTPS_PROXY a proxy; or download config.json elsewhere, and "
    "name that file: clusterctl fit ./config.json"
)


@dataclass(frozen=True)
class HubConfig:
    """The config.json of a model on the Hub, or the copy that this machine kept of it."""

    config: Mapping[str, Any]
    origin: str  # Where this copy is from, with its commit
    weights: int | None  # Bytes of the model's safetensors files; None if not known


def config_on_hub(model_id: str) -> HubConfig:
    """Return the model's current config.json; the last one kept here if the Hub does not answer.

    It is kept, by commit, in the cache of the Hub's own client (HF_HOME). Raises
    RequirementsNotMet, with a hint, for a model that is not there, is gated or has no config.json,
    and if HF_HUB_OFFLINE is set; StepFailed when the Hub cannot be reached.
    """
    hub = HuggingFace()
    if huggingface_hub.is_offline_mode():
        offline = RequirementsNotMet(
            f"HF_HUB_OFFLINE is set, and no config.json of {model_id} is in this machine's cache",
            hint=f"unset HF_HUB_OFFLINE; {_INSTEAD}",
        )
        return _kept(model_id, offline)
    with hub_session():
        try:
            listing = hub.listing(model_id, None)
            file = _downloaded(hub, listing)
        except StepFailed as failed:
            return _kept(model_id, StepFailed(failed.summary, hint=_INSTEAD, detail=failed.detail))
    sizes = [
        each.size
        for each in listing.files
        if each.path.endswith(".safetensors") and not each.path.startswith(("consolidated", "orig"))
    ]
    origin = f"{hub.endpoint}, commit {file.parent.name[:12]}"
    return HubConfig(_read(file, model_id), origin, sum(sizes) or None)


def _downloaded(hub: HuggingFace, listing: Listing) -> Path:
    files = {file.path for file in listing.files}
    if _FILE not in files:
        raise RequirementsNotMet(
            f"{listing.model_id} has no config.json on {hub.endpoint}",
            hint="name the model that it was made from, or a config.json: clusterctl fit ./FILE",
        )
    if QUANTIZATION_FILE in files:
        hub.newest(listing.model_id, QUANTIZATION_FILE)
    return hub.newest(listing.model_id, _FILE)


def _kept(model_id: str, why_not: RequirementsNotMet | StepFailed) -> HubConfig:
    """Return the copy in the cache of `hf` and of vLLM on this machine. Raises `why_not`."""
    found = huggingface_hub.try_to_load_from_cache(model_id, _FILE)
    if not isinstance(found, str):
        raise why_not
    file = Path(found)
    origin = f"this machine's cache, commit {file.parent.name[:12]}, as the Hub did not answer"
    return HubConfig(_read(file, model_id), origin, None)


def _read(file: Path, model_id: str) -> dict[str, Any]:
    text = file.read_text(encoding="utf-8", errors="replace")
    config = parse_config(text, f"config.json of {model_id}")
    return with_quantization(config, file.with_name(QUANTIZATION_FILE))
