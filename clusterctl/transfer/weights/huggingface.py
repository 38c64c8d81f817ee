"""The Hugging Face Hub: what a model has, file by file.

Listing: GET /api/models/{id}/revision/{revision} and /api/models/{id}/tree/{commit}, the latter
in pages that a Link header leads through; both described by https://huggingface.co/docs/hub/api
and https://huggingface.co/.well-known/openapi.json. A file is at /{id}/resolve/{commit}/{path},
which redirects to where its bytes are. Refusals carry X-Error-Code: GatedRepo, RepoNotFound,
RevisionNotFound (huggingface_hub: utils/_http.py, hf_raise_for_status).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urljoin

from clusterctl.errors import ClusterctlError, RequirementsNotMet, StepFailed
from clusterctl.transfer.weights.hub import Answer, HubFile, Listing, Web
from clusterctl.transfer.weights.hub_access import Access

DEFAULT_REVISION = "main"
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')
MOST_PAGES = 1000
"""A page has up to 1000 entries; no model has a million files."""


class HuggingFace:
    """The Hub, or a mirror that speaks its API (HF_ENDPOINT)."""

    def __init__(self, web: Web, access: Access) -> None:
        self._web = web
        self._access = access

    @property
    def headers(self) -> Mapping[str, str]:
        token = self._access.token
        return {"Authorization": f"Bearer {token}"} if token else {}

    def listing(self, model_id: str, revision: str | None) -> Listing:
        """See Hub."""
        wanted = revision or DEFAULT_REVISION
        about = self._json(
            self._api(model_id, f"revision/{quote(wanted, safe='')}"), model_id, wanted
        )
        commit = str(about["sha"]) if isinstance(about, dict) and about.get("sha") else wanted
        try:
            files = tuple(self._files(model_id, commit))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _unreadable(self._access.endpoint) from error
        return Listing("hf", model_id, commit, files)

    def _files(self, model_id: str, commit: str) -> Iterator[HubFile]:
        for entry in self._entries(model_id, commit):
            if entry.get("type") == "file":
                yield self._file(model_id, commit, entry)

    def _entries(self, model_id: str, commit: str) -> Iterator[dict[str, Any]]:
        url: str | None = f"{self._api(model_id, f'tree/{commit}')}?recursive=true"
        for _ in range(MOST_PAGES):
            if url is None:
                return
            answer = self._get(url, model_id, commit)
            entries = _decoded(answer, url)
            if not isinstance(entries, list):
                raise _unreadable(url)
            yield from entries
            found = _NEXT.search(answer.headers.get("link", ""))
            url = urljoin(url, found.group(1)) if found else None

    def _file(self, model_id: str, commit: str, entry: dict[str, Any]) -> HubFile:
        lfs = entry.get("lfs") or {}
        path = str(entry["path"])
        return HubFile(
            path=path,
            size=int(lfs.get("size", entry["size"])),
            url=f"{self._access.endpoint}/{model_id}/resolve/{commit}/{quote(path)}",
            sha256=str(lfs.get("oid", "")).removeprefix("sha256:"),
            git_sha1="" if lfs else str(entry.get("oid", "")),
        )

    def _api(self, model_id: str, rest: str) -> str:
        return f"{self._access.endpoint}/api/models/{model_id}/{rest}"

    def _json(self, url: str, model_id: str, revision: str) -> Any:
        return _decoded(self._get(url, model_id, revision), url)

    def _get(self, url: str, model_id: str, revision: str) -> Answer:
        # The next page of a mirror's listing may be on the Hub itself, whose token it is not.
        own = url.startswith(f"{self._access.endpoint}/")
        answer = self._web.get(url, self.headers if own else {})
        if answer.status != 200:
            raise self.refusal(answer, model_id, revision)
        return answer

    def refusal(self, answer: Answer, model_id: str, revision: str) -> ClusterctlError:
        """See Hub. A file of a gated model is refused even where its listing is not."""
        code = answer.headers.get("x-error-code", "")
        page = f"{self._access.endpoint}/{model_id}"
        said = answer.headers.get("x-error-message") or None
        if code == "GatedRepo":
            return RequirementsNotMet(
                f"{model_id} is gated: its owner wants its terms accepted first",
                hint=f"accept them at {page}, and {self._access.how_to_log_in}",
                detail=said,
            )
        if code == "RevisionNotFound":
            return RequirementsNotMet(
                f"{model_id} has no revision {revision}", hint=f"see {page}/tree/main"
            )
        if answer.status in {401, 403, 404}:
            return RequirementsNotMet(
                f"{model_id} is not on {self._access.endpoint}, or is private and not for you",
                hint=f"check the name at {page}; if it is private, {self._access.how_to_log_in}",
                detail=said,
            )
        return StepFailed(
            f"{self._access.endpoint} answered {answer.status} for {model_id}",
            hint="run the same command again in a while",
            detail=said,
        )


def _decoded(answer: Answer, url: str) -> Any:
    try:
        return json.loads(answer.body)
    except ValueError as error:
        raise _unreadable(url) from error


def _unreadable(url: str) -> StepFailed:
    return StepFailed(
        f"{url} did not answer as the Hugging Face Hub does",
        hint="is HF_ENDPOINT right, and is no login page of a proxy in between?",
    )
