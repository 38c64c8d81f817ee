"""What a user gets from commands on one host that answers and one that does not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run


def test_exec_shows_what_hosts_said_and_then_who_was_not_reached(
    clusterctl: Run, inventory: Path
) -> None:
    ran = clusterctl("-i", str(inventory), "exec", "--", "echo", "[bold] fd00::1")
    assert ran.stdout == "here  [bold] fd00::1\n"
    assert "error: gone: " in ran.stderr
    assert "fix: " in ran.stderr
    assert ran.returncode == 4


def test_exec_for_machines_has_every_host(clusterctl: Run, inventory: Path) -> None:
    ran = clusterctl("exec", "--json", "-i", str(inventory), "--", "sh", "-c", "exit 3")
    document = json.loads(ran.stdout)
    assert document["here"]["status"] == 3
    assert document["gone"]["error"]
    assert ran.returncode == 4


def test_a_failed_command_alone_ends_with_6(clusterctl: Run, inventory: Path) -> None:
    ran = clusterctl("exec", "--limit", "here", "--", "false", CLUSTERCTL_INVENTORY=str(inventory))
    assert (ran.returncode, ran.stderr) == (6, "failed on here (1)\n")


def test_a_line_for_a_shell_is_told_from_a_command(clusterctl: Run, inventory: Path) -> None:
    ran = clusterctl("-i", str(inventory), "exec", "df -h / | tail -1")
    assert ran.returncode == 2
    assert "commands are not run in a shell" in ran.stderr
    assert "fix: clusterctl exec -- sh -c 'df -h / | tail -1'" in ran.stderr


def test_an_unknown_end_of_a_tunnel_is_told_with_those_there_are(
    clusterctl: Run, inventory: Path
) -> None:
    unknown = "there is no target chat; targets: dashboard"
    for words, said in ((("chat",), unknown), ((), "to what? ")):
        ran = clusterctl("-i", str(inventory), "tunnel", *words)
        assert ran.returncode == 2
        assert said in ran.stderr
        assert "fix: clusterctl tunnel dashboard" in ran.stderr


def test_images_of_hosts_are_listed_and_silent_hosts_named(
    clusterctl: Run, inventory: Path
) -> None:
    ran = clusterctl("-i", str(inventory), "image", "ls", "--json")
    assert "gone" in [one["host"] for one in json.loads(ran.stdout)["errors"]]
    assert ran.returncode == 0


def test_a_log_that_is_not_there_is_an_error(clusterctl: Run, inventory: Path) -> None:
    ran = clusterctl("-i", str(inventory), "logs", "chat")
    assert ran.returncode == 2
    assert "there is no log chat; logs: none" in ran.stderr


def test_every_host_without_its_journal_is_named(clusterctl: Run, inventory: Path) -> None:
    ran = clusterctl("-i", str(inventory), "logs")
    assert ran.returncode == 4
    assert "here: it has no journal" in ran.stderr
    assert "error: gone: " in ran.stderr


def test_following_tells_errors_once(clusterctl: Run, inventory: Path) -> None:
    ran = clusterctl("-i", str(inventory), "logs", "-f")
    assert ran.returncode == 4
    assert ran.stderr.count("error: gone: ") == 1


def test_no_tunnel_to_where_nothing_answers(clusterctl: Run, inventory: Path) -> None:
    ran = clusterctl("-i", str(inventory), "tunnel", "dashboard", "--port", "0")
    assert (ran.returncode, ran.stdout) == (4, "")
    assert "error: here: " in ran.stderr


@pytest.mark.parametrize(
    ("words", "said"), [(("echo", "a  b"), "a  b"), (("echo $((1 + 1))",), "2")]
)
def test_ssh_to_this_machine_needs_no_ssh(
    clusterctl: Run, inventory: Path, words: tuple[str, ...], said: str
) -> None:
    ran = clusterctl("ssh", "-i", str(inventory), "here", *words, SHELL="/bin/sh")
    assert ran.stdout.split() == said.split()


@pytest.mark.parametrize(
    ("words", "ran_there"),
    [((), "clusterctl-nowhere bash"), (("echo $HOME",), "clusterctl-nowhere sh -c echo $HOME")],
)
def test_ssh_into_the_node_container_goes_through_the_hosts_engine(
    clusterctl: Run, inventory: Path, tmp_path: Path, words: tuple[str, ...], ran_there: str
) -> None:
    for program, text in (("docker", 'echo "$@"'), ("sudo", 'exec "$@"')):
        (tmp_path / program).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / program).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    ran = clusterctl(
        "ssh", "-i", str(inventory), "here", "--node", *words, SHELL="/bin/sh", PATH=path
    )
    assert ran.stdout == f"exec --interactive {ran_there}\n", ran.stderr


@pytest.mark.parametrize("name", ["*", "here,gone", "her"])
def test_ssh_goes_to_one_host_by_its_name(clusterctl: Run, inventory: Path, name: str) -> None:
    ran = clusterctl("ssh", "-i", str(inventory), name, "true")
    assert ran.returncode == 2
    assert "no host is named" in ran.stderr


def test_status_in_a_pipe_is_one_uncoloured_screen(clusterctl: Run, inventory: Path) -> None:
    ran = clusterctl("status", "-i", str(inventory))
    assert ran.returncode == 8
    assert "\x1b" not in ran.stdout + ran.stderr
    assert "no answer" in ran.stdout


def test_status_for_machines_is_json_alone(clusterctl: Run, inventory: Path) -> None:
    ran = clusterctl("status", "--json", "-i", str(inventory))
    assert [host["name"] for host in json.loads(ran.stdout)["hosts"]] == ["here", "gone"]
    assert (ran.returncode, ran.stderr) == (8, "")


@pytest.mark.parametrize("command", ["status", "check", "plan", "down", "stop"])
def test_errors_for_machines_are_json_on_stdout(clusterctl: Run, command: str) -> None:
    words = [command, "--json", *(["x"] if command == "stop" else [])]
    ran = clusterctl("-i", "missing.yaml", *words)
    assert json.loads(ran.stdout)["error"]["exit_code"] == 3
    assert (ran.returncode, ran.stderr) == (3, "")


def test_no_inventory_is_a_usage_error_with_a_fix(clusterctl: Run) -> None:
    ran = clusterctl("status")
    assert ran.returncode == 2
    assert "fix: clusterctl bootstrap FILE" in ran.stderr


def test_the_option_of_the_command_wins(clusterctl: Run, inventory: Path) -> None:
    ran = clusterctl("-i", "missing.yaml", "exec", "-i", str(inventory), "--limit", "here", "true")
    assert ran.returncode == 0


def test_no_place_for_a_log_is_one_note(clusterctl: Run, inventory: Path) -> None:
    words = ("exec", "-i", str(inventory), "--limit", "here", "echo", "done")
    ran = clusterctl(*words, XDG_STATE_HOME="/proc/nowhere")
    assert (ran.returncode, ran.stdout) == (0, "here  done\n")
    assert ran.stderr == "note: no log file is written: its directory is not writable\n"


def test_what_stdout_cannot_hold_is_no_crash(clusterctl: Run, inventory: Path) -> None:
    words = ("exec", "-i", str(inventory), "--limit", "here", "echo", "héllo")
    ran = clusterctl(*words, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (ran.returncode, ran.stdout) == (0, "here  h?llo\n")


def test_check_names_packages_that_are_not_there(clusterctl: Run, inventory: Path) -> None:
    inventory.write_text(inventory.read_text() + "packages: {offline: nowhere}\n")

    ran = clusterctl("-i", str(inventory), "check", "--limit", "here")

    assert f"the packages at {inventory.parent / 'nowhere'} cannot be read" in ran.stderr
    assert "clusterctl packages bundle --for" in ran.stderr
    assert ran.returncode == 5


@pytest.mark.parametrize("option", ["--requests", "--tokens"])
def test_a_key_without_the_limit_that_was_meant_is_not_made(
    clusterctl: Run, inventory: Path, option: str
) -> None:
    ran = clusterctl("-i", str(inventory), "key", "create", "alice", option, "")
    assert ran.returncode == 2
    assert "is not a limit" in ran.stderr
