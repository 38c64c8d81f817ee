"""ModelScope: the files of a model, by its HTTP API.

GET /api/v1/models/{id}/repo/files?Revision=&Recursive= lists entries with Path, Size, Sha256 and
Type (`blob` or `tree`); a file is at /api/v1/models/{id}/repo?Revision=&FilePath=. A listing is
silently cut at 3000 entries. A token is sent both as the cookie `m_session_id` and as a bearer
token. ModelScope's own client does the same (modelscope_hub: _legacy_api.py, constants.py). That
client is not used, since it cannot send requests through a host, and only a listing is needed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx2
import huggingface_hub

from clusterctl.errors import ClusterctlError, RequirementsNotMet, StepFailed
from clusterctl.transfer.weights.hub import (
    HubFile,
    Listing,
    endpoint_of,
    hub_errors,
    may_carry_token,
)

DEFAULT_REVISION = "master"

# A listing of this length may have been cut.
MOST_ENTRIES = 3000


class ModelScope:
    """modelscope.cn, or a different site with its API (MODELSCOPE_ENDPOINT)."""

    def __init__(self, endpoint: str | None = None, token: str | None = None) -> None:
        """Use MODELSCOPE_API_TOKEN if `token` is None. The token of `modelscope login` is a pickle
        (modelscope_hub: config.py), and is not read."""
        env = os.environ
        self.endpoint = endpoint or endpoint_of(
            env.get("MODELSCOPE_ENDPOINT") or env.get("MODELSCOPE_DOMAIN"),
            "https://www.modelscope.cn",
        )
        # Copied tokens may contain blanks and line ends, which would break the header.
        self._token = "".join((token or env.get("MODELSCOPE_API_TOKEN") or "").split())

    @property
    def headers(self) -> Mapping[str, str]:
        if not self._token or not may_carry_token(self.endpoint):
            return {}
        return {"Authorization": f"Bearer {self._token}", "Cookie": f"m_session_id={self._token}"}

    def listing(self, model_id: str, revision: str | None) -> Listing:
        wanted = revision or DEFAULT_REVISION
        api = f"{self.endpoint}/api/v1/models/{model_id}/repo"
        query = urlencode({"Revision": wanted, "Recursive": "True"})

        def url_of(path: str) -> str:
            return f"{api}?{urlencode({'Revision': wanted, 'FilePath': path}, quote_via=quote)}"

        with hub_errors(self, model_id, wanted):
            answer = huggingface_hub.get_session().get(
                f"{api}/files?{query}", headers=dict(self.headers)
            )
        document = _document(answer)
        if answer.status_code != 200 or document.get("Code") != 200:
            raise self.refusal(answer, model_id, wanted)
        try:
            entries = document["Data"]["Files"] or []
            files = tuple(
                HubFile(
                    path=str(entry["Path"]),
                    size=int(entry["Size"]),
                    url=url_of(str(entry["Path"])),
                    sha256=str(entry.get("Sha256") or ""),
                )
                for entry in entries
                if entry.get("Type") != "tree"
            )
            # The newest commit of any file is added to the branch name, to distinguish versions.
            newest = max(
                ((int(e.get("CommittedDate") or 0), str(e.get("Revision") or "")) for e in entries),
                default=(0, ""),
            )[1]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StepFailed(
                f"{self.endpoint} did not respond like ModelScope",
                hint="check MODELSCOPE_ENDPOINT, and that no proxy's login page answers instead",
                detail=repr(error),
            ) from error
        if len(entries) >= MOST_ENTRIES:
            raise StepFailed(
                f"{model_id} has {MOST_ENTRIES} files or more, which is all that ModelScope lists",
                hint="download it with ModelScope's own client, then: "
                "clusterctl model push DIRECTORY",
            )
        commit = f"{wanted}-{newest[:12]}" if newest else wanted
        return Listing("modelscope", model_id, commit, files)

    def refusal(self, answer: httpx2.Response, model_id: str, revision: str) -> ClusterctlError:
        document = _document(answer)
        said = str(document.get("Message", "")) or None
        page = f"{self.endpoint}/models/{model_id}"
        if answer.status_code in {401, 403}:
            return RequirementsNotMet(
                f"{model_id} is gated or private on ModelScope",
                hint=f"request access at {page}, and set MODELSCOPE_API_TOKEN",
                detail=said,
            )
        if answer.status_code == 404 or (answer.status_code == 200 and document):
            return RequirementsNotMet(
                f"{model_id} is not on ModelScope, or has no revision {revision} there",
                hint=f"organizations may have different names on it; check: {page}",
                detail=said,
            )
        return StepFailed(
            f"{self.endpoint} responded with status {answer.status_code} for {model_id}",
            hint="run the same command again in a minute",
            detail=said,
        )

    def cached(self, _listing: Listing, _file: HubFile) -> Path | None:
        """See Hub. Always None: the cache of ModelScope's client is not read."""
        return None

    def require_downloadable(self, listing: Listing, *, here: bool = True) -> None:
        """See Hub. ModelScope serves every file over HTTP."""


def _document(answer: httpx2.Response) -> dict[str, Any]:
    """Return the answer's JSON object; {} if it has none."""
    try:
        found = json.loads(answer.content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
