"""Both hubs, as far as a server on this machine can play them: listing, refusals, downloads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.errors import RequirementsNotMet, StepFailed
from clusterctl.transfer.weights.hashing import HashCache
from clusterctl.transfer.weights.hub import Hub, HubFile, Listing, hub_session, needed
from clusterctl.transfer.weights.hub_source import HubSource
from clusterctl.transfer.weights.huggingface import HuggingFace
from clusterctl.transfer.weights.modelscope import ModelScope
from tests.fakes.hubs import COMMIT, TOKEN, FakeHubs, running_hubs
from tests.unit.transfer.weights.conftest import safetensors

MODEL = "Org/Tiny-1B"
FILES = {
    ".gitattributes": b"*.safetensors filter=lfs",
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model-1.safetensors": safetensors(70_000),
    "model-2.safetensors": safetensors(50_000),
    "pytorch_model.bin": b"x" * 5000,
    "original/consolidated.00.pth": b"x" * 5000,
}


@pytest.fixture
def hubs() -> Iterator[FakeHubs]:
    with running_hubs(FakeHubs(models={MODEL: dict(FILES)})) as running:
        yield running


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    with hub_session():
        yield


def hub_of(kind: str, hubs: FakeHubs, token: str | None = None) -> Hub:
    if kind == "hf":
        return HuggingFace(hubs.endpoint, token or False)
    return ModelScope(hubs.endpoint, token)


def source_of(hub: Hub, listing: Listing, tmp_path: Path) -> HubSource:
    return HubSource(hub, listing, say=lambda _: None, cache=HashCache(tmp_path / "hashes"))


def bring(hub: Hub, listing: Listing, tmp_path: Path) -> dict[str, bytes]:
    """Read all files, as hosts would."""
    source = source_of(hub, listing, tmp_path)
    return {
        file.path: b"".join(source.open(file.blob)) for file in source.manifest("Tiny-1B").files
    }


NEEDED = {
    path: FILES[path]
    for path in ("config.json", "tokenizer.json", "model-1.safetensors", "model-2.safetensors")
}


@pytest.mark.parametrize("kind", ["hf", "modelscope"])
def test_what_vllm_needs_arrives_whole(kind: str, hubs: FakeHubs, tmp_path: Path) -> None:
    hub = hub_of(kind, hubs, TOKEN)
    listing = needed(hub.listing(MODEL, None))
    assert {file.path for file in listing.files} == NEEDED.keys()
    assert listing.size == sum(map(len, NEEDED.values()))
    assert bring(hub, listing, tmp_path) == NEEDED
    manifest = source_of(hub, listing, tmp_path).manifest("Tiny-1B")
    for file in manifest.files:
        assert file.sha256 == hashlib.sha256(FILES[file.path]).hexdigest()


def test_a_hugging_face_listing_is_of_one_commit_and_has_hashes(hubs: FakeHubs) -> None:
    listing = hub_of("hf", hubs).listing(MODEL, "main")
    assert listing.origin == f"hf:{MODEL}@{COMMIT}"
    assert len(listing.files) == len(FILES)
    assert all(COMMIT in file.url and bool(file.sha256) != bool(file.git_sha1)
               for file in listing.files)  # fmt: skip


def test_a_connection_that_breaks_costs_no_byte_twice(hubs: FakeHubs, tmp_path: Path) -> None:
    hubs.cut = {"model-1.safetensors": 30_000}
    hub = hub_of("hf", hubs)
    assert bring(hub, needed(hub.listing(MODEL, None)), tmp_path) == NEEDED
    ranged = {line.partition(" ")[2] for line in hubs.asked if "signed" in line}
    assert ranged == {"", "bytes=30000-", "bytes=60000-"}


@pytest.mark.parametrize("ranges", [True, False])
def test_a_file_is_read_from_any_byte_on(ranges: bool, hubs: FakeHubs, tmp_path: Path) -> None:
    hubs.ranges = ranges
    hub = hub_of("hf", hubs)
    source = source_of(hub, needed(hub.listing(MODEL, None)), tmp_path)
    for file in source.manifest("Tiny-1B").files:
        assert b"".join(source.open(file.blob, 1)) == FILES[file.path][1:]


def test_wrong_bytes_without_a_sha256_are_fetched_again_once_and_then_refused(
    hubs: FakeHubs, tmp_path: Path
) -> None:
    hub = hub_of("hf", hubs)
    listing = needed(hub.listing(MODEL, None))
    hubs.wrong = {"config.json": 1}
    assert bring(hub, listing, tmp_path) == NEEDED
    hubs.wrong = {"tokenizer.json": 2}
    with pytest.raises(StepFailed, match=r"tokenizer.json arrived twice with a hash other"):
        bring(hub, listing, tmp_path)


def test_a_large_file_has_no_limit_that_listings_have(
    hubs: FakeHubs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterctl.transfer.weights.hub.LARGEST_LISTING", 40_000)
    hub = hub_of("hf", hubs)
    assert bring(hub, needed(hub.listing(MODEL, None)), tmp_path) == NEEDED


def test_an_overloaded_hub_is_asked_again(hubs: FakeHubs, tmp_path: Path) -> None:
    hubs.busy = {"model-1.safetensors": 1}
    hub = hub_of("hf", hubs)
    assert bring(hub, needed(hub.listing(MODEL, None)), tmp_path) == NEEDED


@pytest.mark.parametrize("kind", ["hf", "modelscope"])
def test_who_may_not_have_it_is_told_what_to_do(kind: str, hubs: FakeHubs) -> None:
    hubs.private = {MODEL}
    with pytest.raises(RequirementsNotMet) as raised:
        hub_of(kind, hubs).listing(MODEL, None)
    assert ("HF_TOKEN" if kind == "hf" else "MODELSCOPE_API_TOKEN") in str(raised.value.hint)
    assert MODEL in str(raised.value.hint)
    hub_of(kind, hubs, TOKEN).listing(MODEL, None)
    with pytest.raises(RequirementsNotMet):
        hub_of(kind, hubs, TOKEN).listing("Org/Nothing", None)
    with pytest.raises(RequirementsNotMet, match="no revision v9"):
        hub_of(kind, hubs, TOKEN).listing(MODEL, "v9")


def test_a_gated_model_names_the_page_to_accept(hubs: FakeHubs, tmp_path: Path) -> None:
    hubs.gated = {MODEL}
    hub = hub_of("hf", hubs)
    listing = needed(hub.listing(MODEL, None))
    with pytest.raises(RequirementsNotMet) as raised:
        bring(hub, listing, tmp_path)
    assert f"accept them at {hubs.endpoint}/{MODEL}" in str(raised.value.hint)
    allowed = hub_of("hf", hubs, TOKEN)
    assert bring(allowed, listing, tmp_path) == NEEDED


def test_no_hub_at_all() -> None:
    hub = HuggingFace("http://127.0.0.1:9", False)
    with pytest.raises(StepFailed, match=r"127\.0\.0\.1:9 cannot be reached") as raised:
        hub.listing(MODEL, None)
    assert "HTTPS_PROXY" in str(raised.value.hint)


def test_a_repository_without_weights(hubs: FakeHubs) -> None:
    hubs.models[MODEL] = {"config.json": b"{}"}
    with pytest.raises(RequirementsNotMet, match="no weights in a format that vLLM reads"):
        needed(hub_of("hf", hubs).listing(MODEL, None))


def listing_of(*paths: str) -> Listing:
    return Listing("hf", MODEL, "c", tuple(HubFile(path, 1, "u") for path in paths))


@pytest.mark.parametrize(
    ("paths", "include", "kept"),
    [
        (("a.bin", "a.h5", "flax.msgpack", "config.json"), None, ("a.bin", "config.json")),
        (("a.Q4_K_M.gguf", "a.Q8_0.gguf", "README.md"), "*Q8*", ("a.Q8_0.gguf", "README.md")),
        (("a-00001-of-00002.gguf", "a-00002-of-00002.gguf"), None,
         ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf")),
        (("model.safetensors", "consolidated.safetensors", "a.gguf", "1_Pooling/config.json"),
         None, ("model.safetensors", "1_Pooling/config.json")),
        (("consolidated.safetensors", "params.json"), None,
         ("consolidated.safetensors", "params.json")),
    ],
)  # fmt: skip
def test_one_format_of_the_weights_is_got(
    paths: tuple[str, ...], include: str | None, kept: tuple[str, ...]
) -> None:
    assert tuple(file.path for file in needed(listing_of(*paths), include).files) == kept


def test_of_several_quantizations_one_must_be_chosen() -> None:
    several = listing_of("a.Q4_K_M.gguf", "a.Q8_0.gguf")
    with pytest.raises(
        RequirementsNotMet, match="has 2 models, and vLLM serves one at a time"
    ) as raised:
        needed(several)
    assert "--include" in str(raised.value.hint)
    with pytest.raises(RequirementsNotMet, match=r"no weights that match \*Q2\*"):
        needed(several, "*Q2*")


def test_access_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_ENDPOINT", "HF_TOKEN", "MODELSCOPE_ENDPOINT", "MODELSCOPE_DOMAIN"):
        monkeypatch.delenv(name, raising=False)
    assert HuggingFace().endpoint == "https://huggingface.co"
    assert ModelScope().endpoint == "https://www.modelscope.cn"
    monkeypatch.setenv("HF_TOKEN", " hf_env\n")
    monkeypatch.setenv("HF_ENDPOINT", "mirror.example/")
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "ms env\n")
    named = HuggingFace()
    assert named.endpoint == "https://mirror.example"
    assert named.headers["authorization"] == "Bearer hf_env"
    assert "hf_env" not in repr(named)
    assert ModelScope().headers["Cookie"] == "m_session_id=msenv"


def test_what_the_hubs_own_client_has_is_not_downloaded_again(
    hubs: FakeHubs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = tmp_path / "hub" / f"models--{MODEL.replace('/', '--')}" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "model-1.safetensors").write_bytes(FILES["model-1.safetensors"])
    (snapshot / "model-2.safetensors").write_bytes(b"x" * len(FILES["model-2.safetensors"]))
    hub = hub_of("hf", hubs)
    listing = needed(hub.listing(MODEL, None))
    hubs.asked.clear()
    assert bring(hub, listing, tmp_path) == NEEDED
    assert not [line for line in hubs.asked if "model-1" in line]


def test_a_file_that_the_hub_gives_only_to_its_own_client_is_named() -> None:
    hub = HuggingFace("https://hub.example", False)
    large = HubFile("model.gguf", 50_000_000_001, "u")
    with pytest.raises(
        RequirementsNotMet, match=r"model.gguf of .* is larger than 50 GB"
    ) as raised:
        hub.require_downloadable(Listing("hf", MODEL, COMMIT, (large,)))
    assert f"hf download {MODEL} --revision {COMMIT} model.gguf" in str(raised.value.hint)
    hub.require_downloadable(listing_of("model.safetensors"))


def test_an_offline_hub_is_not_asked(hubs: FakeHubs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(RequirementsNotMet, match="HF_HUB_OFFLINE is set") as raised:
        hub_of("hf", hubs).listing(MODEL, None)
    assert "model push" in str(raised.value.hint)
    assert hubs.asked == []


def test_a_hub_that_is_asked_too_often_says_for_how_long(hubs: FakeHubs) -> None:
    hubs.limited = 17
    with pytest.raises(StepFailed, match="status 429") as raised:
        hub_of("hf", hubs).listing(MODEL, None)
    assert "in 17 s" in str(raised.value.hint)
