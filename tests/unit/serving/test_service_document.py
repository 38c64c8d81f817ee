"""The document of a service, and what is said when it changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.errors import UsageError
from clusterctl.models.name import resolve
from clusterctl.node.documents import ServiceDocument, from_json, to_json
from clusterctl.serving.arguments import Launch, Layout
from clusterctl.serving.request import Options, read_request
from clusterctl.serving.service import (
    build_service,
    choose_port,
    difference,
    needs_restart,
    replica_port,
    served_names,
)
from clusterctl.serving.vllm_flags import parse_arguments

PAIR = ("gpu1", "gpu2")


def document(
    *extra: str, name: str | None = None, tp: int = 2, stall_timeout: float | None = None
) -> ServiceDocument:
    model = resolve("qwen2.5-1.5b", "/data/models")
    request = read_request(
        Options("qwen2.5-1.5b", tensor_parallel=tp, name=name, stall_timeout=stall_timeout),
        extra=parse_arguments(extra),
    )
    launch = Launch(
        request=request,
        model_argument="/data/models/Qwen2.5-1.5B-Instruct",
        served_names=served_names(request, model),
        layout=Layout(tp, 1, seats=PAIR[:tp]),
        host="10.0.0.1",
        port=choose_port("qwen2.5-1.5b", request.port, {}),
        entry=model.entry,
        version=(0, 33, 0),
    )
    return build_service(launch)


def test_a_document_says_all_that_the_supervisor_needs() -> None:
    made = document()

    assert (made.name, made.served_name, made.model) == ("qwen2.5-1.5b",) * 3
    assert (made.tensor_parallel, made.pipeline_parallel, made.gpus) == (2, 1, 2)
    assert (made.host, made.port, made.shutdown_timeout) == ("10.0.0.1", 8000, 60.0)
    assert made.env == {"VLLM_ENGINE_READY_TIMEOUT_S": "1800", "HF_HUB_OFFLINE": "1"}
    assert from_json(ServiceDocument, to_json(made)) == made


def test_the_name_given_is_the_name_of_service_and_model() -> None:
    made = document(name="chat")

    assert (made.name, made.served_name) == ("chat", "chat")


def test_serving_the_same_twice_changes_nothing() -> None:
    assert difference(document(), document()) == []
    assert not needs_restart(document(), document())


def test_spelling_a_flag_otherwise_changes_nothing() -> None:
    assert difference(document("--seed", "1"), document("--seed=1")) == []
    assert not needs_restart(document("--max_model_len=9"), document("--max-model-len", "9"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("--seed", "1", "--max-model-len", "5"), ("--max-model-len", "5", "--seed", "1")),
        (("--seed", "1", "--seed", "2"), ("--seed", "2")),
        (("--enforce-eager", "--no-enforce-eager"), ("--no-enforce-eager",)),
    ],
)
def test_the_order_of_flags_and_what_is_overridden_change_nothing(
    one: tuple[str, ...], other: tuple[str, ...]
) -> None:
    old, new = document(*one), document(*other)

    assert difference(old, new) == []
    assert not needs_restart(old, new)
    assert old.fingerprint == new.fingerprint


def test_a_flag_that_vllm_collects_counts_each_time() -> None:
    old, new = document("--middleware", "a", "--middleware", "b"), document("--middleware", "b")

    assert difference(old, new) == ["--middleware: a b → b"]
    assert needs_restart(old, new)


def test_no_restart_goes_without_a_line_that_says_so() -> None:
    old, new = document("--enforce-eager"), document("--enforce-eager=on")

    assert needs_restart(old, new)
    assert difference(old, new)


def test_a_fingerprint_of_another_release_is_no_change() -> None:
    old = replace(document(), fingerprint="made otherwise")

    assert not needs_restart(old, document())


def test_other_flags_are_told_one_by_one() -> None:
    old = document("--max-model-len", "4096", "--seed", "1")
    new = document("--max-model-len", "8192", "--enforce-eager", "--no-enable-prefix-caching", tp=1)

    assert difference(old, new) == [
        "--tensor-parallel-size: 2 → 1",
        "--max-model-len: 4096 → 8192",
        "--enforce-eager: on (new)",
        "--enable-prefix-caching: off (new)",
        "--seed: no longer given (was 1)",
    ]
    assert needs_restart(old, new)


def test_another_model_and_environment_are_told() -> None:
    old = document()
    new = replace(old, argv=[*old.argv[:2], "/data/models/other", *old.argv[3:]], env={"A": "1"})

    lines = difference(old, new)

    assert "model: /data/models/Qwen2.5-1.5B-Instruct → /data/models/other" in lines
    assert "A: 1 (new)" in lines


def test_patience_may_change_without_a_restart() -> None:
    old = document()
    new = replace(old, ready_timeout=60.0)

    assert difference(old, new) == ["ready timeout: 1800 s → 60 s"]
    assert not needs_restart(old, new)


def test_a_stall_timeout_is_the_users_and_restarts_nothing() -> None:
    old = document()
    assert old.stall_timeout == 50
    new = document(stall_timeout=300.0)
    assert difference(old, new) == ["stall timeout: 50 s → 300 s"]
    assert not needs_restart(old, new)


def test_the_users_own_shutdown_timeout_is_kept() -> None:
    assert document("--shutdown-timeout", "5").shutdown_timeout == 5.0


def test_a_service_keeps_its_port_and_a_new_one_gets_the_next_free() -> None:
    running = {"a": 8000, "b": 8001}

    assert choose_port("a", None, running, listening={8000, 8001}) == 8000
    assert choose_port("new", None, running, listening={8000, 8001, 8002}) == 8003
    assert choose_port("b", 9000, running) == 9000
    assert choose_port("a", 8000, running, listening={8000}) == 8000


def test_ports_that_need_a_capability_have_to_be_allowed_first() -> None:
    with pytest.raises(UsageError, match="port 443 is below 1024") as raised:
        choose_port("a", 443, {})
    assert "gateway.low_ports: true" in str(raised.value.hint)
    assert choose_port("a", 443, {}, low=True) == 443


def test_ports_of_replicas_are_for_them_alone() -> None:
    assert choose_port("new", None, {}, listening=range(8000, 8100)) == 8200
    assert choose_port("a", 8150, {"a": 8150}) == 8150
    with pytest.raises(UsageError, match="port 8150 is for replicas, which listen on 8100 to 8199"):
        choose_port("new", 8150, {})
    assert replica_port({8100}, {8101}) == 8102
    with pytest.raises(UsageError, match="all taken"):
        replica_port(range(8100, 8150), range(8150, 8200))


def test_a_port_in_use_names_its_owner_and_a_free_one() -> None:
    running = {"a": 8000}

    with pytest.raises(UsageError, match="port 8000 is taken by the service a") as caught:
        choose_port("new", 8000, running, listening={8000})
    with pytest.raises(UsageError, match="another program on the head"):
        choose_port("new", 22, running, listening={22})

    assert caught.value.hint == "--port 8001 is free"
