"""vLLM's own configuration file: how it is read, and what becomes of its flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.errors import Problems, UsageError
from clusterctl.serving.arguments import serve_argv
from clusterctl.serving.config_file import parse_config, read_config_file
from clusterctl.serving.request import Options, read_request
from clusterctl.serving.vllm_flags import render
from tests.unit.serving.launches import ONE, launch

SEED_CONFIG = """\
model: "/root/autodl-tmp/llms/deepseek-ai/DeepSeek-R1-Distill-Llama-70B"
served-model-name: "DeepSeek-R1"
host: "0.0.0.0"
port: 6333
api-key: "a-secret"
dtype: "bfloat16"
quantization: "bitsandbytes"
gpu-memory-utilization: 0.90
cpu-offload-gb: 20
swap-space: 4
max-num-seqs: 256
tensor-parallel-size: 1
max-num-batched-tokens: 8192
max-model-len: 8192
enable-prefix-caching: true
block-size: 32
max-seq-len-to-capture: 8192
enforce-eager: false
disable-custom-all-reduce: true
disable-log-requests: true
trust-remote-code: true
"""


def test_removed_flags_are_foreseen_all_at_once_with_their_place() -> None:
    with pytest.raises(Problems) as caught:
        serve_argv(launch(config=SEED_CONFIG))

    texts = [str(error) for error in caught.value.errors]
    assert texts == [
        "--quantization bitsandbytes (config.yaml:7:1) does not exist in vLLM 0.33.0",
        "--swap-space (config.yaml:10:1) does not exist in vLLM 0.33.0",
        "--max-seq-len-to-capture (config.yaml:17:1) does not exist in vLLM 0.33.0",
        "--disable-log-requests (config.yaml:20:1) does not exist in vLLM 0.33.0",
    ]
    assert all(error.hint for error in caught.value.errors)


def test_the_same_config_is_taken_whole_by_the_vllm_it_was_written_for() -> None:
    argv = serve_argv(launch(config=SEED_CONFIG, version=(0, 8, 5), layout=ONE))

    assert argv[argv.index("--gpu-memory-utilization") + 1] == "0.90"
    assert argv[argv.index("--swap-space") + 1] == "4"
    assert "a-secret" not in " ".join(argv)
    assert "--enforce-eager" not in argv


def test_a_config_file_can_be_all_there_is() -> None:
    request = read_request(Options(), parse_config(SEED_CONFIG, "c.yaml"))

    assert request.model.endswith("DeepSeek-R1-Distill-Llama-70B")
    assert request.served_names == ("DeepSeek-R1",)
    assert (request.host, request.port, request.tensor_parallel) == ("0.0.0.0", 6333, 1)
    assert request.api_key == "a-secret"
    assert "a-secret" not in repr(request)


@pytest.mark.parametrize("keys", ['["k1", "k2"]', '"two words"', '"schlüssel"'])
def test_a_key_that_cannot_be_the_clusters_is_refused_and_not_shown(keys: str) -> None:
    with pytest.raises(UsageError, match="api-key in the config file") as caught:
        read_request(Options("m"), parse_config(f"api-key: {keys}\n", "c.yaml"))
    assert not any(word in str(caught.value) for word in ("k1", "two", "schl"))


def test_options_win_over_the_config() -> None:
    request = read_request(
        Options("other", tensor_parallel=2, port=9000), parse_config(SEED_CONFIG, "c.yaml")
    )

    assert (request.model, request.tensor_parallel, request.port) == ("other", 2, 9000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\n", "c.yaml:2:1: "),
        ("- a\n", "c.yaml:1:1: a vLLM config is a mapping"),
        ("port: 1\n\nport: 2\n", "c.yaml:3:1: port is already set at c.yaml:1:1"),
        ("? [a]\n: 1\n", "c.yaml:1:3: a key must be the name of a vLLM flag"),
        ("a: !!python/object:os.system x\n", "c.yaml:1:1: "),
        ("a:\n  b: 2020-01-01\n", "c.yaml:1:1: cannot be written as JSON"),
        ("a: \x01\n", "c.yaml: not YAML"),
    ],
)
def test_a_bad_config_names_line_and_column(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_config(text, "c.yaml")

    assert str(caught.value).startswith(message)


def test_nested_values_lists_and_empty_keys_of_a_config() -> None:
    arguments = parse_config(
        "compilation-config: {pass_config: {x: true}}\nlora-modules: [a=b, c=d]\nseed:\n", "c"
    )

    assert render(arguments) == [
        "--compilation-config",
        '{"pass_config": {"x": true}}',
        "--lora-modules",
        "a=b",
        "c=d",
    ]


def test_an_empty_config_says_nothing() -> None:
    assert parse_config("# nothing\n", "c") == ()


def test_a_config_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_config_file(tmp_path / "none.yaml")


def test_a_config_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("max-model-len: 512\n", encoding="utf-8")

    (argument,) = read_config_file(path)

    assert argument.origin == f"{path}:1:1"


def test_a_switch_may_be_turned_off_by_its_negated_name() -> None:
    """As in the config files of vLLM's own recipes."""
    text = "no-enable-prefix-caching: true\nno-async-scheduling: false\nenforce-eager: true\n"
    found = [argument.tokens() for argument in parse_config(text, "c.yaml")]
    assert found == [("--no-enable-prefix-caching",), ("--enforce-eager",)]
