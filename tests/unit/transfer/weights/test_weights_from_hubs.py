"""Both hubs, as far as a server on this machine can play them: listing, refusals, downloads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.errors import ClusterctlError, RequirementsNotMet, StepFailed
from clusterctl.transfer.weights.download import Downloads
from clusterctl.transfer.weights.hashing import HashCache
from clusterctl.transfer.weights.hub import Hub, HubFile, Listing, needed
from clusterctl.transfer.weights.hub_access import (
    Access,
    huggingface_access,
    modelscope_access,
)
from clusterctl.transfer.weights.huggingface import HuggingFace
from clusterctl.transfer.weights.modelscope import ModelScope
from clusterctl.transfer.weights.web import OperatorWeb
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


@pytest.fixture
def web() -> Iterator[OperatorWeb]:
    with OperatorWeb(timeout=60) as opened:
        yield opened


def hub_of(kind: str, hubs: FakeHubs, web: OperatorWeb, token: str | None = None) -> Hub:
    access = Access(hubs.endpoint, token, "give your token: HF_TOKEN")
    return HuggingFace(web, access) if kind == "hf" else ModelScope(web, access)


def downloads(
    hub: Hub, web: OperatorWeb, listing: Listing, tmp_path: Path, told: list[int] | None = None
) -> Downloads:
    return Downloads(
        tmp_path / "got",
        web.stream,
        hub.headers,
        explain=lambda r: hub.refusal(r.answer, listing.model_id, listing.revision),
        told=(told if told is not None else []).append,
        cache=HashCache(tmp_path / "hashes"),
        pause=0.01,
    )


@pytest.mark.parametrize("kind", ["hf", "modelscope"])
def test_what_vllm_needs_arrives_whole(
    kind: str, hubs: FakeHubs, web: OperatorWeb, tmp_path: Path
) -> None:
    hub, told = hub_of(kind, hubs, web, TOKEN), list[int]()
    listing = needed(hub.listing(MODEL, None))
    assert {file.path for file in listing.files} == {
        "config.json",
        "tokenizer.json",
        "model-1.safetensors",
        "model-2.safetensors",
    }
    assert listing.size == sum(len(FILES[file.path]) for file in listing.files)
    downloads(hub, web, listing, tmp_path, told).run(list(listing.files))
    for file in listing.files:
        assert (tmp_path / "got" / file.path).read_bytes() == FILES[file.path]
    assert told[-1] == listing.size
    hubs.asked.clear()
    downloads(hub, web, listing, tmp_path).run(list(listing.files))
    assert hubs.asked == []


def test_a_hugging_face_listing_is_of_one_commit_and_has_hashes(
    hubs: FakeHubs, web: OperatorWeb
) -> None:
    listing = hub_of("hf", hubs, web).listing(MODEL, "main")
    assert listing.origin == f"hf:{MODEL}@{COMMIT}"
    assert len(listing.files) == len(FILES)
    assert all(COMMIT in file.url and bool(file.sha256) != bool(file.git_sha1)
               for file in listing.files)  # fmt: skip


@pytest.mark.parametrize("ranges", [True, False])
def test_a_connection_that_breaks_costs_no_byte_twice_where_the_server_takes_ranges(
    ranges: bool, hubs: FakeHubs, web: OperatorWeb, tmp_path: Path
) -> None:
    hubs.ranges = ranges
    hubs.cut = {"model-1.safetensors": 30_000} if ranges else {}
    hub = hub_of("hf", hubs, web)
    listing = needed(hub.listing(MODEL, None))
    part = tmp_path / "got" / "model-2.safetensors.part"
    part.parent.mkdir()
    part.write_bytes(FILES["model-2.safetensors"][:20_000])
    hubs.asked.clear()
    downloads(hub, web, listing, tmp_path).run(list(listing.files))
    for name in ("model-1.safetensors", "model-2.safetensors"):
        assert (tmp_path / "got" / name).read_bytes() == FILES[name]
    ranged = {line.partition(" ")[2] for line in hubs.asked if "signed" in line}
    if ranges:
        assert ranged == {"", "bytes=30000-", "bytes=60000-", "bytes=20000-"}


def test_wrong_bytes_are_fetched_again_once_and_then_refused(
    hubs: FakeHubs, web: OperatorWeb, tmp_path: Path
) -> None:
    hub = hub_of("hf", hubs, web)
    listing = needed(hub.listing(MODEL, None))
    hubs.wrong = {"model-1.safetensors": 1, "config.json": 1}
    downloads(hub, web, listing, tmp_path).run(list(listing.files))
    assert (tmp_path / "got" / "config.json").read_bytes() == FILES["config.json"]
    hubs.wrong = {"model-2.safetensors": 2, "tokenizer.json": 2}
    for name in hubs.wrong:
        (tmp_path / "got" / name).unlink()
    with pytest.raises(ClusterctlError) as raised:
        downloads(hub, web, listing, tmp_path).run(list(listing.files))
    assert "2 problems" in str(raised.value)
    assert not (tmp_path / "got" / "model-2.safetensors").exists()


def test_what_is_hashed_of_what_came_is_told_while_it_is(
    hubs: FakeHubs, web: OperatorWeb, tmp_path: Path
) -> None:
    hub = hub_of("hf", hubs, web)
    listing = needed(hub.listing(MODEL, None))
    for run in ("first", "again, and nobody knows the hashes any more"):
        read: list[int] = []
        cache = HashCache(tmp_path / run)
        Downloads(tmp_path / "got", web.stream, hub.headers, hashing=read.append, cache=cache).run(
            list(listing.files)
        )
        assert max(read) == listing.size


def test_a_reader_follows_a_file_that_is_still_coming(
    hubs: FakeHubs, web: OperatorWeb, tmp_path: Path
) -> None:
    hub = hub_of("hf", hubs, web)
    listing = needed(hub.listing(MODEL, None))
    (file,) = (f for f in listing.files if f.path == "model-1.safetensors")
    hubs.held = {file.path}
    coming = downloads(hub, web, listing, tmp_path)
    runner = threading.Thread(target=lambda: coming.run([file]))
    coming.expect([file])
    runner.start()
    reader = coming.read(file, 10)
    first = next(reader)
    assert FILES[file.path][10:].startswith(first)
    hubs.hold.set()
    assert first + b"".join(reader) == FILES[file.path][10:]
    runner.join(10)


@pytest.mark.parametrize("kind", ["hf", "modelscope"])
def test_who_may_not_have_it_is_told_what_to_do(
    kind: str, hubs: FakeHubs, web: OperatorWeb
) -> None:
    hubs.private = {MODEL}
    with pytest.raises(RequirementsNotMet) as raised:
        hub_of(kind, hubs, web).listing(MODEL, None)
    assert "give your token: HF_TOKEN" in str(raised.value.hint)
    assert MODEL in str(raised.value.hint)
    hub_of(kind, hubs, web, TOKEN).listing(MODEL, None)
    with pytest.raises(RequirementsNotMet):
        hub_of(kind, hubs, web, TOKEN).listing("Org/Nothing", None)
    with pytest.raises(RequirementsNotMet, match="no revision v9"):
        hub_of(kind, hubs, web, TOKEN).listing(MODEL, "v9")


def test_a_gated_model_names_the_page_to_accept(
    hubs: FakeHubs, web: OperatorWeb, tmp_path: Path
) -> None:
    hubs.gated = {MODEL}
    hub = hub_of("hf", hubs, web)
    listing = needed(hub.listing(MODEL, None))
    with pytest.raises(RequirementsNotMet) as raised:
        downloads(hub, web, listing, tmp_path).run(list(listing.files))
    assert f"accept them at {hubs.endpoint}/{MODEL}" in str(raised.value.hint)
    allowed = hub_of("hf", hubs, web, TOKEN)
    downloads(allowed, web, listing, tmp_path).run(list(listing.files))


def test_no_hub_at_all(web: OperatorWeb) -> None:
    hub = HuggingFace(web, Access("http://127.0.0.1:9"))
    with pytest.raises(StepFailed, match=r"127\.0\.0\.1:9 cannot be reached") as raised:
        hub.listing(MODEL, None)
    assert "HTTPS_PROXY" in str(raised.value.hint)


def test_a_repository_without_weights(hubs: FakeHubs, web: OperatorWeb) -> None:
    hubs.models[MODEL] = {"config.json": b"{}"}
    with pytest.raises(RequirementsNotMet, match="no weights that vLLM reads"):
        needed(hub_of("hf", hubs, web).listing(MODEL, None))


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
        RequirementsNotMet, match="has 2 models, of which vLLM serves one"
    ) as raised:
        needed(several)
    assert "--include" in str(raised.value.hint)
    with pytest.raises(RequirementsNotMet, match=r"no weights that match \*Q2\*"):
        needed(several, "*Q2*")


def test_access_comes_from_the_environment_and_the_hubs_own_files(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert huggingface_access(home) == Access(
        "https://huggingface.co", None, huggingface_access(home).how_to_log_in
    )
    token = tmp_path / ".cache" / "huggingface" / "token"
    token.parent.mkdir(parents=True)
    token.write_text("hf_file\n")
    assert huggingface_access(home).token == "hf_file"
    named = huggingface_access({**home, "HF_TOKEN": " hf_env\n", "HF_ENDPOINT": "mirror.example/"})
    assert (named.token, named.endpoint) == ("hf_env", "https://mirror.example")
    assert "hf_env" not in repr(named)
    assert modelscope_access(home).endpoint == "https://www.modelscope.cn"
    assert modelscope_access({**home, "MODELSCOPE_API_TOKEN": "t"}).token == "t"
