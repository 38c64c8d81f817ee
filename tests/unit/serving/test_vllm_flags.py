"""The flags of `vllm serve`: read in every spelling, laid over each other, written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.errors import UsageError
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
