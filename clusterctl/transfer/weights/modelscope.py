"""ModelScope: what a model has, file by file.

GET /api/v1/models/{id}/repo/files?Revision=&Recursive= lists entries with Path, Size, Sha256 and
Type (`blob` or `tree`); a file is at /api/v1/models/{id}/repo?Revision=&FilePath=. A listing is
cut at 3000 entries and says nothing of it. A token goes both as a cookie `m_session_id` and as
a bearer token. All as ModelScope's own client has it (modelscope_hub: _legacy_api.py, constants).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from clusterctl.errors import ClusterctlError, RequirementsNotMet, StepFailed
from clusterctl.transfer.weights.hub import Answer, HubFile, Listing, Web
from clusterctl.transfer.weights.hub_access import Access

DEFAULT_REVISION = "master"
MOST_ENTRIES = 3000
"""A listing of this length is not known to be whole."""


class ModelScope:
    """modelscope.cn, or another site with its API (MODELSCOPE_ENDPOINT)."""

    def __init__(self, web: Web, access: Access) -> None:
        self._web = web
        self._access = access

    @property
    def headers(self) -> Mapping[str, str]:
        token = self._access.token
        if not token:
            return {}
        return {"Authorization": f"Bearer {token}", "Cookie": f"m_session_id={token}"}

    def listing(self, model_id: str, revision: str | None) -> Listing:
        """See Hub."""
        wanted = revision or DEFAULT_REVISION
        query = urlencode({"Revision": wanted, "Recursive": "True"})
        entries = self._entries(f"{self._api(model_id)}/files?{query}", model_id, wanted)
        if len(entries) >= MOST_ENTRIES:
            raise StepFailed(
                f"{model_id} has {MOST_ENTRIES} files or more, and ModelScope lists no others",
                hint="get it with its own client, then: clusterctl model push DIRECTORY",
            )
        try:
            files = tuple(self._files(model_id, wanted, entries))
            return Listing("modelscope", model_id, _commit(entries, wanted), files)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StepFailed(
                f"{self._access.endpoint} did not answer as ModelScope does",
                hint="is MODELSCOPE_ENDPOINT right, and is no login page of a proxy in between?",
                detail=repr(error),
            ) from error

    def _files(
        self, model_id: str, revision: str, entries: list[dict[str, Any]]
    ) -> Iterator[HubFile]:
        for entry in entries:
            if entry.get("Type") == "tree":
                continue
            path = str(entry["Path"])
            query = urlencode({"Revision": revision, "FilePath": path}, quote_via=quote)
            yield HubFile(
                path=path,
                size=int(entry["Size"]),
                url=f"{self._api(model_id)}?{query}",
                sha256=str(entry.get("Sha256") or ""),
            )

    def _entries(self, url: str, model_id: str, revision: str) -> list[dict[str, Any]]:
        answer = self._web.get(url, self.headers)
        document = _decoded(answer)
        if answer.status != 200 or not isinstance(document, dict) or document.get("Code") != 200:
            raise self.refusal(answer, model_id, revision)
        data = document.get("Data") or {}
        files = data.get("Files") if isinstance(data, dict) else data
        return files if isinstance(files, list) else []

    def refusal(self, answer: Answer, model_id: str, revision: str) -> ClusterctlError:
        """See Hub."""
        document = _decoded(answer)
        said = str(document.get("Message", "")) if isinstance(document, dict) else None
        page = f"{self._access.endpoint}/models/{model_id}"
        if answer.status in {401, 403}:
            return RequirementsNotMet(
                f"{model_id} is not for everyone on ModelScope",
                hint=f"ask for access at {page}, and {self._access.how_to_log_in}",
                detail=said,
            )
        if answer.status == 404 or (answer.status == 200 and document is not None):
            return RequirementsNotMet(
                f"{model_id} has no revision {revision} on ModelScope, or is not there at all",
                hint=f"organisations may be called otherwise there; look it up: {page}",
                detail=said,
            )
        return StepFailed(
            f"{self._access.endpoint} answered {answer.status} for {model_id}",
            hint="run the same command again in a while",
            detail=said,
        )

    def _api(self, model_id: str) -> str:
        return f"{self._access.endpoint}/api/v1/models/{model_id}/repo"


def _decoded(answer: Answer) -> Any:
    try:
        return json.loads(answer.body)
    except ValueError:
        return None


def _commit(entries: list[dict[str, Any]], revision: str) -> str:
    """The newest commit that touched a file: with the branch's name it tells versions apart."""
    dated = [(int(e.get("CommittedDate") or 0), str(e.get("Revision") or "")) for e in entries]
    newest = max(dated, default=(0, ""))[1]
    return f"{revision}-{newest[:12]}" if newest else revision
