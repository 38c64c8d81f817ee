"""`bench --start` takes one service, and no load."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from clusterctl.cli.app import app


@pytest.mark.parametrize(
    "arguments", [[], ["a", "b"], ["a", "--rate", "4"], ["a", "--sweep"], ["a", "--requests", "3"]]
)
def test_what_it_cannot_measure_is_refused(arguments: list[str]) -> None:
    ran = CliRunner().invoke(app, ["bench", *arguments, "--start"])
    assert ran.exit_code == 2
    assert "--start measures the start of one service" in ran.output
