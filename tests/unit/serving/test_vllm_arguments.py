"""The whole command line of `vllm serve`: our defaults, and what wins over them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.errors import UsageError
from clusterctl.models.config_json import describe
from clusterctl.models.version import Version
from clusterctl.serving.arguments import (
    BatchLimits,
    Layout,
    batch_limits,
    serve_arguments,
    serve_argv,
)
from clusterctl.serving.vllm_flags import last_value
from tests.unit.serving.launches import ONE, PAIR, launch

BERT = {
    "architectures": ["BertModel"],
    "hidden_size": 768,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "vocab_size": 30522,
}


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
        *("--allowed-media-domains", "none-is-allowed.invalid"),
    ]


def test_on_a_cpu_nothing_is_compiled_and_little_runs_at_once() -> None:
    argv = serve_argv(launch(cpu=True, random_weights=True))

    assert argv[-2:] == ["--load-format", "dummy"]
    assert "--enforce-eager" in argv
    assert argv[argv.index("--max-num-seqs") + 1] == "32"


def test_one_rank_goes_through_ray_too_which_else_gives_its_gpu_away() -> None:
    argv = serve_argv(launch(layout=ONE))

    assert argv[argv.index("--distributed-executor-backend") + 1] == "ray"


def test_data_parallel_over_ray_names_its_backend() -> None:
    argv = serve_argv(launch("-dp", "2", layout=Layout(1, 1, 2, seats=PAIR)))

    assert argv[argv.index("--data-parallel-backend") + 1] == "ray"
    assert argv[argv.index("--data-parallel-size") + 1] == "2"
    assert argv.count("--data-parallel-size") == 1
    assert argv[argv.index("--data-parallel-size-local") + 1] == "1"


def test_only_a_mixture_of_experts_has_experts_to_split() -> None:
    with pytest.raises(UsageError, match="is not a mixture of experts"):
        serve_argv(launch("--enable-expert-parallel", alias="qwen2.5-1.5b"))
    for alias in ("qwen3-30b-a3b", None):  # of None nothing is known
        argv = serve_argv(launch("--enable-expert-parallel", alias=alias))
        assert argv.count("--enable-expert-parallel") == 1


def test_copies_on_the_first_host_are_told_and_the_user_may_say_another_number() -> None:
    layout = Layout(1, 1, 4, seats=("gpu1", "gpu1", "gpu2", "gpu2"))

    argv = serve_argv(launch("-dp", "4", layout=layout))
    assert argv[argv.index("--data-parallel-size-local") + 1] == "2"

    argv = serve_argv(launch("-dp", "4", "-dpl", "1", layout=layout))
    assert argv[argv.index("--data-parallel-size-local") + 1] == "1"
    assert argv.count("--data-parallel-size-local") == 1


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


@pytest.mark.parametrize(
    ("alias", "extra", "version", "domains"),
    [
        ("qwen3-vl-8b", (), (0, 33, 0), "none-is-allowed.invalid"),
        ("qwen3-vl-8b", ("--allowed-media-domains", "a.org"), (0, 33, 0), "a.org"),
        ("qwen3-vl-8b", (), (0, 11, 0), None),
        ("qwen3-8b", (), (0, 33, 0), None),
        ("whisper-large-v3", (), (0, 33, 0), "none-is-allowed.invalid"),
        (None, (), (0, 33, 0), "none-is-allowed.invalid"),  # Nothing is known about it
    ],
)
def test_urls_of_requests_are_fetched_only_from_domains_that_the_user_lists(
    alias: str | None, extra: tuple[str, ...], version: Version, domains: str | None
) -> None:
    arguments = serve_arguments(launch(*extra, alias=alias, version=version))

    assert last_value(arguments, "allowed-media-domains") == domains


def test_asking_for_ray_is_what_happens_anyway() -> None:
    argv = serve_argv(launch("--distributed-executor-backend", "ray"))

    assert argv.count("--distributed-executor-backend") == 1


def test_batch_limits_follow_the_smallest_gpu() -> None:
    on_gpus = accelerator_named("nvidia").defaults
    smallest = BatchLimits(1024, 8192)
    assert batch_limits(on_gpus, smallest) == smallest
    assert batch_limits(on_gpus, None) == BatchLimits(256, 2048)


@pytest.mark.parametrize(
    ("version", "tokens"), [((0, 33, 0), "4096"), ((0, 20, 0), "4096"), ((0, 19, 1), "2048")]
)
def test_a_model_that_takes_images_gets_steps_that_hold_one(version: Version, tokens: str) -> None:
    """vLLM 0.19 starts Gemma 4 with 2048 tokens, as a published log shows; 0.20 does not."""
    argv = serve_argv(launch(alias="gemma-4-26b", version=version))

    assert argv[argv.index("--max-num-batched-tokens") + 1] == tokens


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


def test_a_model_that_takes_a_text_whole_gets_no_smaller_step() -> None:
    encoder = replace(launch(), shape=describe(BERT))

    assert "--max-num-batched-tokens" not in serve_argv(encoder)
    assert "--max-num-batched-tokens" not in serve_argv(launch("--runner", "pooling"))


def test_a_vllm_that_takes_prompts_whole_keeps_its_own_step() -> None:
    assert "--max-num-batched-tokens" not in serve_argv(launch(version=(0, 7, 2)))


def test_the_port_is_the_one_chosen_else_the_one_asked_for() -> None:
    asked = launch(config="port: 6333")

    assert asked.api_port == 6333
    assert replace(asked, port=7000).api_port == 7000
    assert launch().api_port == 8000


def test_a_model_with_code_of_its_own_waits_for_the_users_word() -> None:
    with pytest.raises(UsageError) as caught:
        serve_argv(launch(alias="kimi-k2"))

    assert "moonshotai/Kimi-K2-Instruct comes with its own Python code" in caught.value.summary
    assert "serve m -- --trust-remote-code" in str(caught.value.hint)


@pytest.mark.parametrize("word", ["--trust-remote-code", "--no-trust-remote-code"])
def test_the_users_word_on_a_models_code_is_passed_on(word: str) -> None:
    assert word in serve_argv(launch(word, alias="kimi-k2"))
