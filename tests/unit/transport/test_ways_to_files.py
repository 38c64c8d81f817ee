"""Files that root reads and writes on a host are reached through no link that a container made."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from clusterctl.transport.host_files import NO_FILE, PUT, READ, way_to
from clusterctl.transport.lock import REPLACE


def read(base: Path, below: str, name: str = "./f") -> subprocess.CompletedProcess[bytes]:
    argv = ["sh", "-c", READ, "read", name, "100", str(base), below]
    return subprocess.run(argv, capture_output=True, check=False)


def put(base: Path, below: str) -> subprocess.CompletedProcess[bytes]:
    argv = ["sh", "-c", PUT, "put", "./f", "600", "3", "", str(base), below]
    return subprocess.run(argv, input=b"new", capture_output=True, check=False)


def test_a_link_in_the_middle_of_a_way_is_not_followed(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    (own / "a").mkdir(parents=True)
    (other / "b").mkdir(parents=True)
    (other / "b" / "f").write_text("secret")
    (own / "a" / "b").symlink_to(other / "b")
    (own / "l").symlink_to(other)
    for below in ("a/b", "l/b"):
        done = read(own, below)
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"a link is on the way" in done.stderr
        assert put(own, below).returncode == 1
    assert (other / "b" / "f").read_text() == "secret"
    assert [path.name for path in (other / "b").iterdir()] == ["f"]


def test_a_directory_of_ours_may_itself_be_a_link_of_roots(tmp_path: Path) -> None:
    (tmp_path / "disk" / "a").mkdir(parents=True)
    (tmp_path / "own").symlink_to(tmp_path / "disk")
    assert put(tmp_path / "own", "a").returncode == 0
    assert read(tmp_path / "own", "a").stdout == b"new"
    assert (tmp_path / "disk" / "a" / "f").stat().st_mode & 0o777 == 0o600
    assert put(tmp_path / "own", ".").returncode == 0
    assert read(tmp_path / "own", "none").returncode == NO_FILE


def test_the_way_to_a_file_begins_at_a_directory_of_ours() -> None:
    path = "/var/lib/clusterctl/caches/lab/d/job"
    assert way_to(path) == ("./job", "/var/lib/clusterctl", "caches/lab/d")
    assert way_to("/etc/clusterctl/x") == ("./x", "/etc/clusterctl", ".")
    assert way_to("/etc/clusterctlx/y") == ("./y", "/etc/clusterctlx", ".")
    assert way_to("/etc/apt/x") == ("./x", "/etc/apt", ".")


@pytest.mark.parametrize(
    "path", ["x", "/etc/clusterctl/../cron.d/x", "/etc/clusterctl/lab/..", "../x"]
)
def test_no_way_leads_upwards(path: str) -> None:
    with pytest.raises(ValueError, match="not an absolute path"):
        way_to(path)


def replace(file: Path, data: bytes | None, before: str, copy: Path) -> int:
    size = "gone" if data is None else str(len(data))
    argv = ["sh", "-c", REPLACE, "write", "", "", str(copy), str(file), before, size]
    return subprocess.run(argv, input=data or b"", check=False, capture_output=True).returncode


def test_a_document_and_its_copy_are_written_and_removed_together(tmp_path: Path) -> None:
    file, copy = tmp_path / "tiny.json", tmp_path / "kept" / "services" / "tiny.json"
    assert replace(file, b"one", "none", copy) == 0
    assert (file.read_bytes(), copy.read_bytes()) == (b"one", b"one")
    assert (copy.stat().st_mode & 0o777, copy.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert replace(file, b"two", "none", copy) == 4
    assert copy.read_bytes() == b"one", "nothing was written, and nothing is kept"
    known = hashlib.sha256(b"one").hexdigest()
    assert replace(file, None, known, copy) == 0
    assert not file.exists()
    assert list(copy.parent.iterdir()) == []
