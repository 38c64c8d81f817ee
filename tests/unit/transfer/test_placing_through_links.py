"""Where a user of the host owns the models directory, root follows none of their links."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.transfer.relay.stored import PartFile, Stored, open_directory
from clusterctl.transfer.weights import host_download
from clusterctl.transfer.weights.on_host import INCOMING, script
from clusterctl.transport import python
from tests.fakes.image_archives import sha256

DATA = b"weights"
USER = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files to a user")


@pytest.fixture
def home() -> Iterator[Path]:
    """A user's directory below root's ones only."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        made = Path(name) / "user"
        made.mkdir()
        os.chown(made, USER, USER)
        yield made


def place(path: Path) -> None:
    blob = Stored(sha256(DATA).removeprefix("sha256:"), len(DATA), str(path), placed=True)
    part = PartFile(blob)
    part.open(lambda _: None)
    part.write(0, memoryview(DATA))
    blob.segments[0].have = len(DATA)
    part.finish()


def test_what_is_missing_is_made(home: Path) -> None:
    place(home / "a/b/model.bin")
    assert (home / "a/b/model.bin").read_bytes() == DATA
    assert [path.name for path in (home / "a/b").iterdir()] == ["model.bin"]


def test_no_link_of_the_user_is_followed(home: Path) -> None:
    victim = home.parent / "victim"
    victim.mkdir()
    (home / "incoming").symlink_to(victim)
    with pytest.raises(OSError, match="another user"):
        place(home / "incoming/model.bin")
    assert list(victim.iterdir()) == []


@pytest.mark.parametrize("suffix", ["", ".part", ".part.pieces"])
def test_no_link_in_place_of_a_file_is_written_through(home: Path, suffix: str) -> None:
    victim = home.parent / "victim"
    victim.write_text("the host's own")
    (home / f"model.bin{suffix}").symlink_to(victim)
    try:
        place(home / "model.bin")
    except OSError:
        assert suffix
    else:
        assert not (home / "model.bin").is_symlink()
    assert victim.read_text() == "the host's own"


def test_a_link_of_the_administrator_is_followed(home: Path) -> None:
    (home.parent / "models").symlink_to(home)
    place(home.parent / "models" / "model.bin")
    assert (home / "model.bin").read_bytes() == DATA


def test_a_link_where_anyone_may_write_counts_if_it_is_roots_and_stays_so(home: Path) -> None:
    shared = home.parent / "shared"
    shared.mkdir()
    (shared / "models").symlink_to(home)
    for mode, followed in ((0o755, True), (0o1777, True), (0o777, False)):
        shared.chmod(mode)
        try:
            os.close(open_directory(str(shared / "models")))
        except OSError:
            assert not followed
        else:
            assert followed
    shared.chmod(0o1777)
    os.lchown(shared / "models", USER, USER)
    with pytest.raises(OSError, match="another user"):
        open_directory(str(shared / "models"))


def test_links_in_a_circle_end(home: Path) -> None:
    (home.parent / "a").symlink_to("b")
    (home.parent / "b").symlink_to("a")
    with pytest.raises(OSError, match="on the way"):
        open_directory(str(home.parent / "a"))


def run_script(name: str, *arguments: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    argv = [*script(name), *map(str, arguments)]
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("kind", ["link", "directory"])
def test_nothing_is_staged_in_what_the_user_made(home: Path, kind: str) -> None:
    victim = home.parent / "victim"
    victim.mkdir(mode=0o755)
    incoming = home / INCOMING
    if kind == "link":
        incoming.symlink_to(victim)
    else:
        incoming.mkdir()
        os.chown(incoming, USER, USER)
    done = run_script("prepare", incoming / "m.0", stdin="dir\tsub\n")
    assert done.returncode == 1
    assert "remove it" in done.stderr
    assert victim.stat().st_mode & 0o777 == 0o755
    assert list(victim.iterdir()) == []
    assert run_script("settle", incoming / "m.0", home / "m").returncode == 1


def test_a_model_is_not_put_where_a_link_of_the_user_leads(home: Path) -> None:
    victim = home.parent / "victim"
    victim.mkdir()
    staged = home / INCOMING / "org@m.0"
    assert run_script("prepare", staged, stdin="dir\tsub\n").returncode == 0
    (home / "org").symlink_to(victim)
    done = run_script("settle", staged, home / "org" / "m", stdin="manifest\n{}\n")
    assert done.returncode == 1
    assert f"{home}/org is a link" in done.stderr
    assert list(victim.iterdir()) == []
    (home / "org").unlink()
    assert run_script("settle", staged, home / "org" / "m", stdin="manifest\n{}\n").returncode == 0
    assert (home / "org" / "m" / ".clusterctl-model.json").read_text() == "{}\n"
    assert list((home / INCOMING).iterdir()) == []


def test_nor_where_a_link_further_up_leads(home: Path) -> None:
    theirs = home.parent / "another's" / "hub" / "m"
    theirs.mkdir(parents=True)
    staged = home / INCOMING / "cache@hub@m.0"
    assert run_script("prepare", staged, stdin="dir\tsub\n").returncode == 0
    (home / "cache").symlink_to(theirs.parent.parent)
    done = run_script("settle", staged, home / "cache" / "hub" / "m", stdin="manifest\n{}\n")
    assert done.returncode == 1
    assert f"{home}/cache/hub is a link, or below one" in done.stderr
    assert list(theirs.iterdir()) == []


def test_the_models_directory_may_be_a_link_of_the_administrator(home: Path) -> None:
    (home.parent / "models").symlink_to(home)
    models = home.parent / "models"
    staged = models / INCOMING / "org@m.0"
    assert run_script("prepare", staged, stdin="dir\tsub\n").returncode == 0
    done = run_script("settle", staged, models / "org" / "m", stdin="manifest\n{}\n")
    assert done.returncode == 0, done.stderr
    assert (home / "org" / "m" / ".clusterctl-model.json").exists()


def download(staged: Path) -> subprocess.CompletedProcess[bytes]:
    """What `model pull --on` runs on the host, for a file that is empty."""
    files = [["http://127.0.0.1:9/", "config.json", 0, "", ""]]
    argument = {"headers": {}, "piece": 0, "directory": str(staged), "files": files}
    argv = [sys.executable, *python.argv(("python3",))[1:]]
    sent = host_download.PROGRAM.sent(argument)
    return subprocess.run(argv, input=sent, capture_output=True, check=False)


def test_a_host_downloads_through_no_link_either(home: Path) -> None:
    victim = home.parent / "victim"
    victim.mkdir()
    (victim / "config.json.part").write_text("the host's own")
    incoming = home / INCOMING
    staged = incoming / "m.0"
    assert run_script("prepare", staged).returncode == 0
    assert download(staged).returncode == 0
    assert (staged / "config.json").read_bytes() == b""
    incoming.rename(home / "away")
    incoming.symlink_to(victim)
    assert download(staged).returncode == 1
    assert run_script("rename", staged, incoming / "m.1").returncode == 1
    incoming.unlink()
    incoming.mkdir()
    os.chown(incoming, USER, USER)
    staged.symlink_to(victim)
    done = download(staged)
    assert done.returncode == 1
    assert b"belongs to another user: remove it" in done.stderr
    assert [path.read_text() for path in victim.iterdir()] == ["the host's own"]
