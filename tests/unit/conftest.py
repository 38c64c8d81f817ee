"""A unit test knows nothing of who runs it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

PERSONAL = re.compile(r".*_proxy$|(CLUSTERCTL|HF|MODELSCOPE)_", re.IGNORECASE)
"""Variables by which an operator's machine reaches the world, and by which they log in."""


@pytest.fixture(scope="session", autouse=True)
def nobody_in_particular() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in filter(PERSONAL.match, tuple(os.environ)):
            patch.delenv(name)
        yield
