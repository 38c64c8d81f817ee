"""The cluster's names in the container's /etc/hosts."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from clusterctl.node.files import Journal, NodePaths
from clusterctl.node.hosts_file import HostsFile, with_names

DECLARED = "127.0.0.1\tlocalhost\n10.0.0.1\tgpu1 rack7\n10.0.0.2\tgpu2\n"
BLOCK = f"# clusterctl: begin\n{DECLARED}# clusterctl: end\n"
FROM_DEBIAN = "127.0.0.1\tlocalhost\n127.0.1.1\tRack7.example.com\tRack7\n"


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    """A node whose engine made /etc/hosts from the host's, and whose controller declared names."""
    found = NodePaths("demo", tmp_path)
    found.declared_hosts.parent.mkdir(parents=True)
    found.declared_hosts.write_text(DECLARED)
    found.etc.mkdir(exist_ok=True)
    (found.etc / "hosts").write_text(FROM_DEBIAN)
    return found


@pytest.fixture
def told() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def hosts_file(paths: NodePaths, told: io.StringIO) -> HostsFile:
    return HostsFile(paths, Journal(paths.logs / "journal.jsonl", "gpu1", told))


def test_declared_names_come_first_and_are_taken_from_other_lines() -> None:
    text = with_names(FROM_DEBIAN + "10.7.7.7 hub.example.com gpu2 # ours\n", DECLARED)
    assert text == f"{BLOCK}127.0.1.1\tRack7.example.com\n10.7.7.7\thub.example.com\n"


def test_lines_that_say_nothing_of_the_cluster_stay_as_they_are() -> None:
    rest = "# our hub\n10.7.7.7  hub.example.com   hub # do not remove\n\nff02::1 ip6-allnodes\n"
    assert with_names(rest, DECLARED) == BLOCK + rest


def test_names_written_twice_are_there_once() -> None:
    once = with_names(FROM_DEBIAN, DECLARED)
    assert with_names(once, DECLARED) == once
    assert with_names(once, "10.0.0.9\tgpu9\n").splitlines() == [
        "# clusterctl: begin", "10.0.0.9\tgpu9", "# clusterctl: end",
        "127.0.1.1\tRack7.example.com",
    ]  # fmt: skip


def test_it_is_written_over_since_a_mount_takes_no_new_file(
    paths: NodePaths, hosts_file: HostsFile, told: io.StringIO
) -> None:
    target = paths.etc / "hosts"
    before = target.stat().st_ino
    for declared in (DECLARED, DECLARED + "10.0.0.3\tgpu3\n", "10.0.0.1\tgpu1\n"):
        paths.declared_hosts.write_text(declared)
        hosts_file.tick()
        assert declared in target.read_text()
        assert target.read_text().count("clusterctl: begin") == 1
    assert target.stat().st_ino == before
    assert told.getvalue().count("names written") == 3


def test_what_the_engine_writes_anew_gets_the_names_again(
    paths: NodePaths, hosts_file: HostsFile
) -> None:
    hosts_file.tick()
    (paths.etc / "hosts").write_text(FROM_DEBIAN)
    hosts_file.tick()
    assert (paths.etc / "hosts").read_text().startswith(BLOCK)


def test_a_file_that_cannot_be_written_is_told_once_and_stops_nothing(
    paths: NodePaths, hosts_file: HostsFile, told: io.StringIO
) -> None:
    (paths.etc / "hosts").unlink()
    (paths.etc / "hosts").mkdir()
    hosts_file.tick()
    hosts_file.tick()
    assert told.getvalue().count("names failed") == 1


def test_nothing_is_touched_where_nothing_is_declared(
    paths: NodePaths, hosts_file: HostsFile
) -> None:
    paths.declared_hosts.unlink()
    hosts_file.tick()
    assert (paths.etc / "hosts").read_text() == FROM_DEBIAN


def test_hosts_files_are_asked_first_where_the_image_does_not_say(
    paths: NodePaths, hosts_file: HostsFile
) -> None:
    switch = paths.etc / "nsswitch.conf"
    hosts_file.tick()
    assert switch.read_text() == "hosts: files dns\n"
    switch.write_text("hosts: files myhostname dns\n")
    paths.declared_hosts.write_text("10.0.0.1\tgpu1\n")
    hosts_file.tick()
    assert switch.read_text() == "hosts: files myhostname dns\n"
