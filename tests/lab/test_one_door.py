"""The five commands of docs/rag.md on whole hosts: chat, embeddings, a reranker and speech behind
one door, with three keys and two adapters. Embeddings have real weights, the others random ones."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import httpx2
import pytest

from clusterctl.kinds.speech import tones
from tests.lab.cluster import Operator, until
from tests.lab.lora import adapter
from tests.vllm.conftest import engine, minilm, models
from tests.vllm.test_rag import ANSWERS, asker

__all__ = ["engine", "minilm", "models"]

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.timeout(1800, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

CHAT = ("--max-model-len", "1024", "--enable-lora", "--max-lora-rank", "8")
SERVICES = {"chat": "text", "embedder": "embed", "reranker": "rerank", "whisper": "speech"}
ADAPTERS = {"sql": 1, "support": 5}


@pytest.fixture(scope="module")
def cluster(operator: Operator, used_hosts: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two hosts with two devices each: a seat for every model."""
    file = tmp_path_factory.mktemp("inventory") / "lab.yaml"
    file.write_text(Path(used_hosts).read_text().replace("gpus: 1", "gpus: 2"))
    operator.ok("bootstrap", str(file), "--yes", timeout=1000)


@pytest.mark.usefixtures("cluster")
def test_four_kinds_answer_behind_one_door(
    operator: Operator, minilm: Path, models: Path, tmp_path: Path
) -> None:
    sources = {"embedder": minilm, "reranker": models / "reranker", "whisper": models / "whisper"}
    for name, source in sources.items():
        place = shutil.copytree(source, tmp_path / name)
        operator.ok("model", "push", str(place), "--yes", timeout=300)
    pairs = [f"{name}={adapter(tmp_path / name, seed)}" for name, seed in ADAPTERS.items()]

    served = [operator.ok("serve", "/data/models/tiny", "--name", "chat", "--tp", "1", "--yes",
                          "--json", "--", *CHAT, timeout=900)]  # fmt: skip
    for name in sources:
        words = ("serve", f"/data/models/{name}", "--tp", "1", "--yes", "--json")
        served.append(operator.ok(*words, timeout=900))
    operator.ok("adapter", "add", "chat", *pairs)
    keys = [
        operator.ok("key", "create", *words).stdout.strip()
        for words in (("web",), ("notebooks", "--requests", "600/min"),
                      ("batch", "--tokens", "5M/day", "--models", "whisper,sql"))
    ]  # fmt: skip

    kinds = {each.json["service"]: each.json["answer"]["kind"] for each in served}
    assert kinds == SERVICES
    door = served[0].json["endpoint"]  # Each service also has a port of its own
    every = {*SERVICES, *ADAPTERS}

    def listed(key: str) -> set[str]:
        headers = {"Authorization": f"Bearer {key}"}
        answer = httpx2.get(f"{door}/models", headers=headers, timeout=60, trust_env=False)
        assert answer.status_code == 200, answer.text
        return {model["id"] for model in answer.json()["data"]}

    until(lambda: listed(keys[0]) == every, within=60, what="every model at the gateway")
    assert [listed(key) for key in keys] == [every] * 3

    given = {"CLUSTER_URL": door.removesuffix("/v1"), "CLUSTERCTL_API_KEY": keys[1]}
    ask = asker(tmp_path, **given, EMBEDDER="embedder")
    assert [ask(question)[0].removeprefix("- ") for question in ANSWERS] == [*ANSWERS.values()]

    # Random weights order and answer as they will. That both were asked, the gateway says: how many
    # requests each model answered, and how many tokens were generated for this key.
    def answered() -> dict[str, int]:
        members = operator.ok("status", "--json").json["gateway"]["members"]
        return {each["service"]: each["requests"] for each in members}

    def used() -> dict[str, int]:
        uses = {each["name"]: each for each in operator.ok("key", "ls", "--json").json}
        return {what: uses["notebooks"][what] for what in ("requests", "completion_tokens")}

    # The gateway counts a request when its answer has ended.
    before_chat = {"requests": len(ANSWERS), "completion_tokens": 0}
    until(
        lambda: used() == before_chat, within=30, what="each question counted, no token generated"
    )
    before = answered()
    whole = asker(tmp_path, **given, EMBEDDER="embedder", RERANKER="reranker", CHAT="chat")
    lines = whole("Who made the first one?")
    once_more = {**before, **{name: before[name] + 1 for name in ("embedder", "reranker", "chat")}}
    until(lambda: answered() == once_more, within=30, what="one more request at each of the three")
    assert used()["completion_tokens"] > 0
    passages = {f"- {passage}" for passage in ANSWERS.values()}
    assert len(passages & set(lines[:3])) == 3, lines

    spoken = httpx2.post(
        f"{door}/audio/transcriptions",
        headers={"Authorization": f"Bearer {keys[2]}"},
        data={"model": "whisper", "max_completion_tokens": "8"},
        files={"file": ("question.wav", tones())},
        timeout=120,
        trust_env=False,
    )
    assert spoken.status_code == 200, spoken.text
    assert "text" in spoken.json()

    # The same key is for one of the adapters, and neither for the other nor for their model.
    for model, status in {"sql": 200, "support": 403, "chat": 403}.items():
        answer = httpx2.post(
            f"{door}/completions",
            headers={"Authorization": f"Bearer {keys[2]}"},
            json={"model": model, "prompt": "Hello", "max_tokens": 4},
            timeout=60,
            trust_env=False,
        )
        assert answer.status_code == status, (model, answer.text)
