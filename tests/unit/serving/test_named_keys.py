"""What users may write about keys, and what becomes of it."""

from __future__ import annotations

import pytest

from clusterctl.errors import UsageError
from clusterctl.node.documents import KeysDocument, NamedKey
from clusterctl.serving.keys import digest, limit, new_secret, with_key, without_key

ALICE = NamedKey("alice", digest("sk-a"), 1.0)


@pytest.mark.parametrize(
    ("text", "period", "number"),
    [("60/min", "min", 60), ("1M/day", "day", 1_000_000), ("20k/day", "day", 20_000)],
)
def test_a_limit_is_a_number_in_a_period(text: str, period: str, number: int) -> None:
    assert limit(text, "--x", period) == number


@pytest.mark.parametrize("text", ["60", "60/hour", "-1/min", "0/min", "1.5/min", "9G/min", "/min"])
def test_what_is_no_limit_is_refused_with_one_that_is(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        limit(text, "--requests", "min")
    assert "--requests 60/min" in str(raised.value.hint)


def test_a_key_is_random_and_only_its_hash_is_kept() -> None:
    first, second = new_secret(), new_secret()
    assert first != second
    assert len(first) >= 43  # 256 bits, 6 in each character
    assert first not in repr(NamedKey("a", digest(first), 1.0))


@pytest.mark.parametrize("name", ["cluster", "", "Alice", "a b", "a/b", "a\nb", "x" * 64, "-a"])
def test_a_name_that_a_map_could_misread_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        with_key(KeysDocument(), NamedKey(name, "0", 1.0))


@pytest.mark.parametrize("model", ["", "a b", "a;b", "a\\", "a\n", "ä"])
def test_the_name_of_a_model_that_a_map_could_misread_is_refused(model: str) -> None:
    with pytest.raises(UsageError, match="--models"):
        with_key(KeysDocument(), NamedKey("a", "0", 1.0, models=["Qwen/Qwen3-8B", model]))


def test_a_name_is_given_once_and_free_again_when_its_key_is_revoked() -> None:
    document = with_key(KeysDocument(), ALICE)
    with pytest.raises(UsageError, match="already"):
        with_key(document, ALICE)
    with pytest.raises(UsageError, match="no key named bob; keys: alice"):
        without_key(document, "bob")
    assert without_key(document, "alice") == KeysDocument()
