"""The places that pages of docs lead through, made of hosts of the lab.

`python -m tests.lab.sites` makes the one of docs/from-a-laptop.md, and keeps it until Enter, for
someone to follow the page.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clusterctl.lab import lifecycle
from clusterctl.lab.hosts import host_by_name
from clusterctl.lab.layout import CONTROL
from clusterctl.lab.paths import LabPaths, lab_paths
from tests.fakes.hubs import FakeHubs, running_hubs

CONTROLLER = str(CONTROL.controller)
LOGIN = "useradd -m -s /bin/bash {user} && install -d -m 700 -o {user} -g {user} ~{user}/.ssh"
TAKES_FILES = "tar x -C ~{user} && chown -R {user}: ~{user}"
OPERATORS_PROGRAMS = (
    "apt-get update -qq && DEBIAN_FRONTEND=noninteractive "
    "apt-get install -y -qq --no-install-recommends python3-venv curl >/dev/null"
)
# The way in of the test itself; what the page's own commands use is made by the page.
MAY_ENTER = "install -m 600 -o {user} -g {user} ~root/.ssh/authorized_keys ~{user}/.ssh/"


def login(lab: LabPaths, host: str, user: str, *options: str) -> tuple[str, ...]:
    """The command of a login by the lab's own key, over the network that is not the operator's."""
    return (
        "ssh", *options, "-i", str(lab.identity), "-o", f"UserKnownHostsFile={lab.known_hosts}",
        "-o", f"HostKeyAlias={host}", "-o", "LogLevel=ERROR",
        f"{user}@{host_by_name(host).nics[1].address.ip}",
    )  # fmt: skip


class Site:
    """Hosts that were prepared by root, and what reaches them."""

    def __init__(self, lab: LabPaths) -> None:
        self.lab = lab

    def root(self, host: str, script: str, stdin: bytes = b"") -> None:
        """Run a script on a host as root."""
        argv = (*login(self.lab, host, "root"), f"set -e\n{script}")
        ran = subprocess.run(argv, input=stdin, capture_output=True)
        assert ran.returncode == 0, f"{host}: {script}\n{ran.stderr.decode()}"

    def names(self, host: str, **known: str) -> None:
        """Have the host know addresses by name; `_` stands for a dot."""
        lines = (f"{ip} {name.replace('_', '.')}\n" for name, ip in known.items())
        self.root(host, "cat >>/etc/hosts", "".join(lines).encode())

    def give(self, host: str, user: str, *paths: Path) -> None:
        """Copy files and directories to a user's home directory."""
        argv = ["tar", "c"]
        for path in paths:
            argv += ["-C", str(path.parent), path.name]
        packed = subprocess.run(argv, check=True, capture_output=True).stdout
        self.root(host, TAKES_FILES.format(user=user), packed)


LAPTOP, BOXES = "gpu3", {"gpu1": "tower", "gpu2": "den"}
PASSWORD = "correct horse"
HOME_INTERNET = """\
export HF_ENDPOINT={hub} PIP_NO_INDEX=1 PIP_FIND_LINKS=~/wheels
"""


@contextmanager
def at_home(lab: LabPaths) -> Iterator[Site]:
    """docs/from-a-laptop.md: two machines that know a user's password, and a laptop. What a home
    has by its internet access, the laptop gets by variables and a file: the hub, and the image."""
    lifecycle.down(say=lambda _: None)
    try:
        lifecycle.up(3, say=lambda _: None)
        site = Site(lab)
        for host in (*BOXES, LAPTOP):
            site.root(host, LOGIN.format(user="ann"))
            site.root(host, "adduser --quiet ann sudo; chpasswd", f"ann:{PASSWORD}\n".encode())
        site.names(LAPTOP, **{name: host_by_name(host).address for host, name in BOXES.items()})
        site.root(LAPTOP, OPERATORS_PROGRAMS)
        site.root(LAPTOP, MAY_ENTER.format(user="ann"))
        tiny = lab.host("gpu1") / "root/data/models/tiny"
        hubs = FakeHubs(
            {"Qwen/Qwen3-8B": {file.name: file.read_bytes() for file in tiny.iterdir()}}
        )
        shutil.copyfile(lab.image_archive, lab.host(LAPTOP) / "root/home/ann/image.tar")
        with running_hubs(hubs, CONTROLLER):
            site.root(LAPTOP, "cat >~ann/.bashrc", HOME_INTERNET.format(hub=hubs.endpoint).encode())
            yield site
    finally:
        lifecycle.down(say=lambda _: None)


if __name__ == "__main__":
    with at_home(lab_paths()):
        sys.stdout.write(f"{shlex.join(login(lab_paths(), LAPTOP, 'ann', '-t'))}\n")
        sys.stdout.flush()
        input("Enter takes it down ")
