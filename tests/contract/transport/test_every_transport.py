"""What holds for every transport, on real processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterctl.errors import CommandFailed, CommandTimedOut, ConnectionFailed
from clusterctl.transport.base import Transport, lines
from tests.contract.transport.sshd import eventually, is_alive


def test_a_status_other_than_0_is_a_result(transport: Transport) -> None:
    result = transport.run(["sh", "-c", "echo out; echo err >&2; exit 7"])

    assert (result.status, result.stdout, result.stderr) == (7, "out\n", "err\n")
    assert not result.ok
    assert result.last_lines() == "err"


def test_output_is_the_commands_alone(transport: Transport) -> None:
    """The login shell of the test's sshd prints a greeting and a warning."""
    result = transport.run(["true"])

    assert (result.status, result.stdout, result.stderr) == (0, "", "")


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    arguments=st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=4
    )
)
def test_arguments_arrive_unchanged(transport: Transport, arguments: list[str]) -> None:
    result = transport.run(["printf", "%s\\0", "first", *arguments])

    assert result.stdout.split("\0")[:-1] == ["first", *arguments]


@pytest.mark.parametrize("word", ["-n", "$HOME", "a'b", '"', "\\", "a\nb", "!!", "`id`", "*", ""])
def test_shell_words_mean_nothing(transport: Transport, word: str) -> None:
    assert transport.run(["printf", "%s", word]).stdout == word


def test_shell_builtins_are_not_run_for_programs(transport: Transport) -> None:
    """dash's own echo would turn the backslash and the n into a newline."""
    assert transport.run(["echo", "a\\nb"]).stdout == "a\\nb\n"


def test_a_missing_command_ends_with_127(transport: Transport) -> None:
    result = transport.run(["no-such-command-here"])

    assert result.status == 127
    assert "no-such-command-here" in result.stderr


def test_death_by_signal_n_ends_with_128_plus_n(transport: Transport) -> None:
    assert transport.run(["sh", "-c", "kill -SEGV $$"]).status == 128 + 11


def test_much_stderr_while_stdout_is_idle(transport: Transport) -> None:
    result = transport.run(["sh", "-c", "head -c 4194304 /dev/zero >&2; echo done"])

    assert result.stdout == "done\n"
    assert len(result.stderr) == 4 * 1024 * 1024


def test_an_output_without_end_is_cut_off_and_said(transport: Transport) -> None:
    with pytest.raises(CommandFailed, match="`yes` wrote more than 64 MiB"):
        transport.run(["yes"], timeout=120)


def test_errors_without_end_keep_their_last_words(transport: Transport) -> None:
    result = transport.run(["sh", "-c", "head -c 9000000 /dev/zero >&2; echo last >&2"])

    assert result.stderr.startswith(f"[{9_000_005 - 4 * 2**20} bytes of stderr omitted]\n\0")
    assert result.stderr.endswith("\0last\n")
    assert len(result.stderr) < 4 * 2**20 + 100


def test_a_line_without_end_is_cut_off(transport: Transport) -> None:
    with (
        transport.open_channel(["cat", "/dev/zero"]) as channel,
        pytest.raises(CommandFailed, match="a line longer than 64 MiB"),
    ):
        list(lines(channel))


def test_binary_input_arrives_whole(transport: Transport) -> None:
    data = bytes(range(256)) * (3 * 4096)

    result = transport.run(["sha256sum"], stdin=data)

    assert result.stdout.split()[0] == hashlib.sha256(data).hexdigest()


def test_input_and_output_flow_at_once(transport: Transport) -> None:
    data = b"0123456789abcde\n" * (3 * 65536)

    assert transport.run(["cat"], stdin=data).stdout.encode() == data


def test_a_command_may_stop_reading_early(transport: Transport) -> None:
    result = transport.run(["head", "-c", "1"], stdin=b"x" * (3 << 20))

    assert (result.status, result.stdout) == (0, "x")


def test_without_input_stdin_is_at_its_end(transport: Transport) -> None:
    assert transport.run(["cat"], timeout=60).stdout == ""


def test_a_small_file_is_read(transport: Transport, tmp_path: Path) -> None:
    file = tmp_path / "a file"
    file.write_text("one\ntwo")

    assert transport.read_file(str(file), sudo=False) == b"one\ntwo"
    assert transport.read_file(f"{tmp_path}/none", sudo=False) is None
    with pytest.raises(CommandFailed, match="could not be read"):
        transport.read_file(str(tmp_path), sudo=False)


def hostile(folder: Path, kind: str) -> Path:
    """What a container may make of a file in a directory that it writes."""
    victim, path = folder.parent / "victim", folder / "file"
    victim.write_text("the host's own")
    path.unlink(missing_ok=True)
    match kind:
        case "link":
            path.symlink_to(victim)
        case "dangling":
            path.symlink_to(folder.parent / "new")
        case "pipe":
            os.mkfifo(path)
        case "huge":
            with path.open("wb") as file:
                file.truncate(1 << 42)
    return path


HOSTILE = ("link", "dangling", "pipe", "huge")


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_file_that_a_container_made_is_read_safely(
    transport: Transport, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "folder").mkdir()
    path, started = hostile(tmp_path / "folder", kind), time.monotonic()
    try:
        found = transport.read_file(str(path), sudo=False)
    except CommandFailed as error:
        assert "could not be read" in error.summary  # noqa: PT017
    else:
        assert found == b""
    assert time.monotonic() - started < 20, "it waited for somebody to write"


@pytest.mark.parametrize("kind", HOSTILE)
def test_put_replaces_what_a_container_made_and_writes_nothing_through_it(
    transport: Transport, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "folder").mkdir()
    path = hostile(tmp_path / "folder", kind)
    transport.put(b"ours", str(path), mode=0o600)
    assert path.read_bytes() == b"ours"
    assert not path.is_symlink()
    assert (tmp_path / "victim").read_text() == "the host's own"
    assert not (tmp_path / "new").exists()


def test_nobody_can_redirect_a_put_on_its_way(transport: Transport, tmp_path: Path) -> None:
    """A container swaps the temporary file for a link as soon as it appears, all the time."""
    folder, victim, done = tmp_path / "folder", tmp_path / "victim", threading.Event()
    folder.mkdir()
    victim.write_text("the host's own")
    victim.chmod(0o600)

    def swap() -> None:
        while not done.is_set():
            for path in folder.glob("file.*"):
                with contextlib.suppress(OSError):
                    path.unlink()
                    path.symlink_to(victim)

    attacker = threading.Thread(target=swap)
    attacker.start()
    try:
        for _ in range(15):
            with contextlib.suppress(CommandFailed):
                transport.put(b"x" * 500_000, str(folder / "file"), mode=0o755)
    finally:
        done.set()
        attacker.join()
    assert victim.read_text() == "the host's own"
    assert victim.stat().st_mode & 0o777 == 0o600


def test_output_that_is_not_utf_8_is_kept_readable(transport: Transport) -> None:
    assert transport.run(["printf", "a\\377b"]).stdout == "a\N{REPLACEMENT CHARACTER}b"


def test_a_command_past_its_time_is_ended_with_its_children(
    transport: Transport, tmp_path: Path
) -> None:
    script = 'sleep 300 & echo $! >"$1"; echo working on it >&2; wait'

    with pytest.raises(CommandTimedOut) as caught:
        transport.run(["sh", "-c", script, "sh", str(tmp_path / "pid")], timeout=3)

    assert caught.value.host == transport.host.name
    assert "`sh` did not end within 3 s" in caught.value.summary
    assert caught.value.detail == "working on it"
    pid = int((tmp_path / "pid").read_text())
    assert eventually(lambda: not is_alive(pid))


def test_a_command_that_ends_with_124_by_itself_is_a_result(transport: Transport) -> None:
    assert transport.run(["sh", "-c", "exit 124"]).status == 124


def test_what_stays_in_the_background_does_not_hold_run_up(
    transport: Transport, tmp_path: Path
) -> None:
    started = time.monotonic()

    result = transport.run(
        ["sh", "-c", 'setsid sleep 60 & echo $! >"$1"; echo on', "sh", str(tmp_path / "pid")]
    )

    assert result.stdout == "on\n"
    assert time.monotonic() - started < 50
    os.kill(int((tmp_path / "pid").read_text()), 9)


def test_many_threads_share_a_transport(transport: Transport) -> None:
    with ThreadPoolExecutor(12) as crew:
        results = list(crew.map(lambda n: transport.run(["echo", str(n)]).stdout, range(24)))

    assert results == [f"{n}\n" for n in range(24)]


def test_put_writes_a_file_with_its_mode(transport: Transport, tmp_path: Path) -> None:
    target = tmp_path / "a name with spaces"
    data = bytes(range(256)) * 1000

    transport.put(data, str(target), mode=0o640)

    assert target.read_bytes() == data
    assert target.stat().st_mode & 0o7777 == 0o640


def test_put_replaces_a_file_and_leaves_nothing_else(transport: Transport, tmp_path: Path) -> None:
    target = tmp_path / "node.json"
    target.write_text("old")
    target.chmod(0o777)
    before = target.stat().st_ino

    transport.put(b"", str(target), mode=0o600)

    assert target.read_bytes() == b""
    assert target.stat().st_mode & 0o7777 == 0o600
    assert target.stat().st_ino != before, "written in place: a reader could see half of it"
    assert [path.name for path in tmp_path.iterdir()] == ["node.json"]


def test_a_file_on_its_way_is_private(transport: Transport, tmp_path: Path) -> None:
    """Until the rename its mode must not be wider than asked for: keys travel this way."""
    seen: set[int] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            for path in tmp_path.glob("secret.*"):
                try:
                    seen.add(path.stat().st_mode & 0o777)
                except FileNotFoundError:
                    continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for _ in range(100):  # until the watcher came in time to see one on its way
            transport.put(b"x" * (8 << 20), str(tmp_path / "secret"), mode=0o600)
            if seen:
                break
    finally:
        done.set()
        watcher.join()
    assert seen == {0o600}


@pytest.mark.parametrize("path", ["missing/file", "folder"])
def test_put_where_it_cannot(transport: Transport, tmp_path: Path, path: str) -> None:
    (tmp_path / "folder").mkdir()

    with pytest.raises(CommandFailed) as caught:
        transport.put(b"data", str(tmp_path / path))

    assert caught.value.host == transport.host.name
    assert caught.value.detail
    assert [found.name for found in tmp_path.rglob("*")] == ["folder"]


def test_a_channel_carries_bytes_both_ways(transport: Transport) -> None:
    with transport.open_channel(["cat"]) as channel:
        channel.send(b"one\n")
        assert channel.recv(100) == b"one\n"
        channel.send(b"two\nthree")
        channel.close_stdin()
        assert list(lines(channel)) == ["two", "three"]
        assert channel.wait(30) == 0


def test_a_channel_has_status_and_stderr(transport: Transport) -> None:
    script = "head -c 200000 /dev/zero | tr '\\0' x >&2; echo last >&2; exit 3"
    with transport.open_channel(["sh", "-c", script]) as channel:
        assert channel.recv(10) == b""
        assert channel.wait(30) == 3
        assert eventually(lambda: channel.stderr_tail().endswith("xlast\n"))
        assert len(channel.stderr_tail()) == 64 * 1024


def test_reading_a_channel_is_bounded(transport: Transport) -> None:
    with transport.open_channel(["sleep", "30"]) as channel:
        channel.settimeout(0.1)
        with pytest.raises(TimeoutError):
            channel.recv(1)
        with pytest.raises(TimeoutError):
            channel.wait(0.1)


def test_closing_a_channel_ends_its_command(transport: Transport) -> None:
    with transport.open_channel(["sh", "-c", "echo $$; exec cat"]) as channel:
        pid = int(next(lines(channel)))
        assert is_alive(pid)

    assert eventually(lambda: not is_alive(pid))


def test_writing_to_an_ended_command_is_an_error(transport: Transport) -> None:
    with transport.open_channel(["true"]) as channel:
        channel.wait(30)
        with pytest.raises(ConnectionFailed, match="stopped reading its input"):
            channel.send(b"x" * (16 << 20))


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A TCP server that sends back what it gets, in capitals."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                while data := connection.recv(65536):
                    connection.sendall(data.upper())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(5)


def test_a_tcp_connection_from_the_host(transport: Transport, echo_port: int) -> None:
    with transport.open_tcp("127.0.0.1", echo_port) as channel:
        channel.send(b"hello")
        assert channel.recv(100) == b"HELLO"
        channel.close_stdin()
        assert channel.recv(100) == b""
        assert channel.wait(30) == 0


def test_a_tcp_connection_to_a_closed_port(transport: Transport, closed_port: int) -> None:
    with pytest.raises(ConnectionFailed) as caught:
        transport.open_tcp("127.0.0.1", closed_port)
    assert caught.value.host == transport.host.name
