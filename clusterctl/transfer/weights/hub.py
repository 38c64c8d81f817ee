"""Model hubs: what a hub lists, which of its files vLLM needs, and HTTP to it.

huggingface_hub sends all requests through one client, created by `_client` here, so that they and
ModelScope's have the same limits, the same proxies (httpx2 reads the environment's) and, for
`model pull --on HOST`, the same route through that host.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import httpx2
import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError

from clusterctl import __version__, deadlines
from clusterctl.errors import ClusterctlError, RequirementsNotMet, StepFailed
from clusterctl.transfer.registry.client import leave_unread
from clusterctl.transfer.registry.endpoint import trusting
from clusterctl.transfer.resuming import FetchFailed
from clusterctl.transfer.weights.hashing import Hashed
from clusterctl.transfer.weights.manifest import Manifest, WeightFile, in_order

# Mode of downloaded files; git keeps no other, except for programs.
MODE = 0o644

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

    def manifest(self, name: str, hashed: Mapping[str, Hashed] | None = None) -> Manifest:
        """Return the manifest of the model in a directory `name`. `hashed`: hashes of downloaded
        files, by path. Other files get the sha256 that the hub publishes, else git's SHA-1 as a
        placeholder, which matches no file on a host."""
        files = []
        for file in self.files:
            known = (hashed or {}).get(file.path)
            sha256 = known.sha256 if known else file.sha256 or file.git_sha1.zfill(64)
            chunks = known.chunks if known else ()
            files.append(WeightFile(file.path, file.size, MODE, sha256, chunks))
        return Manifest(name, in_order(files), origin=self.origin)


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
        """Return the file in the hub's own client's cache on this machine, if any."""

    def require_downloadable(self, listing: Listing, *, here: bool = True) -> None:
        """Raise RequirementsNotMet for files that the hub does not serve over plain HTTP. `here`:
        this machine downloads, and uses what `cached` has."""


def endpoint_of(given: str | None, default: str) -> str:
    """Return the hub's address from an environment variable's value, or the default one."""
    address = (given or "").strip() or default
    if not address.lower().startswith(("http://", "https://")):
        address = f"https://{address}"
    return address.rstrip("/")


def may_carry_token(endpoint: str) -> bool:
    """Whether a token may be sent: only over https, or to localhost."""
    parts = urlsplit(endpoint)
    return parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1", "::1")


def needed(listing: Listing, include: str | None = None) -> Listing:
    """Keep the files that vLLM reads, with the weights in a single format, preferably safetensors.

    `include` is a pattern that the paths of weights must match. Raises RequirementsNotMet when the
    repository has no weights, or several quantizations to choose from; StepFailed for a file that
    would end up outside the model's directory.
    """
    try:  # hosts write these paths as root, and name blobs by these hashes
        listing.manifest("model")
    except ValueError as error:
        raise StepFailed(
            f"{listing.hub} lists an invalid file in {listing.model_id}: {error}",
            hint="check the hub's address, and that no other server answers in its place",
        ) from error
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
    return replace(listing, files=files)


def _is_weight(file: HubFile, include: str | None) -> bool:
    known = "/" not in file.path and file.path.endswith(_FORMATS)
    return known and (include is None or fnmatch(file.path, include))


# Bytes of a listing: 3000 files of ModelScope, or all of a Hugging Face repository, are some MB.
LARGEST_LISTING = 64 << 20

# Bytes read of an error response, of which one sentence is shown.
LARGEST_REFUSAL = 64 << 10

NO_ROUTE = (
    "does this machine have internet access? HTTPS_PROXY is honored, HF_ENDPOINT names a mirror; "
    "or let a host that has access download it: clusterctl model pull ... --on HOST"
)

UNTRUSTED = "name its CA in the inventory: packages.ca"

# It logs URLs, and those of the Hub's storage are signed: anyone who has one can download.
logging.getLogger("huggingface_hub").propagate = False
logging.getLogger("huggingface_hub").addHandler(logging.NullHandler())

# Its telemetry sends a request to huggingface.co before the first request of its caller
# (utils/_detect_agent.py in 2.4), also if HF_ENDPOINT was not set when it was imported.
constants.HF_HUB_DISABLE_TELEMETRY = True


@contextmanager
def hub_session(through: httpx2.BaseTransport | None = None, *, ca: str = "") -> Iterator[None]:
    """Send requests to hubs from this machine, or `through` a host, until the end of the block.
    `ca`: CA certificates in PEM to trust besides this machine's."""
    huggingface_hub.set_client_factory(partial(_client, through, ca))
    try:
        yield
    finally:
        huggingface_hub.set_client_factory(_client)


def _client(through: httpx2.BaseTransport | None = None, ca: str = "") -> httpx2.Client:
    # httpx2 drops credentials on a redirect to another server, such as the Hub's redirects to
    # its storage.
    return httpx2.Client(
        transport=through,
        verify=trusting(ca) if ca else True,
        follow_redirects=True,
        timeout=deadlines.WEB,
        headers={"User-Agent": f"clusterctl/{__version__}"},
        event_hooks={"response": [_limit]},
    )


# Extension of requests for a model's files: their responses are of any length.
FILE = {"clusterctl.file": True}


def _limit(answer: httpx2.Response) -> None:
    """Limit the bytes read from a response: a server or a proxy may send one that never ends."""
    leave_unread(answer)
    is_file = answer.is_success and answer.request.extensions.keys() >= FILE.keys()
    if is_file or answer.has_redirect_location:
        return
    if not isinstance(answer.stream, httpx2.SyncByteStream):
        return
    most, data = LARGEST_LISTING if answer.is_success else LARGEST_REFUSAL, bytearray()
    for piece in answer.stream:
        data += piece
        if len(data) > most:
            break
    answer.stream.close()
    if answer.is_success and len(data) > most:
        raise StepFailed(
            f"{answer.request.url.host} sent more than {most >> 20} MiB, "
            "too much for a list of a model's files",
            hint="check HF_ENDPOINT and MODELSCOPE_ENDPOINT",
        )
    answer.stream = httpx2.ByteStream(bytes(data[:most]))


def refusal_of_file(
    hub: Hub, listing: Listing, url: str, status: int, headers: Mapping[str, str | None]
) -> ClusterctlError:
    """Return the error for a file that the hub refused. `headers`: those with the reason."""
    answer = httpx2.Response(
        status,
        headers={name: value for name, value in headers.items() if value},
        request=httpx2.Request("GET", url),
    )
    return hub.refusal(answer, listing.model_id, listing.revision)


@contextmanager
def hub_errors(hub: Hub, model_id: str, revision: str) -> Iterator[None]:
    """Convert errors of a request to `hub` into errors with a hint."""
    try:
        yield
    except HfHubHTTPError as error:
        raise hub.refusal(error.response, model_id, revision) from error
    except httpx2.InvalidURL as error:
        raise StepFailed(
            f"{hub.endpoint} is not a valid address: {error}",
            hint="check HF_ENDPOINT and MODELSCOPE_ENDPOINT",
        ) from error
    except httpx2.HTTPError as error:
        timed_out = isinstance(error, httpx2.TimeoutException)
        server = error.request.url.netloc.decode()
        if "certificate" in str(error).lower():
            text, hint, again = f"the certificate of {server} is not trusted here", UNTRUSTED, None
        else:
            again = 1.0
            why = "did not respond in time" if timed_out else f"cannot be reached: {error}"
            text, hint = f"{server} {why}", NO_ROUTE
        raise FetchFailed(text, again=again, hint=hint, detail=repr(error)) from error
