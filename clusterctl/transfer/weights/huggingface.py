"""The Hugging Face Hub, through huggingface_hub: listings, tokens, errors, its local cache, and the
config.json of a model, which is all that `fit` needs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # exported lazily
    build_hf_headers,
    disable_progress_bars,
    hf_raise_for_status,
)

from clusterctl import __version__, deadlines
from clusterctl.errors import ClusterctlError, RequirementsNotMet, StepFailed, UsageError
from clusterctl.models.config_files import QUANTIZATION_FILE, parse_config, with_quantization
from clusterctl.transfer.weights.hub import (
    HubFile,
    Listing,
    endpoint_of,
    hub_errors,
    hub_session,
    may_carry_token,
)

DEFAULT_REVISION = "main"

# Bytes; the Hub serves larger files only over its Xet protocol, which `hf download` supports
# (huggingface_hub: constants.MAX_HTTP_DOWNLOAD_SIZE).
LARGEST_BY_HTTP = 50_000_000_000


class HuggingFace:
    """The Hub, or a mirror with the same API (HF_ENDPOINT)."""

    def __init__(self, endpoint: str | None = None, token: str | bool | None = None) -> None:
        """Use the token of HF_TOKEN or `hf auth login` if `token` is None; none if it is False, and
        none over http."""
        self.endpoint = endpoint or endpoint_of(
            os.environ.get("HF_ENDPOINT"), "https://huggingface.co"
        )
        self._token = token if may_carry_token(self.endpoint) else False

    @property
    def headers(self) -> Mapping[str, str]:
        return build_hf_headers(
            token=self._token, library_name="clusterctl", library_version=__version__
        )

    def listing(self, model_id: str, revision: str | None) -> Listing:
        """See Hub. One request, so that all files are of one commit."""
        if huggingface_hub.is_offline_mode():
            raise RequirementsNotMet(
                "HF_HUB_OFFLINE is set, so the Hub cannot be asked",
                hint="unset HF_HUB_OFFLINE, or push a directory: clusterctl model push DIRECTORY",
            )
        wanted = revision or DEFAULT_REVISION
        api = huggingface_hub.HfApi(
            self.endpoint, self._token, library_name="clusterctl", library_version=__version__
        )
        with hub_errors(self, model_id, wanted):
            try:
                found = api.model_info(
                    model_id, revision=wanted, files_metadata=True, timeout=deadlines.WEB
                )
                commit = found.sha or wanted
                files = tuple(
                    HubFile(
                        path=each.rfilename,
                        size=int(each.lfs.size if each.lfs else each.size),  # type: ignore[arg-type]
                        url=huggingface_hub.hf_hub_url(
                            model_id, each.rfilename, revision=commit, endpoint=self.endpoint
                        ),
                        sha256=each.lfs.sha256 if each.lfs else "",
                        git_sha1="" if each.lfs else str(each.blob_id or ""),
                    )
                    for each in found.siblings or ()
                )
            except HfHubHTTPError:
                raise
            except HFValidationError as error:
                raise UsageError(f"{model_id} is not the name of a model: {error}") from error
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise StepFailed(
                    f"{self.endpoint} did not respond like the Hugging Face Hub",
                    hint="check HF_ENDPOINT, and that no proxy's login page answers instead",
                    detail=repr(error),
                ) from error
        return Listing("hf", model_id, commit, files)

    def refusal(self, answer: httpx2.Response, model_id: str, revision: str) -> ClusterctlError:
        """See Hub. Files of a gated model can be refused even if the listing is not."""
        page, status = f"{self.endpoint}/{model_id}", answer.status_code
        log_in = "run `hf auth login`, or set HF_TOKEN"
        if not may_carry_token(self.endpoint):
            log_in = f"{log_in}; and use https for the hub, since no token is sent over http"
        said = answer.headers.get("x-error-message")
        try:
            hf_raise_for_status(answer)
        except GatedRepoError:
            return RequirementsNotMet(
                f"{model_id} is gated: you have to accept its terms first",
                hint=f"accept them at {page}, and {log_in}",
                detail=said,
            )
        except RevisionNotFoundError:
            return RequirementsNotMet(
                f"{model_id} has no revision {revision}", hint=f"see {page}/tree/main"
            )
        except HfHubHTTPError as error:
            if isinstance(error, RepositoryNotFoundError) or status in {401, 403, 404}:
                return RequirementsNotMet(
                    f"{model_id} is not on {self.endpoint}, or it is private and your token has "
                    "no access",
                    hint=f"check the name at {page}; if it is private, {log_in}",
                    detail=said,
                )
        return StepFailed(
            f"{self.endpoint} responded with status {status} for {model_id}",
            hint=f"run the same command again in {answer.headers.get('retry-after', '60')} s",
            detail=said,
        )

    def cached(self, listing: Listing, file: HubFile) -> Path | None:
        """See Hub. Finds files of this commit that `hf download` or vLLM downloaded locally."""
        found = huggingface_hub.try_to_load_from_cache(
            listing.model_id, file.path, revision=listing.revision
        )
        return Path(found) if isinstance(found, str) else None

    def newest(self, model_id: str, path: str) -> Path:
        """Return a small file of the model's default branch from the cache of `hf`, in a directory
        named after its commit, downloading it if needed.

        Raises RequirementsNotMet for a gated model, StepFailed if the download fails.
        """
        disable_progress_bars()
        with hub_errors(self, model_id, DEFAULT_REVISION):
            try:
                return Path(
                    huggingface_hub.hf_hub_download(
                        model_id,
                        path,
                        revision=DEFAULT_REVISION,  # kept under that name, to be found offline
                        endpoint=self.endpoint,
                        token=self._token,
                        etag_timeout=deadlines.WEB,
                    )
                )
            except HfHubHTTPError:
                raise
            except (LocalEntryNotFoundError, OSError) as error:
                raise StepFailed(
                    f"{path} of {model_id} could not be downloaded from {self.endpoint}",
                    hint="check HF_ENDPOINT, and that HF_HOME is a directory you can write to",
                    detail=repr(error.__cause__ or error),
                ) from error

    def require_downloadable(self, listing: Listing, *, here: bool = True) -> None:
        large = [
            file.path
            for file in listing.files
            if file.size > LARGEST_BY_HTTP and not (here and self.cached(listing, file))
        ]
        if large:
            raise RequirementsNotMet(
                f"{large[0]} of {listing.model_id} is larger than 50 GB, which the Hub serves only "
                "to its own client",
                hint=f"hf download {listing.model_id} --revision {listing.revision} "
                f"{' '.join(large)}   and then run this again: it uses the cache",
            )


_FILE = "config.json"

_INSTEAD = (
    "set HF_ENDPOINT to a mirror or HTTPS_PROXY to a proxy; or download config.json elsewhere, "
    "and pass that file: clusterctl fit ./config.json"
)


@dataclass(frozen=True)
class HubConfig:
    """The config.json of a model on the Hub, or this machine's copy of it."""

    config: Mapping[str, Any]
    origin: str  # Where this copy is from, with its commit
    weights: int | None  # Bytes of the model's safetensors files; None if not known


def config_on_hub(model_id: str) -> HubConfig:
    """Return the model's current config.json, or the cached one if the Hub does not answer.

    The cache is that of the Hub's own client (HF_HOME), by commit. Raises RequirementsNotMet, with
    a hint, for a model that does not exist, is gated or has no config.json, and if HF_HUB_OFFLINE
    is set; StepFailed when the Hub cannot be reached.
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
            hint="name the model that it was derived from, or a config.json: clusterctl fit ./FILE",
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
    origin = f"this machine's cache, commit {file.parent.name[:12]}, since the Hub did not answer"
    return HubConfig(_read(file, model_id), origin, None)


def _read(file: Path, model_id: str) -> dict[str, Any]:
    text = file.read_text(encoding="utf-8", errors="replace")
    config = parse_config(text, f"config.json of {model_id}")
    return with_quantization(config, file.with_name(QUANTIZATION_FILE))
