"""The fake host that other tests build on keeps to the contract."""

from __future__ import annotations

import pytest

from clusterctl.errors import CommandTimedOut, Unreachable
from clusterctl.transport.base import CommandResult, Transport, lines
from tests.fakes.transport import Call, FakeTransport, starts


def test_it_is_a_transport() -> None:
    transport: Transport = FakeTransport()

    assert transport.host.name == "gpu1"


def test_an_unforeseen_command_is_an_error() -> None:
    with pytest.raises(AssertionError, match="no test foresaw"):
        FakeTransport().run(["rm", "-rf", "/"])


def test_the_latest_matching_answer_counts() -> None:
    fake = FakeTransport().on(starts("docker"), status=1).on(["docker", "ps"], stdout="none\n")

    assert fake.run(["docker", "info"]).status == 1
    assert fake.run(["docker", "ps"], sudo=True, stdin=b"x", timeout=5).stdout == "none\n"
    assert fake.calls[1] == Call(("docker", "ps"), b"x", True, 5)


def test_answers_may_be_computed_or_raised() -> None:
    fake = FakeTransport()
    fake.on(["cat"], answer=lambda call: CommandResult(call.argv, 0, call.stdin.decode(), ""))
    fake.on(["sleep"], raises=CommandTimedOut("slow"))

    assert fake.run(["cat"], stdin=b"echo").stdout == "echo"
    with pytest.raises(CommandTimedOut):
        fake.run(["sleep"])


def test_files_are_kept() -> None:
    fake = FakeTransport()
    fake.put(b"data", "/etc/x", mode=0o600, sudo=True)

    assert fake.files == {"/etc/x": (b"data", 0o600, True)}


def test_a_channel_plays_the_answer() -> None:
    fake = FakeTransport().on(["tail"], stdout="a\nb\n", stderr="e", status=3)
    with fake.open_channel(["tail"]) as channel:
        assert list(lines(channel)) == ["a", "b"]
        assert (channel.wait(), channel.stderr_tail()) == (3, "e")


def test_a_host_that_is_down_fails_every_use() -> None:
    fake = FakeTransport(down=Unreachable("down", host="gpu1"))

    for use in (lambda: fake.run(["true"]), fake.connect, lambda: fake.put(b"", "/x")):
        with pytest.raises(Unreachable):
            use()
