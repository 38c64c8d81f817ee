"""`ray start` under a real supervisor, with a fake `ray`."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.node.children import session_members
from clusterctl.node.documents import ExpectedNode, to_json
from clusterctl.node.gcs_store import FAILED_STARTS
from clusterctl.node.ray_process import supported_argv
from tests.contract.transport.sshd import is_alive
from tests.fakes.node_bench import QUICK, Bench, await_value
from tests.fakes.ports import listening, port_of, reserved


def test_ray_is_up_once_it_says_so(bench: Bench) -> None:
    bench.behaviour("ray", {"silent": True})
    bench.start()
    bench.await_ray("starting")
    await_value(lambda: bench.starts("ray"), "the first start")
    bench.behaviour("ray", {})
    os.kill(bench.starts("ray")[0]["pid"], signal.SIGKILL)

    bench.await_ray("up")


def test_a_ray_that_was_killed_is_started_again_without_leftovers(bench: Bench) -> None:
    bench.start()
    bench.await_ray("up")
    first = bench.starts("ray")[0]["pid"]

    os.kill(first, signal.SIGKILL)

    await_value(lambda: len(bench.starts("ray")) == 2, "a second start")
    assert bench.await_ray("up").ray_restarts == 1
    assert not session_members(first)


def test_a_workers_ray_joins_again_once_the_gcs_has_forgotten_the_last_one(tmp_path: Path) -> None:
    with reserved() as port, listening(port_of(port)):
        counted = replace(QUICK, raylet_counted=1.0)
        bench = Bench(tmp_path, role="worker", gcs_port=port_of(port), timing=counted)
        try:
            bench.start()
            bench.await_ray("up")
            os.kill(bench.starts("ray")[0]["pid"], signal.SIGKILL)
            ended = time.monotonic()
            await_value(lambda: len(bench.starts("ray")) == 2, "a second start")
            assert time.monotonic() - ended >= 1.0
            bench.await_ray("up", restarts=1)

            # A container that was killed leaves a state in which Ray is up.
            bench.end_supervisor()
            left = replace(bench.await_ray("down"), ray="up", time=time.time())
            bench.paths.state.write_text(to_json(left))
            bench.start()
            began = time.monotonic()
            await_value(lambda: len(bench.starts("ray")) == 3, "a start of the next container")
            assert time.monotonic() - began >= 1.0

            # One that was stopped took leave of the GCS.
            bench.end_supervisor()
            bench.timing = replace(counted, raylet_counted=60.0)
            bench.start()
            bench.await_ray("up")
        finally:
            bench.stop()


PARTS = {
    "gcs_server": "/opt/ray/core/src/ray/gcs/gcs_server",
    "raylet": "/opt/ray/core/src/ray/raylet/raylet",
    "dashboard agent": "ray::DashboardAgent",
    "runtime_env agent": "ray::RuntimeEnvAgent",
}


@pytest.mark.parametrize("part", PARTS)
def test_a_ray_start_that_outlives_a_vital_part_is_started_again(bench: Bench, part: str) -> None:
    bench.behaviour("ray", {"parts": list(PARTS.values())})
    bench.start()
    bench.await_ray("up")
    pid = json.loads((bench.root / "ray.parts").read_text())[list(PARTS).index(part)]

    os.kill(pid, signal.SIGTERM)

    bench.await_ray("up", restarts=1)
    assert f"its {part} (pid {pid}) ended" in " ".join(bench.told("ray"))
    assert not session_members(bench.starts("ray")[0]["pid"])


def test_a_part_that_is_not_vital_may_end(bench: Bench) -> None:
    bench.behaviour("ray", {"parts": ["/opt/ray/dashboard/dashboard.py", PARTS["raylet"]]})
    bench.start()
    bench.await_ray("up")
    monitor, raylet = json.loads((bench.root / "ray.parts").read_text())

    os.kill(monitor, signal.SIGTERM)
    os.kill(raylet, signal.SIGTERM)

    bench.await_ray("up", restarts=1)
    assert "dashboard" not in " ".join(bench.told("ray"))


@pytest.mark.parametrize("role", ["head", "worker"])
def test_a_raylet_that_the_gcs_counts_dead_is_started_again(tmp_path: Path, role: str) -> None:
    with reserved() as port, listening(port_of(port)):
        bench = Bench(tmp_path, role=role, gcs_port=port_of(port))
        try:
            bench.start()
            bench.await_ray("up")

            bench.in_ray(bench.node("a", "n1", alive=False, death_reason="missed 3 checks"))

            await_value(lambda: len(bench.starts("ray")) == 2, "a second start")
            assert not session_members(bench.starts("ray")[0]["pid"])
            told = " ".join(bench.told("ray"))
            assert "the GCS considers this node dead: missed 3 checks" in told

            bench.in_ray(bench.node("a", "n1", alive=False), bench.node("a", "n3"))
            bench.await_ray("up")
        finally:
            bench.stop()


def test_a_gcs_that_answers_no_more_is_started_again(bench: Bench) -> None:
    bench.timing = replace(bench.timing, gcs_silence=0.5)
    bench.start()
    bench.await_ray("up")
    await_value(lambda: (state := bench.state()) and state.nodes, "an answer of the GCS")

    (bench.root / "gcs.silent").touch()
    await_value(lambda: len(bench.starts("ray")) == 2, "a second start")
    bench.await_ray("up", restarts=1)
    assert "the GCS has not answered for" in " ".join(bench.told("ray"))

    # One that never answered says nothing about Ray: it may be ray-watch that cannot ask.
    (bench.root / "gcs.silent").unlink()
    await_value(lambda: (state := bench.state()) and state.nodes, "an answer of the GCS")


def test_a_ray_that_cannot_start_backs_off_and_says_why(bench: Bench) -> None:
    bench.behaviour("ray", {"exit": 1, "words": "InvalidAuthToken"})
    bench.start()

    bench.await_ray("backing-off", "ended with status 1: Error:  InvalidAuthToken")

    bench.behaviour("ray", {})
    bench.await_ray("up")


def test_a_start_of_ray_that_hangs_is_ended_and_tried_again(bench: Bench) -> None:
    bench.timing = replace(bench.timing, ray_start=0.3)
    bench.behaviour("ray", {"silent": True})
    bench.start()
    bench.await_ray("backing-off", "it did not start within 0.3 s")
    bench.behaviour("ray", {})
    bench.await_ray("up")


def test_ray_starts_neither_again_nor_at_first_without_its_token(bench: Bench) -> None:
    token = bench.paths.ray_token
    token.write_text("")
    bench.start()
    bench.await_ray("waiting", f"for its token: {token} is empty; clusterctl bootstrap repairs")
    token.write_text("a-token")
    bench.await_ray("up")
    token.chmod(0o604)

    os.kill(bench.starts("ray")[0]["pid"], signal.SIGKILL)

    bench.await_ray("waiting", "is open to other users (mode 604)")
    token.unlink()
    bench.await_ray("waiting", "is missing")
    (bench.root / "elsewhere").write_text("a-token")
    (bench.root / "elsewhere").chmod(0o600)
    token.symlink_to(bench.root / "elsewhere")
    bench.await_ray("waiting", "cannot be read: Too many levels of symbolic links")
    assert len(bench.starts("ray")) == 1
    token.unlink()
    os.mkfifo(token, 0o600)
    bench.await_ray("waiting", "is not a file")


def test_a_ray_that_the_inventory_allows_without_a_token_needs_none(bench: Bench) -> None:
    bench.paths.ray_token.unlink()
    bench.declare_node(env={"RAY_AUTH_MODE": "disabled"})
    bench.start()
    bench.await_ray("up")


def test_a_changed_ray_command_restarts_ray(bench: Bench) -> None:
    bench.start()
    bench.await_ray("up")

    bench.declare_node(ray_argv=[*bench.document().ray_argv, "--num-gpus=2"])

    await_value(lambda: len(bench.starts("ray")) == 2, "a second start")
    assert "--num-gpus=2" in bench.starts("ray")[1]["argv"]
    bench.await_ray("up")


def test_more_expected_nodes_do_not_restart_ray(bench: Bench) -> None:
    bench.declare()
    bench.start()
    bench.await_service("ready")

    bench.declare_node(expected=[*bench.document().expected, ExpectedNode("c", "10.0.0.3", 1)])
    bench.declare(fingerprint="2")

    bench.await_service("waiting", detail="c has not joined Ray")
    assert len(bench.starts("ray")) == 1


def test_an_unreadable_document_changes_nothing(bench: Bench) -> None:
    bench.declare()
    bench.start()
    bench.await_service("ready")

    (bench.paths.services / "chat.json").write_text('{"name": "chat"')

    await_value(lambda: "unreadable" in bench.events("supervisor"), "the journal")
    bench.await_service("ready", restarts=0)


def test_services_go_when_ray_goes(bench: Bench) -> None:
    bench.declare()
    bench.start()
    bench.await_service("ready")

    os.kill(bench.starts("ray")[0]["pid"], signal.SIGKILL)

    bench.await_service("ready", restarts=1)
    assert len(bench.starts("ray")) == 2


def test_a_worker_waits_for_its_head(worker: Bench) -> None:
    worker.start()
    worker.await_ray("waiting", f"127.0.0.1:{worker.gcs_port} (refused)")
    assert worker.starts("ray") == []

    with listening(worker.gcs_port):
        worker.await_ray("up")


def test_a_worker_goes_on_while_its_head_is_away(worker: Bench) -> None:
    worker.declare(node_ips=["10.0.0.1"], gpus=1, tensor_parallel=1)
    with listening(worker.gcs_port):
        worker.start()
        worker.await_service("ready")
    (worker.root / "gcs.silent").touch()
    before = worker.state()
    await_value(lambda: worker.state() != before, "another look")

    with listening(worker.gcs_port):
        (worker.root / "gcs.silent").unlink()
        state = worker.await_ray("up")

    assert state.ray_restarts == 0
    worker.await_service("ready", restarts=0)
    assert len(worker.starts("ray")) == len(worker.starts("vllm")) == 1


def with_tables(bench: Bench, parts: list[str]) -> None:
    bench.paths.tables.mkdir(parents=True)
    bench.behaviour("ray", {"parts": parts, "leaves": True})
    bench.declare_node(ray_argv=[*bench.document().ray_argv, "--block"])


def test_a_gcs_with_tables_that_ends_is_started_again_alone(bench: Bench) -> None:
    program = bench.root / "gcs" / "gcs_server"
    program.parent.mkdir()
    program.symlink_to("/bin/sleep")
    with_tables(bench, [str(program), PARTS["raylet"]])
    bench.declare()
    bench.start()
    bench.await_service("ready")
    gcs, raylet = json.loads((bench.root / "ray.parts").read_text())
    assert bench.starts("ray")[0]["env"]["RAY_gcs_storage_path"] == str(bench.paths.tables)
    assert "--block" not in bench.starts("ray")[0]["argv"]

    os.kill(gcs, signal.SIGKILL)

    again = await_value(lambda: revived(bench), "the GCS alone")
    assert (
        Path(f"/proc/{again}/cmdline").read_bytes() == "\0".join([str(program), "600", ""]).encode()
    )
    bench.await_service("ready", restarts=0)
    assert is_alive(raylet)
    assert len(bench.starts("ray")) == 1

    os.kill(again, signal.SIGKILL)  # At once, as one does whose tables cannot be written
    bench.await_ray("up", restarts=1)
    assert not is_alive(raylet)


@pytest.mark.parametrize("helps", [True, False])
def test_a_gcs_with_tables_that_hangs_is_ended_alone_first(bench: Bench, helps: bool) -> None:
    program = bench.root / "gcs" / "gcs_server"
    program.parent.mkdir()
    program.symlink_to("/bin/sleep")
    with_tables(bench, [str(program), PARTS["raylet"]])
    bench.timing = replace(bench.timing, gcs_silence=4.0)
    bench.start()
    bench.await_ray("up")
    await_value(lambda: (state := bench.state()) and state.nodes, "an answer of the GCS")
    hung, raylet = json.loads((bench.root / "ray.parts").read_text())

    (bench.root / "gcs.silent").touch()
    again = await_value(lambda: revived(bench), "the GCS alone")
    if helps:
        (bench.root / "gcs.silent").unlink()
        until = time.monotonic() + 2 * bench.timing.gcs_silence
        await_value(lambda: time.monotonic() > until, "another silence to be over")
        assert is_alive(raylet)
        assert is_alive(again)
        assert len(bench.starts("ray")) == 1
    else:
        await_value(lambda: len(bench.starts("ray")) == 2, "all of Ray again")
    assert not is_alive(hung)


def revived(bench: Bench) -> int:
    """The pid of the GCS that was started again, or 0."""
    words = [text for text in bench.told("ray") if "is started again alone" in text]
    return int(words[-1].rpartition(" ")[2]) if words else 0


def test_tables_that_ray_does_not_start_with_are_deleted(bench: Bench) -> None:
    with_tables(bench, [PARTS["raylet"]])
    bench.start()
    bench.await_ray("up")
    table = bench.paths.tables / "MANIFEST-1"
    table.write_text("damaged")

    bench.behaviour("ray", {"exit": 1, "words": "Failed to start GCS."})
    os.kill(json.loads((bench.root / "ray.parts").read_text())[0], signal.SIGKILL)
    await_value(lambda: not table.exists(), "an empty directory")

    assert len(bench.starts("ray")) >= 1 + FAILED_STARTS
    assert "Ray did not start with them 3 times in a row" in " ".join(bench.told("ray"))
    bench.behaviour("ray", {"leaves": True})
    bench.await_ray("up")


def test_a_worker_keeps_the_services_that_are_declared_on_it(worker: Bench) -> None:
    worker.declare(node_ips=["10.0.0.1"], gpus=1, tensor_parallel=1)
    with listening(worker.gcs_port):
        worker.start()
        worker.await_service("ready")


def test_ray_without_its_client_is_given_no_port_for_it() -> None:
    argv = ["ray", "start", "--head", "--ray-client-server-port=10001", "--block"]
    assert supported_argv(argv, has_client=True) == argv
    assert supported_argv(argv, has_client=False) == ["ray", "start", "--head", "--block"]
