"""Servers that list what no hub would: nothing of it is written anywhere, and words say so."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from clusterctl.errors import StepFailed
from clusterctl.transfer.weights.hub import Answer, HubFile, Listing, needed
from clusterctl.transfer.weights.hub_access import Access
from clusterctl.transfer.weights.huggingface import HuggingFace
from clusterctl.transfer.weights.modelscope import ModelScope
from clusterctl.transfer.weights.web import OperatorWeb

MODEL = "Org/Tiny-1B"
TOKEN = "hf_secret"


@pytest.mark.parametrize("path", ["../up.json", "/etc/cron.d/x", "a/../../b", "two\nlines", ""])
def test_a_file_that_would_be_written_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(StepFailed, match=f"lists a file of {MODEL} that no model can have"):
        needed(
            Listing("hf", MODEL, "c", (HubFile("model.safetensors", 1, "u"), HubFile(path, 1, "u")))
        )


def test_a_hash_that_is_none_is_refused() -> None:
    file = HubFile("model.safetensors", 1, "u", sha256="../../" + "a" * 58)
    with pytest.raises(StepFailed, match="that no model can have"):
        needed(Listing("hf", MODEL, "c", (file,)))


class TwoPages:
    """A hub whose second page of the listing is on another server."""

    def __init__(self, elsewhere: str) -> None:
        self._elsewhere = elsewhere
        self.asked: list[tuple[str, bool]] = []

    def get(self, url: str, headers: Mapping[str, str]) -> Answer:
        self.asked.append((url, "Authorization" in headers))
        if "/revision/" in url:
            return Answer(200, {}, b"{}")
        link = {"link": f'<{self._elsewhere}>; rel="next"'} if "/tree/" in url else {}
        return Answer(200, link, b"[]")


@pytest.mark.parametrize(
    ("elsewhere", "told"), [("https://other.example/2", False), ("/api/2", True)]
)
def test_a_token_goes_to_its_hub_alone(elsewhere: str, told: bool) -> None:
    pages = TwoPages(elsewhere)
    HuggingFace(pages, Access("https://hub.example", TOKEN)).listing(MODEL, None)
    assert [known for _, known in pages.asked] == [True, True, told]


class OddEntries:
    """A server that answers, and lists files as no hub does."""

    def get(self, url: str, headers: Mapping[str, str]) -> Answer:
        del url, headers
        return Answer(200, {}, b'{"Code": 200, "Data": {"Files": [{"Path": "x"}, 7]}}')


class OddPage:
    def get(self, url: str, headers: Mapping[str, str]) -> Answer:
        del headers
        return Answer(200, {}, b'[{"type": "file", "path": "x"}]' if "/tree/" in url else b"{}")


def test_a_listing_like_no_other_is_said() -> None:
    access = Access("https://hub.example")
    with pytest.raises(StepFailed, match="did not answer as ModelScope does"):
        ModelScope(OddEntries(), access).listing(MODEL, None)
    with pytest.raises(StepFailed, match="did not answer as the Hugging Face Hub does"):
        HuggingFace(OddPage(), access).listing(MODEL, None)


def test_an_address_that_is_none_is_said() -> None:
    with OperatorWeb() as web, pytest.raises(StepFailed, match=r"is no address") as raised:
        HuggingFace(web, Access("http://hub.example:port")).listing(MODEL, None)
    assert "HF_ENDPOINT" in str(raised.value.hint)
