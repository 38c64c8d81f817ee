"""Blobs go through a chain of real relays, past whatever breaks meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.errors import ClusterctlError, CommandTimedOut, StepFailed
from clusterctl.transfer.chain import Chain
from clusterctl.transfer.content import Blob
from clusterctl.transport.python import PythonMissing
from tests.contract.transfer.conftest import MIB, Bench
from tests.contract.transport.sshd import eventually, is_alive


@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_byte_leaves_the_source_once(bench: Bench, count: int) -> None:
    blobs = [bench.source.add(size) for size in (5 * MIB + 3, 2 * MIB, 700, 1, 0)]
    links = bench.links(count)

    with bench.chain(links, blobs) as chain:
        bench.bring(chain, [link.host for link in links], blobs)

        assert chain.sent == sum(blob.size for blob in blobs)
        assert all(each.received <= chain.sent for each in chain.progress().values())
    assert not [*bench.folder.glob("h*/*")], "the caches are left behind"


def test_the_last_host_has_bytes_that_the_source_has_not_finished(bench: Bench) -> None:
    blob = bench.source.add(8 * MIB)
    arrived = threading.Event()
    chain = bench.chain(bench.links(3), [blob])

    def hold(_blob: Blob, position: int) -> None:
        if position == 4 * MIB:
            arrived.set()
            assert eventually(lambda: chain.progress()["h3"].done == 4 * MIB)

    bench.source.gate = hold
    with chain:
        bench.bring(chain, ["h1", "h2", "h3"], [blob])
    assert arrived.is_set()


def half_way(bench: Bench, blob: Blob, then: Callable[[], None]) -> None:
    """Call `then` once, when half of the blob has left the source."""
    pending = [then]

    def gate(each: Blob, position: int) -> None:
        if each == blob and position >= blob.size // 2 and pending:
            pending.pop()()

    bench.source.gate = gate


def test_a_killed_relay_is_started_again_and_goes_on(bench: Bench) -> None:
    blob = bench.source.add(24 * MIB)
    chain = bench.chain(bench.links(3), [blob])
    half_way(bench, blob, lambda: os.kill(bench.pid(1), signal.SIGKILL))

    with chain:
        bench.bring(chain, ["h1", "h2", "h3"], [blob])

        assert chain.sent < 1.5 * blob.size
        assert chain.progress()["h2"].received < 1.2 * blob.size
    assert [host for host, text in bench.said if "restarting its relay" in text] == ["h1"]


def test_an_upstream_that_says_nothing_is_left(bench: Bench) -> None:
    blob = bench.source.add(24 * MIB)
    stopped: list[int] = []

    def stop() -> None:
        stopped.append(bench.pid(1))
        os.kill(stopped[0], signal.SIGSTOP)

    half_way(bench, blob, stop)
    with bench.chain(bench.links(3), [blob], stall=4.0) as chain:
        try:
            bench.bring(chain, ["h2", "h3"], [blob])
            assert chain.progress()["h3"].received < 1.1 * blob.size, "h3 stayed with h2"
            (told,) = [text for host, text in bench.said if host == "h2"]
            assert told.startswith(
                "fetching from the source what another host did not send: h1: nothing"
            )
        finally:
            os.kill(stopped[0], signal.SIGCONT)


def test_a_host_that_is_lost_for_good_holds_nobody_up(bench: Bench) -> None:
    blob = bench.source.add(24 * MIB)
    once = ("sh", "-c", 'mkdir "$0" && exec python3 "$@"', str(bench.folder / "started"))
    links = [bench.link(1, python=once), bench.link(2), bench.link(3)]
    half_way(bench, blob, lambda: os.kill(bench.pid(1), signal.SIGKILL))

    with bench.chain(links, [blob], backoff=(0.1, 0.1)) as chain:
        bench.bring(chain, ["h2", "h3"], [blob])

        assert list(chain.lost) == ["h1"]
        assert (
            "h1",
            "the others continue without it: the relay did not start at 127.0.0.1",
        ) in bench.said
        with pytest.raises(StepFailed, match="h1: the relay did not start"):
            chain.fetch("h1", [blob.digest], 30)
        assert chain.progress()["h1"].lost


def test_wrong_bytes_of_an_upstream_are_noticed_and_taken_from_another(bench: Bench) -> None:
    blob = bench.source.add(6 * MIB)
    broken = bench.folder / "broken"
    broken.write_bytes(bench.source.data[blob.digest][:-1] + b"?")
    links = [bench.link(1, origin={blob.digest: str(broken)}), bench.link(2), bench.link(3)]

    with bench.chain(links, [blob]) as chain:
        bench.bring(chain, ["h2", "h3"], [blob])

        assert chain.sent == blob.size
    assert ("h2", f"h1 sent wrong bytes for {blob.hex[:12]}; fetching them again") in bench.said


def test_wrong_bytes_stop_at_the_first_host(bench: Bench) -> None:
    """They are passed on before anyone can know, but never to the last byte; h2 blames nobody."""
    blob = bench.source.add(6 * MIB)
    right = bench.source.data[blob.digest]
    bench.source.data[blob.digest] = right[:-1] + b"?"

    def mend(_blob: Blob, position: int) -> None:
        if position == blob.size - MIB:
            bench.source.data[blob.digest] = right

    bench.source.gate = mend
    with bench.chain(bench.links(3), [blob]) as chain:
        bench.bring(chain, ["h1", "h2", "h3"], [blob])
    assert [(host, text.split()[0]) for host, text in bench.said] == [("h1", "source")]


def test_a_host_that_has_it_heads_the_chain(bench: Bench) -> None:
    blob = bench.source.add(6 * MIB)
    here = bench.folder / "model"
    here.write_bytes(bench.source.data[blob.digest])
    links = [bench.link(1, origin={blob.digest: str(here)}), bench.link(2), bench.link(3)]

    with bench.chain(links, [blob], source=None) as chain:
        bench.bring(chain, ["h1", "h2", "h3"], [blob])
        assert chain.sent == 0
    assert here.exists(), "what was there before stays"


def test_a_second_run_goes_on_where_the_first_one_was_broken_off(bench: Bench) -> None:
    blob = bench.source.add(16 * MIB)
    chain = bench.chain(bench.links(2), [blob])
    gone = threading.Event()

    def stop_in_the_middle(_blob: Blob, position: int) -> None:
        if position >= 8 * MIB:
            assert gone.wait(60)

    bench.source.gate = stop_in_the_middle
    with chain:
        with pytest.raises(CommandTimedOut):
            chain.fetch("h2", [blob.digest], 0.1)
        assert eventually(lambda: chain.progress()["h2"].done == 8 * MIB)
        chain.close(keep=True)
    gone.set()
    bench.source.gate = lambda _blob, _position: None

    with bench.chain(bench.links(2), [blob]) as second:
        bench.bring(second, ["h1", "h2"], [blob])
        assert second.sent == 8 * MIB


def test_what_an_earlier_run_left_is_not_trusted(bench: Bench) -> None:
    blob = bench.source.add(4 * MIB)
    (bench.folder / "h1").mkdir()
    (bench.folder / "h1" / f"{blob.hex}.part").write_bytes(b"x" * MIB)

    with bench.chain(bench.links(1), [blob]) as chain:
        bench.bring(chain, ["h1"], [blob])
    assert any("an earlier run" in text for _, text in bench.said)


def test_a_relay_ends_with_its_session(bench: Bench) -> None:
    chain: Chain
    with bench.chain(bench.links(1), []) as chain:
        pid = bench.pid(1)
        assert chain.progress()["h1"].total == 0
    assert eventually(lambda: not is_alive(pid))


def test_a_disk_that_refuses_is_named_with_its_host(bench: Bench) -> None:
    blob = bench.source.add(MIB)
    (bench.folder / "h2").write_text("a file where the cache's directory should be")

    with bench.chain(bench.links(2), [blob]) as chain:
        with pytest.raises(StepFailed, match="h2: cannot write received data"):
            chain.fetch("h2", [blob.digest], 60)
        bench.bring(chain, ["h1"], [blob])


def test_a_source_that_fails_is_tried_again_and_then_told(bench: Bench) -> None:
    blob = bench.source.add(MIB)
    tries: list[int] = []

    def fail(_blob: Blob, position: int) -> None:
        tries.append(position)
        raise StepFailed("the registry answers 500", hint="try later")

    bench.source.gate = fail
    with (
        bench.chain(bench.links(2), [blob]) as chain,
        pytest.raises(ClusterctlError, match="answers 500"),
    ):
        chain.fetch("h2", [blob.digest], 60)
    assert len(tries) >= 3


def test_a_source_that_does_not_hold_what_it_promised_is_named(bench: Bench) -> None:
    short, wrong = bench.source.add(MIB), bench.source.add(2 * MIB)
    bench.source.data[short.digest] = b"x" * 1000
    bench.source.data[wrong.digest] = b"x" * wrong.size

    for blob, words in (
        (short, "ends 1047576 bytes before"),
        (wrong, "sends bytes that do not match"),
    ):
        with bench.chain(bench.links(2), [blob]) as chain, pytest.raises(StepFailed, match=words):
            chain.fetch("h2", [blob.digest], 60)


def test_an_origin_that_is_not_there_any_more_is_fetched(bench: Bench) -> None:
    blob = bench.source.add(MIB)
    links = [bench.link(1, origin={blob.digest: "/nonexistent"}), bench.link(2)]

    with bench.chain(links, [blob]) as chain:
        bench.bring(chain, ["h1", "h2"], [blob])
        assert chain.sent == blob.size
    assert [host for host, text in bench.said if "/nonexistent has changed since" in text] == ["h1"]


def test_what_nobody_went_on_with_is_swept_out(bench: Bench) -> None:
    cache = bench.folder / "h1"
    cache.mkdir()
    old, young, foreign = f"{'0' * 64}.part", f"{'1' * 64}.part", "not a blob"
    for name, days in ((old, 8), (young, 1), (foreign, 100)):
        (cache / name).write_text("left by a run that was broken off")
        os.utime(cache / name, (time.time() - days * 86400,) * 2)

    with bench.chain(bench.links(1), []):
        assert {file.name for file in cache.iterdir()} == {young, foreign}


def test_without_any_host_the_errors_of_all_are_raised(bench: Bench) -> None:
    links = [bench.link(number, python=("false",)) for number in (1, 2)]

    with pytest.raises(ClusterctlError, match="2 problems"), bench.chain(links, []):
        pytest.fail("no relay runs")


def test_a_host_without_python_is_left_out_and_told_apart(bench: Bench) -> None:
    blob = bench.source.add(MIB)
    links = [bench.link(1, python=("sh", "-c", "exit 127")), bench.link(2)]

    with bench.chain(links, [blob]) as chain:
        bench.bring(chain, ["h2"], [blob])

        assert isinstance(chain.lost["h1"], PythonMissing)
        assert "apt-get install -y python3" in (chain.lost["h1"].hint or "")


@pytest.mark.parametrize("minor", [9, 10])
def test_old_pythons_run_the_relay(bench: Bench, minor: int) -> None:
    python = f"python3.{minor}"
    if subprocess.run(["sh", "-c", f"{python} -c ''"], capture_output=True).returncode:
        pytest.skip(f"no {python} on this machine")
    blob = bench.source.add(3 * MIB)
    links = [bench.link(number, python=(python,)) for number in (1, 2)]

    with bench.chain(links, [blob]) as chain:
        bench.bring(chain, ["h1", "h2"], [blob])
    assert Path(python).name == python
