"""Root inside the node containers tries all it can, while commands run on their hosts: nothing
outside changes, and every command ends in time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes.image_archives import MadeImage, layer_tar
from tests.lab.cluster import Operator, Ran
from tests.lab.conftest import OnHost

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.timeout(1800, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

HOSTS = ("gpu1", "gpu2")
ATTACKER = Path(__file__).with_name("attacker.py").read_text()

PLACES = ("/run/clusterctl/lab", "/var/log/clusterctl/lab", "/var/lib/clusterctl/caches/lab")
CANARY = "mkdir -p /root; umask 077; echo untouched >/root/canary"
# Of every file that no command and no container has a reason to change: name, mode, owner, size,
# time of change of its content.
PICTURE = (
    "find /etc /root /home /usr /opt /boot -xdev"
    " \\( -path /etc/clusterctl -o -path /root/.ssh -o -path /opt/clusterctl"
    " -o -name __pycache__ \\) -prune -o -type f -printf '%p %m %U %s %T@\\n' | sort"
)
SERVE = ("serve", "/data/models/tiny", "--tp", "2", "--name", "tiny", "--yes")


def inside(on_host: OnHost, host: str, *words: str, detached: bool = False) -> str:
    """Run the attacker in the node container of `host`; return what it prints."""
    command = f"docker exec -i clusterctl-lab python3 - {' '.join(words)}"
    if detached:
        on_host(host, "cat >/tmp/attacker.py", stdin=ATTACKER)
        start = f"setsid {command} </tmp/attacker.py >/dev/null 2>&1 &"
        return on_host(host, start).stdout
    done = on_host(host, command, stdin=ATTACKER)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def plague(on_host: OnHost, what: str) -> Iterator[None]:
    for host in HOSTS:
        inside(on_host, host, "plague", "900", what, detached=True)
    try:
        yield
    finally:
        for host in HOSTS:
            on_host(host, "pkill -f '[p]ython3 - plague'; rm -f /tmp/attacker.py")


def ended(ran: Ran, limit: float) -> Ran:
    """Check how a command ended, whatever it found: in time, by no bug, with nothing of the
    host's in its output."""
    assert ran.seconds < limit, ran.text
    assert ran.status not in (1, 130, -9), ran.text
    assert "Traceback" not in ran.text
    assert "root:" not in ran.text, "a file of the host's came out by a link"
    assert "\x1b[2J" not in ran.text
    return ran


@pytest.fixture(scope="module")
def pictures(used_hosts: str, operator: Operator, on_host: OnHost) -> dict[str, str]:
    """Each host after bootstrap, before any attack."""
    for host in HOSTS:
        assert on_host(host, CANARY).returncode == 0
    operator.ok("bootstrap", used_hosts, "--yes", timeout=900)
    return {host: on_host(host, PICTURE).stdout for host in HOSTS}


def assert_unchanged(on_host: OnHost, pictures: dict[str, str]) -> None:
    for host in HOSTS:
        now = on_host(host, PICTURE).stdout.splitlines()
        before = pictures[host].splitlines()
        assert set(now) ^ set(before) == set(), host
        for path in ("/root/new", "/root/owned", "/etc/cron.d/attack"):
            assert on_host(host, f"ls -d {path}").stdout == ""


def test_what_the_container_may_not_do_at_all(pictures: dict[str, str], on_host: OnHost) -> None:
    assert pictures
    for host in HOSTS:
        said = json.loads(inside(on_host, host, "once"))
        gateway = host == "gpu1"
        # Of what clusterctl keeps; the head's GCS has Ray's tables
        assert said.pop("seen") == ["caches", *(["tables"] if gateway else [])]
        # CAP_DAC_OVERRIDE is bit 1; KILL, SETGID and SETUID are 5 to 7, for the HAProxy of the
        # head, which becomes nobody.
        assert int(said.pop("capabilities"), 16) == (1 << 1) + (gateway and 0b111 << 5)
        assert gateway or said["another user"] != "done"
        said.pop("another user")
        assert said.pop("new privileges") == "1"
        assert [what for what, how in said.items() if how == "done"] == [], said
        limit = on_host(host, "docker inspect -f '{{.HostConfig.PidsLimit}}' clusterctl-lab")
        assert limit.stdout.strip() == "32768"


def test_commands_while_the_container_spoils_what_it_may_write(
    pictures: dict[str, str], used_hosts: str, operator: Operator, on_host: OnHost, tmp_path: Path
) -> None:
    archive, name = tmp_path / "image.tar", "lab/attacked:1"
    archive.write_bytes(MadeImage(name, (layer_tar("file", 200_000),)).legacy())
    with plague(on_host, "beside"):
        operator.ok(*SERVE, timeout=900)
        ended(operator.run("bootstrap", used_hosts, "--yes"), 300)
        pushed = ended(operator.run("image", "push", name, "--from", str(archive)), 120)
        assert pushed.status == 0, pushed.text
        assert operator.run("status").status == 0
        ended(operator.run("logs", "evil"), 30)
        assert "vllm" in operator.ok("logs", "tiny", "--lines", "1000").stdout.lower()
    assert_unchanged(on_host, pictures)


def test_commands_while_the_container_forges_all_that_it_reports(
    pictures: dict[str, str], used_hosts: str, operator: Operator, on_host: OnHost
) -> None:
    with plague(on_host, "all"):
        for _ in range(3):
            ended(operator.run("status"), 60)
            ended(operator.run("plan", used_hosts), 60)
            for words in ((), ("ray",), ("tiny",), ("evil",)):
                ended(operator.run("logs", *words), 30)
        ended(operator.run("check", used_hosts), 120)
        ended(operator.run("bootstrap", used_hosts, "--yes"), 600)
        ended(operator.run(*SERVE), 600)
        ended(operator.run("stop", "tiny"), 300)
    assert_unchanged(on_host, pictures)


def test_nothing_that_a_container_names_is_restored_moved_or_listed(
    pictures: dict[str, str], used_hosts: str, operator: Operator, on_host: OnHost
) -> None:
    """Its reports name services, replicas and keys as deleted documents, and files of the host."""
    listed = "ls /etc/clusterctl/lab/services /etc/clusterctl/lab/members /etc/clusterctl/lab"
    before = {host: on_host(host, listed).stdout for host in HOSTS}
    with plague(on_host, "all"):
        ended(operator.run("bootstrap", used_hosts, "--yes"), 600)
        shown = [ended(operator.run("status"), 60)]
        drains = (("drain", "gpu2", "--dry-run"), ("drain", "gpu2", "--yes"), ("undrain", "gpu2"))
        shown += [ended(operator.run(*words), 300) for words in drains]
    for ran in shown:
        assert "tiny@9" not in ran.text
        assert "x;touch" not in ran.text
    operator.run("undrain", "gpu2")
    after = {host: on_host(host, listed).stdout for host in HOSTS}
    drained = "drained.json\n"
    assert {host: text.replace(drained, "") for host, text in after.items()} == {
        host: text.replace(drained, "") for host, text in before.items()
    }
    assert_unchanged(on_host, pictures)


def test_users_of_the_host_reach_nothing_of_it(pictures: dict[str, str], on_host: OnHost) -> None:
    """The container opened its directories to all, with programs that are set-user-ID to root."""
    assert pictures
    for host in HOSTS:
        inside(on_host, host, "once")
        programs = on_host(host, f"find {' '.join(PLACES)} -perm -4000").stdout.split()
        for place in PLACES:
            program = next(path for path in programs if path.startswith(place))
            assert on_host(host, f"{program} -u", user="ops").stdout.strip() != "0"
        for command in ("ls /var/log/clusterctl", "flock -n /run/clusterctl/lab.lock true"):
            tried = on_host(host, command, user="ops")
            assert "Permission denied" in tried.stderr, tried


def test_down_leaves_the_host_as_it_was(
    pictures: dict[str, str], used_hosts: str, operator: Operator, on_host: OnHost
) -> None:
    with plague(on_host, "all"):
        ended(operator.run("-i", used_hosts, "down", "--yes"), 300)
    operator.ok("-i", used_hosts, "down", "--yes", "--purge", timeout=600)
    for host in HOSTS:
        canary = on_host(host, "cat /root/canary; stat -c %a /root/canary").stdout
        assert canary == "untouched\n600\n"
        places = "/etc/clusterctl /var/log/clusterctl /var/lib/clusterctl /var/cache/clusterctl"
        assert on_host(host, f"ls -d {places}").stdout == ""
