"""The flags of `vllm serve`: read in every spelling, laid over each other, written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.errors import UsageError
from clusterctl.serving.release_flags import refused_flags
from clusterctl.serving.vllm_flags import Argument, lay_over, parse_arguments, render


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
    ("typed", "version", "hint"),
    [
        ("--max-model-lenn 1", (0, 25, 1), "did you mean --max-model-len?"),
        ("--max_model_lenn=1", (0, 25, 1), "did you mean --max-model-len?"),
        ("--no-enable-prefix-cachingg", (0, 25, 1), "did you mean --enable-prefix-caching?"),
        (
            "--shutdown-timeout 5",
            (0, 8, 5),
            "leave it out, or use an image of vLLM 0.18.0 or newer",
        ),
        ("--swap-space 4", (0, 18, 0), "leave it out: it had no effect since 0.8 (vllm#27984)"),
        ("--max-model-len 1", (0, 7, 2), None),
        ("--max-model 1", (0, 25, 1), None),  # argparse knows the beginning of a flag
        ("--hf-overrides.rope_theta 1e6", (0, 25, 1), None),
        ("--of-a-fork 1", (0, 25, 1), None),
        ("--max-model-lenn 1", (0, 99, 0), None),  # it may be new
        ("--max-model-lenn 1", None, None),
    ],
)
def test_flags_that_a_release_lacks_are_refused_with_what_to_do(
    typed: str, version: tuple[int, int, int] | None, hint: str | None
) -> None:
    errors = refused_flags(parse_arguments(typed.split()), version)

    assert [error.hint for error in errors] == ([hint] if hint else [])
