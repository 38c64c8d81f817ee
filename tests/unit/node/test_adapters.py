"""Adapters of a running vLLM: loaded by the supervisor alone, asked once, routed where they are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusterctl.node.adapters import AdaptersWithToken
from clusterctl.node.documents import Member, MembersDocument
from clusterctl.node.gateway_config import models_map
from clusterctl.node.gateway_members import MemberProof, gateway_services, of_member, with_adapters
from tests.fakes.node_bench import Bench, await_value


def lora(bench: Bench, name: str) -> str:
    place = bench.root / "models" / f"{name}-1"
    place.mkdir(parents=True)
    (place / "adapter_config.json").write_text("{}")
    return str(place)


def declare(bench: Bench, **adapters: str) -> None:
    argv = [*bench.declare().argv, "--enable-lora"]
    bench.declare(argv=argv, adapters=adapters)


def test_adapters_are_loaded_asked_and_unloaded_while_the_service_runs(bench: Bench) -> None:
    declare(bench)
    bench.start()
    bench.await_service("ready", adapters={})
    sql, code = lora(bench, "sql"), lora(bench, "code")

    declare(bench, sql=sql, code=code)
    bench.await_service("ready", adapters={"sql": "", "code": ""})
    declare(bench, code=code)

    bench.await_service("ready", adapters={"code": ""})
    assert len(bench.starts("vllm")) == 1
    env = bench.starts("vllm")[0]["env"]
    assert env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert "clusterctl.node.adapters.AdaptersWithToken" in bench.starts("vllm")[0]["argv"]


def test_they_are_loaded_again_after_a_restart(bench: Bench) -> None:
    declare(bench, sql=lora(bench, "sql"))
    bench.start()
    first = bench.await_service("ready", adapters={"sql": ""})

    (bench.root / "vllm.die").touch()
    await_value(lambda: len(bench.starts("vllm")) == 2, "another start")

    assert bench.await_service("ready", adapters={"sql": ""}).since > first.since


def test_one_that_is_gone_from_the_host_or_cannot_be_loaded_says_why(bench: Bench) -> None:
    bench.behaviour("vllm", {"bad_adapter": "big"})
    declare(bench, big=lora(bench, "big"), lost="/data/models/adapters/lost-1")
    bench.start()

    state = bench.await_service("ready")
    await_value(lambda: len((bench.service() or state).adapters) == 2, "both to be tried")

    found = (bench.service() or state).adapters
    assert "LoRA rank 64 is greater than max_lora_rank 16" in found["big"]
    assert found["lost"] == "/data/models/adapters/lost-1 is not on this host"


def test_a_service_started_without_them_opens_no_path_for_them(bench: Bench) -> None:
    bench.declare(adapters={"sql": lora(bench, "sql")})
    bench.start()

    bench.await_service("ready", adapters={})
    start = bench.starts("vllm")[0]
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in start["env"]
    assert "clusterctl.node.adapters.AdaptersWithToken" not in start["argv"]


@pytest.mark.parametrize(
    ("path", "shown", "passed"),
    [
        ("/v1/load_lora_adapter", "", False),
        ("/v1/unload_lora_adapter", "wrong", False),
        ("/adapters/sql", "wrong", False),
        ("/v1/load_lora_adapter", "right", True),
        ("/v1/completions", "", True),
    ],
)
def test_without_the_supervisors_token_vllms_paths_are_not_there(
    path: str, shown: str, passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERCTL_ADAPTERS_TOKEN", "right")
    reached, sent = list[str](), list[dict[str, Any]]()

    async def app(scope: dict[str, Any], _: Any, __: Any) -> None:
        reached.append(scope["path"])

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "headers": [(b"x-clusterctl-adapters", shown.encode())]}
    asyncio.run(AdaptersWithToken(app)(scope, None, send))

    assert reached == ([path] if passed else [])
    assert [each.get("status") for each in sent] == ([] if passed else [404, None])


def test_an_adapter_is_a_service_of_the_members_that_have_it() -> None:
    members = [Member(n, f"gpu{n}", f"10.0.0.{n}", 8100) for n in (1, 2)]
    document = MembersDocument("chat", ["qwen"], 8000, members, adapters={"sql": "/models/sql-1"})
    has, lacks = MemberProof(ready=True, adapters=frozenset({"sql"})), MemberProof(ready=True)

    services = gateway_services({"chat": document}, {"chat": "key"}, {})
    admitted = with_adapters(document, {"replica-1": has, "replica-2": lacks})

    assert [each.name for each in services] == ["chat", "chat:sql"]
    assert models_map(services) == {"qwen": "service-chat", "sql": "service-chat:sql"}
    assert [proof.ready for proof in admitted["chat"].values()] == [True, True]
    assert [proof.ready for proof in admitted["chat:sql"].values()] == [True, False]


def test_requests_of_adapters_count_where_their_replica_is_drained() -> None:
    counts = {"service-chat/replica-1": 2, "service-chat:sql/replica-1": 3,
              "service-chat:sql/replica-2": 5, "service-chat2/replica-1": 7}  # fmt: skip

    assert of_member(counts, "chat", "replica-1") == 5
    assert of_member(counts, "chat", "replica-2") == 5
