"""The model and protocol of a hub, and the choice of the files that vLLM needs. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Protocol

import httpx2

from clusterctl.errors import ClusterctlError, RequirementsNotMet, StepFailed
from clusterctl.transfer.content import is_digest
from clusterctl.transfer.weights.manifest import inside

# Formats of weights that vLLM reads, best first; a repository often has several of them.
_FORMATS = (".safetensors", ".bin", ".pt", ".gguf")

# Copies of the weights in formats that vLLM does not read.
_UNREAD = (".pth", ".h5", ".msgpack", ".ot", ".onnx", ".onnx_data", ".mlmodel", ".tflite")

# Directories in which repositories keep copies of the weights for other programs.
_OTHER_LAYOUTS = ("original/", "onnx/", "openvino/", "metal/", "coreml/", "gguf/")

_PART = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")


@dataclass(frozen=True)
class HubFile:
    """One file of a model on a hub."""

    path: str
    size: int  # bytes
    url: str  # requested with the hub's headers; may redirect to another server
    sha256: str = ""  # 64 hexadecimal digits; empty where the hub does not publish it
    git_sha1: str = ""  # of the git blob: Hugging Face publishes it for small files


@dataclass(frozen=True)
class Listing:
    """The files of a model at one revision."""

    hub: str  # hf or modelscope
    model_id: str
    # The commit, where the hub reports it: a moving branch must not mix two versions.
    revision: str
    files: tuple[HubFile, ...]

    @property
    def origin(self) -> str:
        """Origin as written in the manifest."""
        return f"{self.hub}:{self.model_id}@{self.revision}"

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class Hub(Protocol):
    """A model hub, accessed with the user's credentials."""

    endpoint: str  # without a slash at the end

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers that authenticate the user. Secret; only for requests to the hub itself."""

    def listing(self, model_id: str, revision: str | None) -> Listing:
        """List the model's files. Raises RequirementsNotMet, with a hint, for a model that does not
        exist, is gated or is not visible to this user; StepFailed when the hub does not respond."""

    def refusal(self, answer: httpx2.Response, model_id: str, revision: str) -> ClusterctlError:
        """Return the error for a response that is neither a listing nor a file, with a hint."""

    def cached(self, listing: Listing, file: HubFile) -> Path | None:
        """Return the file in the cache of the hub's own client on this machine, if it is there."""

    def require_downloadable(self, listing: Listing, *, here: bool = True) -> None:
        """Raise RequirementsNotMet for files that the hub does not serve over plain HTTP. `here`:
        this machine downloads, and uses what `cached` has."""


def endpoint_of(given: str | None, default: str) -> str:
    """Return the hub's address from an environment variable's value, or the default one."""
    address = (given or "").strip() or default
    if not address.lower().startswith(("http://", "https://")):
        address = f"https://{address}"
    return address.rstrip("/")


def needed(listing: Listing, include: str | None = None) -> Listing:
    """Keep the files that vLLM reads, with the weights in one format, safetensors if possible.

    `include` is a pattern that the paths of weights must match. Raises RequirementsNotMet when
    the repository has no weights, or several quantizations to choose from; StepFailed for a file
    that would be written outside the model's directory.
    """
    for file in listing.files:  # hosts write these paths as root, and name blobs by these hashes
        try:
            inside(file.path)
            problem = ""
        except ValueError as error:
            problem = str(error)
        if file.size < 0 or (file.sha256 and not is_digest(file.sha256)):
            problem = f"{file.path} has {file.size} bytes and the hash {file.sha256!r}"
        if problem:
            raise StepFailed(
                f"{listing.hub} lists an invalid file in {listing.model_id}: {problem}",
                hint="check the hub's address, and that no other server answers in its place",
            )
    weights = {f.path for f in listing.files if _is_weight(f, include)}
    chosen = next((s for s in _FORMATS if any(p.endswith(s) for p in weights)), None)
    if chosen is None:
        which = f" that match {include}" if include else " in a format that vLLM reads"
        raise RequirementsNotMet(
            f"{listing.model_id} has no weights{which}",
            detail="\n".join(file.path for file in listing.files[:20]),
        )
    sharded = any(path.startswith("model") for path in weights)
    files = tuple(
        file
        for file in listing.files
        if not file.path.startswith(_OTHER_LAYOUTS)
        and file.path != ".gitattributes"
        and not file.path.endswith(_UNREAD)
        and (not file.path.endswith(_FORMATS) or file.path.endswith(chosen))
        and (file.path in weights or not _is_weight(file, None))
        and not (sharded and file.path.startswith("consolidated"))
    )
    if chosen == ".gguf":
        # A GGUF file is a model by itself, or a part `...-00001-of-00003.gguf` of one.
        models = {_PART.sub("", file.path) for file in files if file.path.endswith(".gguf")}
        if len(models) > 1:
            raise RequirementsNotMet(
                f"{listing.model_id} has {len(models)} models, and vLLM serves one at a time",
                hint=f"clusterctl model pull {listing.model_id} --include '*Q4_K_M*'",
                detail="\n".join(sorted(models)[:30]),
            )
    return Listing(listing.hub, listing.model_id, listing.revision, files)


def _is_weight(file: HubFile, include: str | None) -> bool:
    known = "/" not in file.path and file.path.endswith(_FORMATS)
    return known and (include is None or fnmatch(file.path, include))
