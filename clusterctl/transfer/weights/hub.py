"""What a model hub offers, whichever hub it is, and which of its files vLLM needs. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Protocol

from clusterctl.errors import ClusterctlError, RequirementsNotMet, StepFailed
from clusterctl.transfer.content import is_digest
from clusterctl.transfer.weights.manifest import inside

_FORMATS = (".safetensors", ".bin", ".pt", ".gguf")
"""Of weights that vLLM reads, the better before the others; a repository often has several."""

_UNREAD = (".pth", ".h5", ".msgpack", ".ot", ".onnx", ".onnx_data", ".mlmodel", ".tflite")
"""The same weights in formats that it does not read."""

_OTHER_LAYOUTS = ("original/", "onnx/", "openvino/", "metal/", "coreml/", "gguf/")
"""Directories that repositories keep the same weights in for other programs."""

_PART = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")


@dataclass(frozen=True)
class HubFile:
    """One file of a model on a hub."""

    path: str
    size: int
    """Bytes."""
    url: str
    """Where its bytes are, for requests with the hub's headers; it may redirect elsewhere."""
    sha256: str = ""
    """64 hexadecimal digits; empty where the hub does not tell."""
    git_sha1: str = ""
    """Of git's blob, 40 digits: what a hub tells of small files."""


@dataclass(frozen=True)
class Listing:
    """A model at one revision."""

    hub: str
    """`hf` or `modelscope`."""
    model_id: str
    revision: str
    """The commit, where the hub tells it, so that a branch that moves cannot mix two versions."""
    files: tuple[HubFile, ...]

    @property
    def origin(self) -> str:
        """What the manifest will say of it."""
        return f"{self.hub}:{self.model_id}@{self.revision}"

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Answer:
    """What a server said: header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Refused(StepFailed):
    """A server answered, and not with the file."""

    def __init__(self, url: str, answer: Answer) -> None:
        server, _, path = url.partition("://")[2].partition("/")
        name = path.partition("?")[0].rpartition("/")[2]
        super().__init__(f"{server} answered {answer.status} for {name}")
        self.answer = answer

    @property
    def final(self) -> bool:
        """Asking again gives no other answer."""
        return 400 <= self.answer.status < 500 and self.answer.status not in {408, 429}


class Web(Protocol):
    """Something that can ask hubs: this machine, or a host that has a way to them."""

    def get(self, url: str, headers: Mapping[str, str]) -> Answer:
        """The whole answer, redirects followed; `headers` go to the first server alone.

        Raises StepFailed when there is none."""


class Hub(Protocol):
    """A hub, with the user's access to it."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What proves who asks. Secret: for requests to the hub itself."""

    def listing(self, model_id: str, revision: str | None) -> Listing:
        """Raises RequirementsNotMet for a model that is not there, that is gated, or is not
        for this user, saying what to do; StepFailed when the hub does not answer."""

    def refusal(self, answer: Answer, model_id: str, revision: str) -> ClusterctlError:
        """What an answer other than 200 means, and what to do about it."""


def needed(listing: Listing, include: str | None = None) -> Listing:
    """Only what vLLM reads: one format of the weights, safetensors before the others. With
    `include`, of the weights only those whose path matches that pattern.

    Raises RequirementsNotMet when the repository has no weights, or has quantizations of which
    one has to be chosen; StepFailed when a file would be written elsewhere than in its directory.
    """
    _require_sound(listing)
    weights = {f.path for f in listing.files if _is_weight(f, include)}
    chosen = next((s for s in _FORMATS if any(p.endswith(s) for p in weights)), None)
    if chosen is None:
        raise _no_weights(listing, include)
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
        _require_one(listing, files)
    return Listing(listing.hub, listing.model_id, listing.revision, files)


def _require_sound(listing: Listing) -> None:
    """Hosts write these files as root, and name blobs by their hashes."""
    for file in listing.files:
        try:
            inside(file.path)
        except ValueError as error:
            raise _unsound(listing, str(error)) from error
        if file.size < 0 or (file.sha256 and not is_digest(file.sha256)):
            raise _unsound(listing, f"{file.path} has {file.size} bytes and {file.sha256!r}")


def _unsound(listing: Listing, what: str) -> StepFailed:
    return StepFailed(
        f"{listing.hub} lists a file of {listing.model_id} that no model can have: {what}",
        hint="is the address of the hub right, and is no other server in between?",
    )


def _is_weight(file: HubFile, include: str | None) -> bool:
    known = "/" not in file.path and file.path.endswith(_FORMATS)
    return known and (include is None or fnmatch(file.path, include))


def _no_weights(listing: Listing, include: str | None) -> RequirementsNotMet:
    which = f" that match {include}" if include else " that vLLM reads"
    return RequirementsNotMet(
        f"{listing.model_id} has no weights{which}",
        detail="\n".join(file.path for file in listing.files[:20]),
    )


def _require_one(listing: Listing, files: Sequence[HubFile]) -> None:
    """A GGUF file is a model by itself, or a part `...-00001-of-00003.gguf` of one."""
    models = {_PART.sub("", file.path) for file in files if file.path.endswith(".gguf")}
    if len(models) > 1:
        raise RequirementsNotMet(
            f"{listing.model_id} has {len(models)} models, of which vLLM serves one",
            hint=f"clusterctl model pull {listing.model_id} --include '*Q4_K_M*'",
            detail="\n".join(sorted(models)[:30]),
        )
