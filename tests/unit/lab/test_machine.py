"""What is read from the machine, and the commands that are given to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.errors import LockHeld, StepFailed, UsageError
from clusterctl.lab import lifecycle, requirements
from clusterctl.lab.base import choose_source
from clusterctl.lab.cgroups import entering
from clusterctl.lab.hosts import host_by_name
from clusterctl.lab.layout import lab_host
from clusterctl.lab.local import mount_points, run
from clusterctl.lab.mirror import server_argv, server_pids
from clusterctl.lab.network import parse_rate
from clusterctl.lab.nspawn import nspawn_argv, nspawn_environment
from clusterctl.lab.paths import LabPaths, exclusive
from clusterctl.lab.requirements import LabUnavailable, check_machine, read_os_release

DIRECTORY = Path("/lab/hosts/gpu1")


def test_a_host_boots_in_its_namespace_with_its_own_view_of_control_groups() -> None:
    argv = nspawn_argv(lab_host(1), DIRECTORY, unified=False)
    assert "--network-namespace-path=/run/netns/lab-gpu1" in argv
    assert "--bind=/lab/hosts/gpu1/cgroup:/sys/fs/cgroup" in argv
    assert "--bind=/lab/hosts/gpu1/docker:/var/lib/docker" in argv
    assert nspawn_environment(unified=False)["SYSTEMD_NSPAWN_UNIFIED_HIERARCHY"] == "0"


def test_with_cgroup_v2_alone_nspawn_makes_the_view_itself() -> None:
    argv = nspawn_argv(lab_host(1), DIRECTORY, unified=True)
    assert not [word for word in argv if "cgroup" in word]
    assert "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY" not in nspawn_environment(unified=True)


def test_a_process_enters_its_groups_before_it_becomes_the_command(tmp_path: Path) -> None:
    groups = [tmp_path / "one", tmp_path / "two with space"]
    shown = subprocess.run(
        entering(groups, ["sh", "-c", 'echo "$$ $1"', "sh", "a; b $HOME"]),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    pid, argument = shown.strip().split(" ", 1)
    assert [group.read_text().strip() for group in groups] == [pid, pid]
    assert argument == "a; b $HOME"


def test_the_mirror_listens_on_the_bridge_alone() -> None:
    argv = server_argv(Path("/lab/mirror"))
    assert argv[argv.index("--bind") + 1] == "10.77.0.1"


@pytest.mark.parametrize(
    ("around", "ours"),
    [
        ([], True),
        pytest.param(
            ["unshare", "--net"],
            False,
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="unshare needs root"),
        ),
    ],
)
def test_a_mirror_of_another_network_namespace_is_none_of_ours(
    tmp_path: Path, around: list[str], ours: bool
) -> None:
    waits = "import sys; print(flush=True); sys.stdin.read()"
    argv = [*around, sys.executable, "-c", waits, "http.server", "--directory", str(tmp_path)]
    with subprocess.Popen(
        [*argv, "8077"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert server_pids(tmp_path) == ((process.pid,) if ours else ())
        process.communicate()


@pytest.mark.parametrize(
    ("text", "rate"), [("200mbit", 200_000_000), ("1gbit", 10**9), ("64KBIT", 64_000)]
)
def test_a_link_rate_is_read_in_bits_per_second(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "200", "0mbit", "fast", "200 mbit", "-1mbit", "1.5gbit"])
def test_anything_else_is_no_link_rate(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rate(text)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["gpu0", "gpu", "light1", "gpu1/..", ""])
def test_only_hosts_of_the_lab_can_be_named(name: str) -> None:
    with pytest.raises(UsageError):
        host_by_name(name)


def test_mount_points_are_read_with_their_escapes_undone() -> None:
    text = (
        "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw\n"
        r"37 36 0:5 / /a\040directory\134b rw - tmpfs tmpfs rw"
    )
    assert mount_points(text) == (Path("/mnt2"), Path("/a directory\\b"))


def test_packages_come_from_where_this_machine_gets_those_of_its_release() -> None:
    targets = (
        "nodistro nodistro main http://other.example/node/\n"
        "stable bookworm main http://mirror.example/debian/\n"
        "stable bookworm contrib http://mirror.example/debian/\n"
        "stable-security bookworm-security main http://mirror.example/security/\n"
    )
    source = choose_source("bookworm", targets)
    assert source.uri == "http://mirror.example/debian/"
    assert source.components == ("main", "contrib")
    assert choose_source("stable", targets).uri == source.uri
    with pytest.raises(LabUnavailable, match="noble"):
        choose_source("noble", targets)


def test_a_machine_that_is_neither_debian_nor_ubuntu_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release = {"ID": "fedora", "PRETTY_NAME": "Fedora Linux 43"}
    monkeypatch.setattr(requirements, "read_os_release", lambda: release)
    with pytest.raises(LabUnavailable, match="Fedora Linux 43") as caught:
        check_machine()
    assert caught.value.exit_code == 5


def test_without_root_the_lab_is_refused_but_can_be_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requirements, "read_os_release", lambda: {"ID": "debian"})
    monkeypatch.setattr(requirements, "missing_packages", lambda: ())
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(LabUnavailable, match="root"):
        check_machine()
    check_machine(root=False)


def test_missing_packages_are_named_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requirements, "read_os_release", lambda: {"ID_LIKE": "ubuntu debian"})
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(
        "shutil.which", lambda name, **_: None if name == "ip" else f"/usr/bin/{name}"
    )
    with pytest.raises(LabUnavailable, match="iproute2") as caught:
        check_machine()
    assert caught.value.hint == "apt-get install --no-install-recommends iproute2"


def test_os_release_is_read_without_its_quotes(tmp_path: Path) -> None:
    file = tmp_path / "os-release"
    file.write_text('ID=debian\nPRETTY_NAME="Debian GNU/Linux"\n\n# comment\n')
    assert read_os_release(file)["PRETTY_NAME"] == "Debian GNU/Linux"
    assert read_os_release(tmp_path / "none") == {}


def test_a_failed_command_is_told_with_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match="status 3") as caught:
        run(["sh", "-c", "echo why >&2; exit 3"])
    assert "why" in (caught.value.detail or "")
    log = tmp_path / "log"
    with pytest.raises(StepFailed) as logged:
        run(["sh", "-c", "echo why; exit 3"], log=log)
    assert logged.value.hint == f"read {log}"
    with pytest.raises(StepFailed, match="not installed"):
        run(["no-such-command-here"])
    with pytest.raises(StepFailed, match="longer than"):
        run(["sleep", "5"], timeout=0.1)


def test_the_lab_is_changed_by_one_at_a_time(tmp_path: Path) -> None:
    lock = tmp_path / "lab" / "lock"
    with exclusive(lock), pytest.raises(LockHeld), exclusive(lock):
        pass
    with exclusive(lock):
        pass


def test_a_purge_leaves_files_that_are_not_the_labs(tmp_path: Path) -> None:
    paths = LabPaths(tmp_path / "lab")
    (paths.cache / "base" / "key").mkdir(parents=True)
    paths.lock.touch()
    foreign = paths.root / "foreign"
    foreign.touch()
    assert lifecycle.remove_caches(paths)
    assert list(paths.root.iterdir()) == [foreign]
    foreign.unlink()
    assert not lifecycle.remove_caches(paths)
    assert not paths.root.exists()
