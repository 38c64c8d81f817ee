"""Kinds of models, each served by a real vLLM on the CPU and proven as the supervisor proves it."""

from __future__ import annotations

import math
import socket
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from clusterctl.kinds.kind import PASSAGE, QUERY, UNRELATED, cosine
from clusterctl.kinds.known import kind_named
from clusterctl.models.catalogue import CATALOGUE
from clusterctl.serving.arguments import NO_DOMAIN
from clusterctl.serving.bench import RESULT, BenchLoad, bench_job, read_figures
from clusterctl.serving.service import build_service
from tests.unit.serving.launches import launch
from tests.vllm.engine import KEY, Engine, Served

pytestmark = pytest.mark.timeout(1200)  # On a busy machine

RERANKER = next(each for each in CATALOGUE if each.alias == "qwen3-reranker-0.6b").flags[0].tokens
LATE = '{"task": "token_embed"}'


@dataclass(frozen=True)
class Case:
    """A model, and what it is proven to be."""

    name: str
    model: str
    kind: str
    says: str  # A part of the proof's answer
    flags: tuple[str, ...] = ()
    planned: str = ""

    def __str__(self) -> str:
        return self.name


CASES = (
    Case("text", "tiny", "text", ""),
    Case("reasoning", "thinker", "text", "", ("--reasoning-parser", "deepseek_r1")),
    Case("vision", "llava", "vision", "a picture is red",
         ("--allowed-media-domains", NO_DOMAIN), planned="vision"),
    Case("ocr", "llava", "ocr", "the word on a page", planned="ocr"),
    Case("decoder-embeds", "tiny", "embed", "128 numbers", ("--runner", "pooling")),
    Case("rerank", "reranker", "rerank", "the right passage comes first"),
    Case("decoder-reranks", "yes-or-no", "rerank", "the right passage comes first", RERANKER),
    Case("classify", "classifier", "classify", "3 of them"),
    Case("tags", "tagger", "tokens", "x 3 numbers"),
    Case("token-vectors", "tiny", "tokens", "x 128 numbers",
         ("--runner", "pooling", "--pooler-config", LATE)),
    Case("reward", "judge", "rerank", "the right passage comes first"),
    # The end of a step, which the tokenizer of Qwen2.5-Math-PRM has at 151651
    Case("reward-of-steps", "step-judge", "tokens", "1 x 2 numbers",
         ("--pooler-config", '{"step_tag_id": 261}')),
    Case("speech", "whisper", "speech", "a second of tones", planned="speech"),
)  # fmt: skip


MEASURED = ("decoder-embeds", "rerank", "ocr", "speech")  # One of each unit but tokens


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_kind_is_started_and_proven(
    case: Case, engine: Engine, models: Path, tmp_path: Path
) -> None:
    with engine.serve(models / case.model, tmp_path / "log", case.flags, case.planned) as served:
        api = served.api
        print(f"{case}: {served.seconds:.0f} s, {api.kind and api.kind.name}: {api.answer}")

        assert api.kind is kind_named(case.kind)
        assert case.says in api.answer
        api.send_request(60)  # The canary
        assert api.metrics(10).tokens > 0
        if case.name == "speech":
            translated(served)
        if case.name in MEASURED:
            measured(served, engine, models / case.model, tmp_path)
        if case.name == "text":
            chats(served)
        if case.name == "reasoning":
            thinks(served)
        if case.name == "rerank":
            scores(served)
        if case.name == "vision":
            fetches_nothing(served)


def measured(served: Served, engine: Engine, model: Path, place: Path) -> None:
    """`bench` measures it, in the unit of its kind, as in the node container."""
    kind = served.api.kind
    assert kind is not None
    like = build_service(launch())
    document = replace(like, argv=[*like.argv[:2], str(model)], served_name="m")
    job = bench_job(document, served.url, KEY, BenchLoad(2, None, 64, 8, 4), 7, kind)
    for name, text in job.files.items():
        (place / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    env = {**engine.env, **job.env}
    ran = subprocess.run(job.argv, cwd=place, env=env, capture_output=True, text=True)
    result = place / RESULT
    found = read_figures(result.read_bytes() if result.exists() else None, ran.stdout + ran.stderr,
                         "m", "0.32.0", kind)  # fmt: skip
    print(f"{kind.name}: {found.units_per_s:.2f} {kind.unit}/s, {found}")
    assert (found.completed, found.failed) == (4, 0)
    assert found.speed > 0


def translated(served: Served) -> None:
    """The same model translates."""
    ask = kind_named("speech").ask("", 4)
    kind, body = ask.encoded("m")
    path = "/v1/audio/translations"
    assert served.api.request("POST", path, (kind, body), 60)


def chats(served: Served) -> None:
    """The same model, by its chat template."""
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
    answer = served.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    assert kind_named("text").answer(answer.json())


def thinks(served: Served) -> None:
    """What the model thinks is apart from what it says, and an answer too."""
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
    answer = served.post("/v1/chat/completions", body).json()
    message = answer["choices"][0]["message"]
    assert message["reasoning"]
    assert kind_named("text").answer(answer) == (message["content"] or message["reasoning"])


def scores(served: Served) -> None:
    """The same model compares two texts."""
    body = {"model": "m", "text_1": QUERY, "text_2": [PASSAGE, UNRELATED]}
    answer = served.post("/score", body)
    assert answer.status_code == 200, answer.text
    assert [math.isfinite(one["score"]) for one in answer.json()["data"]] == [True, True]


def fetches_nothing(served: Served) -> None:
    """What a request names by URL, on this machine, is not asked for; a picture in it is read."""
    with socket.create_server(("127.0.0.1", 0)) as inside:
        inside.settimeout(2)
        port = inside.getsockname()[1]
        content = [{"type": "image_url", "image_url": {"url": f"http://127.0.0.1:{port}/a.png"}}]
        messages = [{"role": "user", "content": content}]
        answer = served.post("/v1/chat/completions", {"model": "m", "messages": messages})
        assert answer.status_code == 400, answer.text
        assert NO_DOMAIN in answer.text
        with pytest.raises(TimeoutError):
            inside.accept()


def test_real_weights_embed_as_sentence_transformers_does(
    engine: Engine, minilm: Path, tmp_path: Path
) -> None:
    texts = [QUERY, PASSAGE, UNRELATED, "Ein Satz.", "word " * 200]
    expected = engine.run("reference.py", str(minilm), given=texts)

    with engine.serve(minilm, tmp_path / "log") as served:
        print(f"minilm: {served.seconds:.0f} s, {served.api.answer}")
        answer = served.post("/v1/embeddings", {"model": "m", "input": texts}).json()

    vectors = [one["embedding"] for one in answer["data"]]
    alike = [cosine(one, other) for one, other in zip(vectors, expected, strict=True)]
    assert min(alike) >= 0.999, alike
    assert all(math.isclose(math.hypot(*vector), 1, abs_tol=1e-3) for vector in vectors)
    assert served.api.answer.startswith("384 numbers, similar texts are nearer (0.")


def test_an_adapter_is_loaded_asked_and_unloaded_by_the_supervisor_alone(
    engine: Engine, models: Path, tmp_path: Path
) -> None:
    ask = {"prompt": "Hello", "max_tokens": 8, "temperature": 0}
    load = {"lora_name": "open", "lora_path": str(models / "lora")}

    def answer(served: Served, model: str) -> str | int:
        found = served.post("/v1/completions", {"model": model, **ask})
        return str(found.json()["choices"][0]["text"]) if found.is_success else found.status_code

    with engine.serve(models / "tiny", tmp_path / "log", ("--enable-lora",)) as served:
        adapters = served.adapters
        assert answer(served, "sql") == 404
        assert served.post("/v1/load_lora_adapter", load).status_code == 404

        large = str(models / "lora-of-a-large-rank")
        adapters.wanted = {"sql": str(models / "lora"), "large": large, "lost": "/none"}
        state = adapters.follow()
        own, changed = answer(served, "m"), answer(served, "sql")
        assert state["sql"] == ""
        assert "max_lora_rank" in state["large"]
        assert "is not on this host" in state["lost"]
        assert isinstance(changed, str)
        assert changed != own
        assert served.api.models(10)["sql"] == str(models / "lora")

        adapters.wanted = {}
        assert adapters.follow() == {}
        assert answer(served, "sql") == 404
        assert answer(served, "m") == own
