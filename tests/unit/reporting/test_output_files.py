"""Files that a command writes for its user: whole, and never in place of something else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.reporting.output_file import is_written, write_file


def test_a_file_is_made_with_its_directory_and_replaced(tmp_path: Path) -> None:
    file = tmp_path / "new/report.html"
    assert not is_written(file, b"one")
    write_file(file, b"one")
    assert is_written(file, b"one")
    assert file.stat().st_mode & 0o777 == 0o644
    write_file(file, b"two")
    assert is_written(file, b"two")
    assert [*file.parent.iterdir()] == [file]


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_what_is_no_file_is_not_replaced(kind: str, tmp_path: Path) -> None:
    # As /dev/stdout and /dev/null are
    there, target = tmp_path / "there", tmp_path / "target"
    target.write_bytes(b"kept")
    if kind == "link":
        there.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(there)
    else:
        there.mkdir()
    with pytest.raises(UsageError, match="not a file"):
        write_file(there, b"new")
    assert target.read_bytes() == b"kept"
    assert os.path.lexists(there)
