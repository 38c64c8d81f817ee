"""`bench --rate`: one rate as before, or several."""

from __future__ import annotations

import pytest

from clusterctl.cli.bench import _rates
from clusterctl.errors import UsageError


@pytest.mark.parametrize(
    ("text", "rates"),
    [(None, []), ("5", [5.0]), ("0.5", [0.5]), ("1,4,16", [1.0, 4.0, 16.0]), ("1, 2", [1.0, 2.0])],
)
def test_rates_are_taken(text: str | None, rates: list[float]) -> None:
    assert _rates(text) == rates


@pytest.mark.parametrize("text", ["", "0", "-1", "1,,2", "x", "nan", "inf", "1e9", "1,0.001"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not requests per second"):
        _rates(text)
