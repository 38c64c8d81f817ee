"""Where a user of the host owns the models directory, root writes through none of their links, and
reads through none that leads to what is not theirs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.inventory.model import Host
from clusterctl.models.probe import look_for, reach
from clusterctl.transfer.reaching import make_directory, open_file
from clusterctl.transfer.relay.fetching import Holdings
from clusterctl.transfer.relay.stored import PartFile, Stored
from clusterctl.transfer.relay.upstream import Upstreams
from clusterctl.transfer.weights.comparison import hash_now, look_at
from clusterctl.transfer.weights.hashing import hashes
from clusterctl.transfer.weights.on_host import INCOMING, look_at_models, script
from clusterctl.transport.local import LocalTransport
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
            os.close(make_directory(str(shared / "models")))
        except OSError:
            assert not followed
        else:
            assert followed
    shared.chmod(0o1777)
    os.lchown(shared / "models", USER, USER)
    with pytest.raises(OSError, match="another user"):
        make_directory(str(shared / "models"))


def test_links_in_a_circle_end(home: Path) -> None:
    (home.parent / "a").symlink_to("b")
    (home.parent / "b").symlink_to("a")
    with pytest.raises(OSError, match="on the way"):
        make_directory(str(home.parent / "a"))


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


SECRET = b"the host's own"


@pytest.fixture
def secret(home: Path) -> Path:
    """A file that the user cannot read."""
    made = home.parent / "secret"
    made.write_bytes(SECRET)
    made.chmod(0o600)
    return made


@pytest.fixture
def cache(home: Path) -> Path:
    """A cache of Hugging Face's that the user filled; of its snapshot every file is a link."""
    entry = home / "models--org--m"
    for name in ("blobs", "snapshots/abc", "refs"):
        (entry / name).mkdir(parents=True)
    (entry / "refs/main").write_text("abc")
    (entry / "blobs/1").write_text('{"model_type": "llama"}')
    (entry / "blobs/2").write_bytes(DATA)
    (entry / "snapshots/abc/config.json").symlink_to("../../blobs/1")
    (entry / "snapshots/abc/model.safetensors").symlink_to("../../blobs/2")
    for path in (entry, *entry.rglob("*")):
        os.lchown(path, USER, USER)
    return entry


def theirs(path: Path, target: Path) -> None:
    """The user puts a link there."""
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    os.lchown(path, USER, USER)


@pytest.fixture
def here() -> LocalTransport:
    return LocalTransport(Host(name="gpu1", address="localhost"))


def test_a_cache_of_the_users_works_with_its_links(
    home: Path, cache: Path, here: LocalTransport, tmp_path: Path
) -> None:
    (home.parent / "models").symlink_to(home)
    for models in (home, home.parent / "models"):
        (found,) = look_for(here, [str(models / cache.name)])
        assert found.complete
        snapshot = models / cache.name / "snapshots/abc"
        held = look_at(here, str(snapshot), kept=str(tmp_path))
        assert set(held.unknown) == {"config.json", "model.safetensors"}
        assert len(hash_now(here, str(snapshot), held.unknown, lambda _: None)) == 2
        staged = models / INCOMING / "m.0"
        lines = f"take\t{snapshot}/model.safetensors\tmodel.safetensors\n"
        assert run_script("prepare", staged, stdin=lines).returncode == 0
        assert (staged / "model.safetensors").samefile(cache / "blobs/2")
        Holdings(Upstreams(1.0), print).add_whole(
            "0" * 64, len(DATA), f"{snapshot}/model.safetensors"
        )


@pytest.mark.parametrize("by", ["file", "directory", "user's link", "model"])
def test_nothing_is_read_that_is_not_the_users(
    by: str, home: Path, cache: Path, secret: Path, here: LocalTransport, tmp_path: Path
) -> None:
    snapshot, private = cache / "snapshots/abc", home.parent / "private"
    private.mkdir(mode=0o700)
    for name in ("config.json", "model.safetensors", ".clusterctl-model.json"):
        (private / name).write_bytes(SECRET)
    for name in ("config.json", "model.safetensors", ".clusterctl-model.json"):
        if by == "file":
            theirs(snapshot / name, secret)
        elif by == "user's link":
            theirs(home / "second", secret)
            theirs(snapshot / name, Path("../../../second"))
        elif by == "directory":
            theirs(cache / "private", private)
            theirs(snapshot / name, Path(f"../../private/{name}"))
    if by == "model":
        snapshot.rename(home / "away")
        theirs(snapshot, private)
    files = [str(snapshot / name) for name in ("config.json", "model.safetensors")]
    assert hashes(here, files, 100) == {}
    (found,) = look_for(here, [str(snapshot)])
    assert found.config is None
    assert found.unreadable == ("config.json",)
    for program in ("held", ""):
        arguments = (snapshot, snapshot, tmp_path / "x") if program else (cache, 60, tmp_path)
        told = subprocess.run(
            [*script("look", program), *map(str, arguments)], capture_output=True, check=True
        )
        assert SECRET not in told.stdout
    for file in files:
        for word in ("take", "copy"):
            done = run_script("prepare", home / INCOMING / "m.0", stdin=f"{word}\t{file}\tx\n")
            assert done.returncode == 1
            assert "only through another user's link" in done.stderr
        with pytest.raises(OSError, match="link that another user"):
            Holdings(Upstreams(1.0), print).add_whole("0" * 64, len(SECRET), file)
    assert run_script("seal", snapshot, stdin="{}").returncode == (1 if by == "model" else 0)
    assert (private / ".clusterctl-model.json").read_bytes() == SECRET
    assert secret.read_bytes() == SECRET


def test_directories_that_may_only_be_passed(home: Path, cache: Path) -> None:
    """As for a host's root on NFS, whom the server takes for nobody."""
    home.chmod(0o711)
    os.chown(home, 0, 0)
    os.seteuid(USER)
    try:
        os.close(open_file(str(cache / "snapshots/abc/model.safetensors")))
    finally:
        os.seteuid(0)


def test_a_pipe_in_place_of_a_file_does_not_block(cache: Path, here: LocalTransport) -> None:
    snapshot = cache / "snapshots/abc"
    for name in ("config.json", "tokenizer_config.json", "model.safetensors.index.json"):
        (snapshot / name).unlink(missing_ok=True)
        os.mkfifo(snapshot / name)
    (cache / "refs/main").unlink()
    os.mkfifo(cache / "refs/main")
    os.mkfifo(cache / ".clusterctl-model.json")
    (found,) = look_for(here, [str(cache)])
    assert found.config is None
    assert look_at_models(here, str(cache.parent)).tree(cache.name)
    assert hashes(here, [str(snapshot / "config.json")], 1) == {}


def test_a_copy_that_does_not_fit_says_so(home: Path) -> None:
    staged = home / INCOMING / "m.0"
    (home / "big").write_bytes(bytes(1 << 20))
    argv = ["prlimit", "--fsize=65536", "env", "--ignore-signal=XFSZ", *script("prepare")]
    lines = f"copy\t{home / 'big'}\tx\n"
    done = subprocess.run([*argv, staged], input=lines, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "link" not in done.stderr


def test_nothing_is_removed_through_a_link(home: Path) -> None:
    victim = home.parent / "victim"
    (victim / "m.0123456789ab").mkdir(parents=True)
    theirs(home / INCOMING, victim)
    done = run_script("remove", home / INCOMING, Path("m.0123456789ab"))
    assert done.returncode == 1
    assert (victim / "m.0123456789ab").exists()


def test_the_user_who_becomes_root_is_trusted(home: Path, secret: Path) -> None:
    """They could read it anyway."""
    theirs(home / "a", secret)
    code = f"from clusterctl.transfer.reaching import open_file; open_file({str(home / 'a')!r})"
    lead = f'{reach()}\nreach "{home}/a" && [ "$name" = secret ]'
    for user, status in ((USER, 0), (USER - 1, 1)):
        env = {**os.environ, "SUDO_UID": str(user)}
        for argv in ([sys.executable, "-c", code], ["sh", "-c", lead]):
            done = subprocess.run(argv, env=env, capture_output=True, check=False)
            assert done.returncode == status, done.stderr
