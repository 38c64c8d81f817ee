"""What `run` refuses before it asks a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.commands.run import LARGEST_SCRIPT, read_script
from clusterctl.errors import UsageError


def test_a_script_is_read_as_it_is(tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text("print('五')\n")
    assert read_script(script) == "print('五')\n"


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"#" * (LARGEST_SCRIPT + 1)])
def test_what_is_no_script_is_refused(tmp_path: Path, content: bytes | None) -> None:
    script = tmp_path / "s.py"
    if content is not None:
        script.write_bytes(content)
    with pytest.raises(UsageError, match=r"s\.py (cannot be read|is larger)"):
        read_script(script)
