"""Servers that list what no hub would: nothing of it is written anywhere, and words say so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import httpx2
import pytest

from clusterctl.errors import RequirementsNotMet, StepFailed, UsageError
from clusterctl.transfer.weights.hub import HubFile, Listing, hub_session, needed
from clusterctl.transfer.weights.huggingface import HuggingFace
from clusterctl.transfer.weights.modelscope import ModelScope

MODEL = "Org/Tiny-1B"
TOKEN = "hf_secret"


@pytest.mark.parametrize("path", ["../up.json", "/etc/cron.d/x", "a/../../b", "two\nlines", ""])
def test_a_file_that_would_be_written_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(StepFailed, match=f"lists an invalid file in {MODEL}"):
        needed(
            Listing("hf", MODEL, "c", (HubFile("model.safetensors", 1, "u"), HubFile(path, 1, "u")))
        )


def test_a_hash_that_is_none_is_refused() -> None:
    file = HubFile("model.safetensors", 1, "u", sha256="../../" + "a" * 58)
    with pytest.raises(StepFailed, match="lists an invalid file"):
        needed(Listing("hf", MODEL, "c", (file,)))


def ask_through(
    answer: Callable[[httpx2.Request], httpx2.Response],
) -> AbstractContextManager[None]:
    return hub_session(httpx2.MockTransport(answer))


def test_a_token_goes_to_its_hub_alone() -> None:
    asked: list[tuple[str, bool]] = []

    def redirects(request: httpx2.Request) -> httpx2.Response:
        asked.append((request.url.host, bool(request.headers.keys() & {"authorization", "cookie"})))
        if request.url.host != "hub.example":
            return httpx2.Response(404)
        return httpx2.Response(302, headers={"Location": "https://other.example/2"})

    with ask_through(redirects):
        for hub in (
            HuggingFace("https://hub.example", TOKEN),
            ModelScope("https://hub.example", TOKEN),
        ):
            with pytest.raises(RequirementsNotMet):
                hub.listing(MODEL, None)
    assert asked == [("hub.example", True), ("other.example", False)] * 2


@pytest.mark.parametrize(
    "body", [b"<html>log in</html>", b"[]", b'{"sha": "c", "siblings": [7]}', b'{"siblings": 7}']
)
def test_a_listing_like_no_other_is_said(body: bytes) -> None:
    said = pytest.raises(StepFailed, match="did not respond like the Hugging Face Hub")
    with ask_through(lambda _: httpx2.Response(200, content=body)), said:
        HuggingFace("https://hub.example", False).listing(MODEL, None)
    odd = b'{"Code": 200, "Data": {"Files": [{"Path": "x"}, 7]}}'
    said = pytest.raises(StepFailed, match="did not respond like ModelScope")
    with ask_through(lambda _: httpx2.Response(200, content=odd)), said:
        ModelScope("https://hub.example").listing(MODEL, None)


def test_an_address_that_is_none_is_said() -> None:
    with hub_session(), pytest.raises(StepFailed, match=r"is not a valid address") as raised:
        HuggingFace("http://hub.example:port", False).listing(MODEL, None)
    assert "HF_ENDPOINT" in str(raised.value.hint)


def test_a_name_that_no_model_can_have_is_said() -> None:
    with hub_session(), pytest.raises(UsageError, match="is not the name of a model"):
        HuggingFace("https://hub.example", False).listing("Org/--Tiny..1B", None)


@pytest.mark.parametrize(
    ("endpoint", "sent"),
    [
        ("https://hub.example", True),
        ("http://127.0.0.1:8080", True),
        ("http://hub.example", False),
    ],
)
def test_a_token_is_not_sent_over_http(
    endpoint: str, sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "hf_secret")
    for hub in (HuggingFace(endpoint), ModelScope(endpoint)):
        assert ("hf_secret" in str(hub.headers)) == sent
    refused = HuggingFace(endpoint).refusal(answer_of(401), MODEL, "main")
    assert ("no token is sent over http" in str(refused.hint)) == (not sent)


def answer_of(status: int) -> httpx2.Response:
    return httpx2.Response(status, request=httpx2.Request("GET", "https://hub.example/api"))
