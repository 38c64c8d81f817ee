"""The command line of `vllm serve`: read, laid over, written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.errors import Problems, UsageError
from clusterctl.serving.arguments import Launch, batch_limits, serve_argv
from clusterctl.serving.catalogue import by_alias
from clusterctl.serving.config_file import parse_config, read_config_file
from clusterctl.serving.layout import HostGpus, Layout, plan_layout
from clusterctl.serving.request import Options, Request, read_request, service_name
from clusterctl.serving.version import Version
from clusterctl.serving.vllm_flags import Argument, lay_over, parse_arguments, render

PAIR = (HostGpus("gpu1", 1), HostGpus("gpu2", 1))
TWO = plan_layout(None, PAIR, tensor_parallel=2)
ONE = plan_layout(None, PAIR, tensor_parallel=1)

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


def launch(
    *extra: str,
    layout: Layout = TWO,
    config: str = "",
    alias: str | None = None,
    cpu: bool = False,
    version: Version | None = (0, 33, 0),
    gpu: int | None = None,
    random_weights: bool = False,
) -> Launch:
    request = read_request(
        Options("m"), parse_config(config, "config.yaml"), parse_arguments(extra)
    )
    return Launch(
        request=request,
        model_argument="/data/models/m",
        served_names=("m",),
        layout=layout,
        host="10.0.0.1",
        entry=by_alias(alias) if alias else None,
        accelerator="cpu" if cpu else "nvidia",
        version=version,
        smallest_gpu=gpu,
        random_weights=random_weights,
    )


def test_the_whole_command_line_of_a_launch_over_two_hosts() -> None:
    assert serve_argv(launch()) == [
        *("vllm", "serve", "/data/models/m"),
        *("--served-model-name", "m"),
        *("--host", "10.0.0.1"),
        *("--port", "8000"),
        *("--tensor-parallel-size", "2"),
        *("--pipeline-parallel-size", "1"),
        *("--distributed-executor-backend", "ray"),
        *("--max-num-seqs", "256"),
        *("--max-num-batched-tokens", "2048"),
        *("--shutdown-timeout", "60"),
    ]


def test_on_a_cpu_nothing_is_compiled_and_little_runs_at_once() -> None:
    argv = serve_argv(launch(cpu=True, random_weights=True))

    assert argv[-3:] == ["--enforce-eager", "--load-format", "dummy"]
    assert argv[argv.index("--max-num-seqs") + 1] == "32"


def test_one_rank_goes_through_ray_too_which_else_gives_its_gpu_away() -> None:
    argv = serve_argv(launch(layout=ONE))

    assert argv[argv.index("--distributed-executor-backend") + 1] == "ray"


def test_data_parallel_over_ray_names_its_backend() -> None:
    layout = plan_layout(None, PAIR, tensor_parallel=1, data_parallel=2)

    argv = serve_argv(launch("-dp", "2", layout=layout))

    assert argv[argv.index("--data-parallel-backend") + 1] == "ray"
    assert argv[argv.index("--data-parallel-size") + 1] == "2"
    assert argv.count("--data-parallel-size") == 1


@pytest.mark.parametrize(
    "extra",
    [
        ("--max-num-seqs", "8"),
        ("--max-num-seqs=8",),
        ("--max_num_seqs", "8"),
        ("--max_num_seqs=8",),
    ],
)
def test_what_the_user_gives_wins_in_every_spelling(extra: tuple[str, ...]) -> None:
    argv = serve_argv(launch(*extra))

    assert argv[argv.index("--max-num-seqs") + 1] == "8"
    assert argv.count("--max-num-seqs") == 1


def test_a_switch_of_ours_can_be_turned_off() -> None:
    argv = serve_argv(launch("--no-enforce-eager", cpu=True))

    assert "--no-enforce-eager" in argv
    assert "--enforce-eager" not in argv


def test_a_false_in_a_config_takes_our_switch_away_without_a_word() -> None:
    argv = serve_argv(launch(config="enforce-eager: false\n", cpu=True))

    assert not [token for token in argv if "eager" in token]


def test_a_false_in_a_config_turns_off_what_is_on_by_default() -> None:
    argv = serve_argv(launch(config="enable-prefix-caching: false\n"))

    assert "--no-enable-prefix-caching" in argv


def test_the_command_line_wins_over_the_config_and_that_over_the_catalogue() -> None:
    config = "reasoning-parser: qwen3\nmax-model-len: 4096\n"

    argv = serve_argv(launch("--max-model-len", "8192", config=config, alias="deepseek-r1-7b"))

    assert argv[argv.index("--reasoning-parser") + 1] == "qwen3"
    assert argv[argv.index("--max-model-len") + 1] == "8192"


def test_flags_of_the_catalogue_are_given() -> None:
    argv = serve_argv(launch(alias="gemma-4-31b"))

    assert argv[argv.index("--reasoning-parser") + 1] == "gemma4"


def test_an_old_vllm_gets_no_flag_that_it_does_not_know() -> None:
    assert "--shutdown-timeout" not in serve_argv(launch(version=(0, 17, 1)))
    assert "--shutdown-timeout" in serve_argv(launch(version=None))


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


def test_options_win_over_the_config() -> None:
    request = read_request(
        Options("other", tensor_parallel=2, port=9000), parse_config(SEED_CONFIG, "c.yaml")
    )

    assert (request.model, request.tensor_parallel, request.port) == ("other", 2, 9000)


@pytest.mark.parametrize(
    "extra",
    [
        ("--distributed-executor-backend", "mp"),
        ("--api-key", "x"),
        ("--nnodes", "2"),
        ("-n", "2"),
        ("--headless",),
        ("--hf-token=x",),
        ("--config", "x.yaml"),
        ("--uds", "/tmp/s"),
        ("--model", "x"),
        ("--tensor-parallel-size", "two"),
        ("--tensor-parallel-size", "0"),
        ("--port", "70000"),
    ],
)
def test_what_clusterctl_must_own_or_cannot_read_is_refused(extra: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        read_request(Options("m"), extra=parse_arguments(extra))

    assert "x" not in str(caught.value).split() or extra[0] != "--api-key"


def test_asking_for_ray_is_what_happens_anyway() -> None:
    argv = serve_argv(launch("--distributed-executor-backend", "ray"))

    assert argv.count("--distributed-executor-backend") == 1


def test_an_option_and_a_flag_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="contradict"):
        read_request(Options("m", tensor_parallel=2), extra=parse_arguments(["-tp", "4"]))
    with pytest.raises(UsageError, match="contradict"):
        read_request(Options("m", port=1), extra=parse_arguments(["--port", "2"]))


@pytest.mark.parametrize("name", ["ray", "journal", "supervisor", "state", "dashboard"])
def test_names_of_the_nodes_own_files_and_ports_are_no_service(name: str) -> None:
    with pytest.raises(UsageError, match="is taken by clusterctl itself"):
        read_request(Options("m", name=name))
    assert service_name(f"/models/{name}") == f"{name}-model"


def test_all_that_is_wrong_with_a_request_is_said_at_once() -> None:
    with pytest.raises(Problems) as caught:
        read_request(Options(name="No Name"), extra=parse_arguments(["--nnodes", "2", "-pp", "x"]))

    assert len(caught.value.errors) == 4


def test_a_word_that_is_no_flag_is_refused() -> None:
    with pytest.raises(UsageError, match="'stray'"):
        parse_arguments(["stray", "--x"])


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["-tp", "2"], ("tensor-parallel-size", ("2",), False)),
        (["-tp=2"], ("tensor-parallel-size", ("2",), False)),
        (["--max-model-len", "-1"], ("max-model-len", ("-1",), False)),
        (["--no-enable_prefix_caching"], ("enable-prefix-caching", (), True)),
        (["--hf_overrides.rope_theta", "1e6"], ("hf-overrides.rope_theta", ("1e6",), False)),
        (["--served-model-name", "a", "b"], ("served-model-name", ("a", "b"), False)),
        (['--x={"a_b": 1}'], ("x", ('{"a_b": 1}',), False)),
        (["-O3"], ("-O3", (), False)),
    ],
)
def test_every_spelling_that_vllm_takes_is_read(
    tokens: list[str], expected: tuple[str, tuple[str, ...], bool]
) -> None:
    (argument,) = parse_arguments(tokens)

    assert (argument.name, argument.values, argument.negated) == expected


NAMES = st.sampled_from(["max-num-seqs", "seed", "hf-overrides.a_b", "dtype", "lora-modules"])
VALUES = st.lists(st.text(min_size=1).filter(lambda v: not v.startswith("-")), max_size=3)


@given(st.lists(st.builds(Argument, NAMES, VALUES.map(tuple), origin=st.just("command line"))))
def test_what_is_written_is_read_back_the_same(arguments: list[Argument]) -> None:
    assert list(parse_arguments(render(arguments))) == arguments


def test_a_value_that_looks_like_a_flag_stays_a_value() -> None:
    assert render([Argument("chat-template", ("-x",))]) == ["--chat-template=-x"]


def test_a_repeated_flag_of_one_layer_is_kept_whole() -> None:
    given_twice = parse_arguments(["--middleware", "a", "--middleware", "b"])

    assert lay_over([Argument("middleware", ("z",))], given_twice) == given_twice


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


def test_batch_limits_follow_the_smallest_gpu() -> None:
    assert batch_limits("nvidia", 24 << 30).tokens == 2048
    assert batch_limits("nvidia", 80 << 30).tokens == 8192
    assert batch_limits("nvidia", None).tokens == 2048


def test_a_model_that_takes_images_gets_steps_that_hold_one() -> None:
    argv = serve_argv(launch(alias="gemma-4-26b"))

    assert argv[argv.index("--max-num-batched-tokens") + 1] == "4096"


@pytest.mark.parametrize(
    ("extra", "sequences", "tokens"),
    [
        (("--max-num-batched-tokens", "64"), "64", "64"),
        (("--max-num-seqs", "4000"), "4000", "4000"),
        (("--max-num-seqs", "4k"), "4k", "2048"),
    ],
)
def test_the_default_of_one_batch_limit_bends_to_the_other(
    extra: tuple[str, ...], sequences: str, tokens: str
) -> None:
    argv = serve_argv(launch(*extra))

    assert argv[argv.index("--max-num-seqs") + 1] == sequences
    assert argv[argv.index("--max-num-batched-tokens") + 1] == tokens


def test_a_vllm_that_takes_prompts_whole_keeps_its_own_step() -> None:
    assert "--max-num-batched-tokens" not in serve_argv(launch(version=(0, 7, 2)))


@pytest.mark.parametrize(
    ("served", "name"),
    [
        ("qwen2.5-1.5b", "qwen2.5-1.5b"),
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("My Model!", "my-model"),
        ("../..", "model"),
    ],
)
def test_a_service_is_named_after_what_it_serves(served: str, name: str) -> None:
    assert service_name(served) == name


def test_the_port_is_the_one_chosen_else_the_one_asked_for() -> None:
    asked = launch(config="port: 6333")

    assert asked.api_port == 6333
    assert replace(asked, port=7000).api_port == 7000
    assert launch().api_port == 8000


def test_random_weights_can_be_asked_for() -> None:
    request = read_request(Options("m"), extra=parse_arguments(["--load-format", "dummy"]))

    assert request.random_weights
    assert not Request("m").random_weights
