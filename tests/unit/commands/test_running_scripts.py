"""What `run` refuses before it asks a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.commands.run import LARGEST_SCRIPT, read_script, require_free
from clusterctl.errors import DoesNotFit, UsageError
from tests.unit.planning.test_prepared_service import Cluster


def test_a_script_that_finds_no_free_gpu_may_need_none() -> None:
    cluster = Cluster("nvidia")
    survey = cluster.survey(cluster.prepare(tp=1, replicas="2"))
    with pytest.raises(DoesNotFit, match="needs 1 GPU") as caught:
        require_free(survey, 1)
    assert caught.value.hint == "add --gpus 0 if it needs none; else clusterctl stop qwen"
    require_free(survey, 0)


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
