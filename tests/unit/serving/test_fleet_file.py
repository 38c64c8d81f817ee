"""The fleet file: what a request for each service is made of, and where mistakes are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from clusterctl.errors import UsageError
from clusterctl.inventory.document import read
from clusterctl.serving.fleet_file import FLEET, FleetService, read_fleet, render, schema
from clusterctl.serving.request import Options, read_request
from clusterctl.serving.vllm_flags import parse_arguments
from clusterctl.serving.vllm_flags import render as tokens

EXAMPLES = Path(__file__).parents[3] / "inventory"

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(text: str) -> Path:
        path = tmp_path / "fleet.yaml"
        path.write_text(text)
        return path

    return to_file


def test_the_published_schema_is_up_to_date_and_a_schema() -> None:
    assert (EXAMPLES / "fleet.schema.json").read_text() == render(), (
        "run: python -m clusterctl.serving.fleet_file > inventory/fleet.schema.json"
    )
    Draft202012Validator.check_schema(schema())


def test_the_example_has_every_key_loads_and_is_valid_for_editors() -> None:
    path = EXAMPLES / "fleet.yaml"
    text = path.read_text()
    assert text.startswith("# yaml-language-server: $schema=fleet.schema.json\n")
    assert [key for key in FleetService.model_fields if f"{key}:" not in text] == []
    chat, moe, embed = read_fleet(path)
    assert (moe.data_parallel, moe.replicas, tokens(moe.given)) == (
        2, 1, ["--enable-expert-parallel"],
    )  # fmt: skip
    assert (chat.name, chat.replicas, chat.port) == ("chat", 4, 8000)
    assert embed.replicas == "max"
    Draft202012Validator(schema()).validate(read(path, FLEET).data)


def test_an_entry_is_the_request_that_serve_would_make(write: Write) -> None:
    (found,) = read_fleet(
        write(
            "services:\n"
            "  chat:\n"
            "    model: qwen3-8b\n"
            "    replicas: 2\n"
            "    tp: 2\n"
            "    port: 8001\n"
            "    adapters: {sql: ./sql-lora}\n"
            "    flags:\n"
            "      max_model_len: 8192\n"
            "      gpu-memory-utilization: 0.90\n"
            "      enable-prefix-caching: false\n"
            "      lora-modules: [a=/a, b=/b]\n"
            "      hf-overrides: {rope: 1}\n"
        )
    )
    words = "--max-model-len 8192 --gpu-memory-utilization 0.90 --no-enable-prefix-caching"
    words += " --lora-modules a=/a b=/b --hf-overrides"
    options = Options("qwen3-8b", 2, None, "chat", 8001, None, "2")
    served = read_request(options, (), parse_arguments([*words.split(), '{"rope": 1}']))
    assert tokens(found.given) == tokens(served.given)
    assert (found.model, found.tensor_parallel, found.replicas) == ("qwen3-8b", 2, 2)
    assert found.adapters == {"sql": "./sql-lora"}


def test_the_config_of_vllm_lies_beside_the_file_and_flags_win(
    write: Write, tmp_path: Path
) -> None:
    (tmp_path / "vllm.yaml").write_text("max-model-len: 4096\nseed: 1\n")
    path = write(
        "services: {chat: {model: qwen3-8b, config: vllm.yaml, flags: {max-model-len: 512}}}"
    )
    (found,) = read_fleet(path)
    assert tokens(found.given) == ["--max-model-len", "512", "--seed", "1"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: {model: x, prot: 1}", "2:16: unknown key `services.a.prot`; did you mean port?"),
        ("a: {tp: 1}", "2:2: `services.a.model` is missing"),
        ("a: {model: x, tp: 0}", "2:20: `services.a.tp` must be at least 1, not 0"),
        (
            "a: {model: x, replicas: -1}",
            "must be a number from 1 on, max, or a range such as 1..4; not -1",
        ),
        ("a: {model: x, env: {RAY_ADDRESS: y}}", "RAY_ADDRESS cannot be set here"),
        ("a: {model: x, flags: {api-key: y}}", "2:24: `services.a`: --api-key"),
        ("a: {model: x, tp: 2, flags: {tensor-parallel-size: 3}}", "contradict each other"),
        ("A: {model: x}", "2:2: `services.A`: 'A' cannot be a service's name"),
        ("gateway: {model: x}", "the name gateway is taken by clusterctl itself"),
        ("a: {model: x}\n a: {model: y}", "3:2: `a` is given twice, first on line 2"),
        (
            "a: {model: x, port: 80}\n b: {model: y, port: 80}",
            "3:22: b has the same port as a, on line 2: 80",
        ),
        (
            "a: {model: x}\n b: {model: y, flags: {served-model-name: a}}",
            "b has the same name for API requests as a, on line 2: a",
        ),
        (
            "a: {model: x}\n b: {model: y, adapters: {a: ./lora}}",
            "b has the same name for API requests as a, on line 2: a",
        ),
        ("a: {model: x, adapters: {a/b: ./lora}}", "'a/b' cannot be an adapter's name"),
        ("a: {model: x, config: no.yaml}", "cannot read the vLLM config"),
    ],
)
def test_a_mistake_is_shown_where_it_is(write: Write, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=r"the fleet file .* has a problem") as caught:
        read_fleet(write(f"services:\n {text}\n"))
    assert said in (caught.value.detail or "")


def test_all_problems_are_shown_at_once(write: Write) -> None:
    with pytest.raises(UsageError, match="has 3 problems"):
        read_fleet(write("services: {a: {}, b: {tp: x}}\n"))


@pytest.mark.parametrize("text", ["", "- a\n", "services: [a]\n", "x-a: 1\n"])
def test_what_is_no_fleet_is_refused(write: Write, text: str) -> None:
    with pytest.raises(UsageError, match="the fleet file"):
        read_fleet(write(text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the fleet file .*none.yaml cannot be read"):
        read_fleet(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("config: ~no-such-user/x.yaml", "No such file"),
        ("stall_timeout: .inf", "stall_timeout"),
    ],
)
def test_values_that_no_one_can_use_are_told(write: Write, entry: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_fleet(write(f"services:\n  a:\n    model: x\n    {entry}\n"))
    assert told in str(caught.value.detail)
