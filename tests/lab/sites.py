"""The places that the walks of docs go through, made of hosts of the lab.

`python -m tests.lab.sites bastion` makes one, and keeps it until Enter, for someone to walk it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shlex
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2

from clusterctl.lab import lifecycle
from clusterctl.lab.hosts import host_by_name
from clusterctl.lab.layout import CONTROL
from clusterctl.lab.mirror import MIRROR_PORT
from clusterctl.lab.paths import LabPaths, lab_paths
from tests.fakes.docker_registry import Registry, docker_registry
from tests.fakes.http_proxy import FakeProxy, running_proxy
from tests.fakes.hubs import FakeHubs, running_hubs
from tests.fakes.private_ca import private_ca

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


def keygen(*words: str | Path) -> None:
    subprocess.run(("ssh-keygen", "-q", *map(str, words)), check=True)


def new_key(file: Path, comment: str) -> Path:
    """Make a key; the path of its public half."""
    keygen("-t", "ed25519", "-N", "", "-C", comment, "-f", file)
    return file.with_name(f"{file.name}.pub")


def push_archive(registry: Registry, archive: Path, name: str) -> None:
    """Push the image of a `docker save` to the registry as `name`, PATH:TAG."""
    path, tag = name.split(":")
    with tarfile.open(archive) as tar, httpx2.Client(
        base_url=f"https://{registry.address}/v2/{path}", verify=False, timeout=300
    ) as http:  # fmt: skip
        read = tar.extractfile
        (listed,) = json.load(read("manifest.json") or sys.stdin)

        def put(member: str, kind: str) -> dict[str, object]:
            size, digest = tar.getmember(member).size, hashlib.sha256()
            opened = read(member)
            assert opened is not None
            begun = http.post("/blobs/uploads/")
            url = httpx2.URL(begun.headers["Location"])
            while data := opened.read(64 << 20):
                digest.update(data)
                url = httpx2.URL(http.patch(url, content=data).headers["Location"])
            whole = f"sha256:{digest.hexdigest()}"
            http.put(url.copy_merge_params({"digest": whole})).raise_for_status()
            return {"mediaType": kind, "size": size, "digest": whole}

        oci = "application/vnd.oci.image"
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{oci}.manifest.v1+json",
            "config": put(listed["Config"], f"{oci}.config.v1+json"),
            "layers": [put(layer, f"{oci}.layer.v1.tar") for layer in listed["Layers"]],
        }
        http.put(
            f"/manifests/{tag}",
            content=json.dumps(manifest).encode(),
            headers={"Content-Type": str(manifest["mediaType"])},
        ).raise_for_status()


@contextmanager
def package_index(directory: Path, certificate: Path, address: str) -> Iterator[None]:
    """Serve `directory` by https at `address`, port 443."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(directory))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    with ThreadingHTTPServer((address, 443), handler) as server:
        server.daemon_threads = True
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


WORKSTATION, BASTION, HOSTS = "gpu4", "gpu3", ("gpu1", "gpu2")
MIRROR = "packages.example.net"  # Only the proxy knows it


@contextmanager
def behind_a_bastion(lab: LabPaths, home: Path) -> Iterator[tuple[Site, FakeProxy]]:
    """docs/behind-a-bastion.md: the hosts, the bastion, the workstation, and the company's servers,
    which are the lab's controller. `home` gets the files of the company's CAs."""
    lifecycle.down(say=lambda _: None)
    lifecycle.up(4, say=lambda _: None)
    site = Site(lab)
    ssh_ca = home / "ssh-ca"
    new_key(ssh_ca, "Example Corp SSH CA")
    trust = "TrustedUserCAKeys /etc/ssh/ca.pub\nHostCertificate /etc/ssh/{host}-cert.pub\n"
    users = {BASTION: "ann", **dict.fromkeys(HOSTS, "deploy")}
    named = {BASTION: "bastion", "gpu1": "gpu01", "gpu2": "gpu02"}
    for host, user in users.items():
        name = f"{named[host]}.corp.example"
        public = home / f"{host}.pub"
        shutil.copy(lab.host(host) / "keys/ssh_host_ed25519_key.pub", public)
        keygen("-s", ssh_ca, "-I", name, "-h", "-n", name, public)
        for file in (ssh_ca.with_name("ssh-ca.pub"), home / f"{host}-cert.pub"):
            target = "ca.pub" if file.name == "ssh-ca.pub" else file.name
            site.root(host, f"cat >/etc/ssh/{target}", file.read_bytes())
        site.root(
            host,
            f"{LOGIN.format(user=user)}\ncat >/etc/ssh/sshd_config.d/corp.conf\n"
            "systemctl restart ssh",
            trust.format(host=host).encode(),
        )
    company = dict.fromkeys(("registry", "pypi", "proxy"), CONTROLLER)
    addresses = {name: host_by_name(host).address for host, name in named.items()}
    for host in HOSTS:
        own = f"s/{host}/{named[host]}/g"
        site.root(host, f"hostnamectl set-hostname {named[host]} && sed -i {own} /etc/hosts")
        site.names(host, **{f"{name}_corp_example": ip for name, ip in company.items()})
        site.root(host, f"""\
            echo 'deploy ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/deploy
            sed -i 's,{CONTROLLER}:{MIRROR_PORT},{MIRROR},' /etc/apt/sources.list
            grep -q {MIRROR} /etc/apt/sources.list""")  # fmt: skip
        # From the bastion only: the workstation is in a network of its own.
        site.root(WORKSTATION, "".join(
            f"ip route add unreachable {nic.address.ip}\n" for nic in host_by_name(host).nics
        ))  # fmt: skip
        site.names(BASTION, **{f"{named[host]}_corp_example": addresses[named[host]]})

    site.root(WORKSTATION, OPERATORS_PROGRAMS)
    site.root(WORKSTATION, f"ip route add unreachable {CONTROLLER}; rm /etc/apt/sources.list")
    site.names(WORKSTATION, bastion_corp_example=addresses["bastion"])
    site.root(WORKSTATION, LOGIN.format(user="ann") + "\n" + MAY_ENTER.format(user="ann"))
    keys = home / ".ssh"
    keys.mkdir()
    keygen("-s", ssh_ca, "-I", "ann", "-n", "ann,deploy", new_key(keys / "id_ed25519", "ann"))
    corp = private_ca()
    (home / "corp-ca.pem").write_text(corp.pem)
    site.give(WORKSTATION, "ann", keys, home / "corp-ca.pem", home / "ssh-ca.pub")

    certificate = corp.issue(home / "tls", "registry.corp.example", "pypi.corp.example")
    (home / "registry").mkdir()
    with ExitStack() as servers:
        registry = servers.enter_context(
            docker_registry(home / "registry", certificate=certificate, ip=CONTROLLER, port=5000)
        )
        servers.enter_context(package_index(lab.mirror / "pip", certificate, CONTROLLER))
        proxy = servers.enter_context(
            running_proxy({MIRROR: MIRROR_PORT}, CONTROLLER, 3128)
        )  # fmt: skip
        push_archive(registry, lab.bare_archive, "vllm/vllm-openai:v0.33.0")
        yield site, proxy
    lifecycle.down(say=lambda _: None)


LAPTOP, BOXES = "gpu3", {"gpu1": "tower", "gpu2": "den"}
PASSWORD = "correct horse"
HOME_INTERNET = """\
export HF_ENDPOINT={hub} PIP_NO_INDEX=1 PIP_FIND_LINKS=~/wheels
"""


@contextmanager
def at_home(lab: LabPaths, home: Path) -> Iterator[Site]:
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


SITES = {"bastion": (behind_a_bastion, WORKSTATION, "ann"), "home": (at_home, LAPTOP, "ann")}

if __name__ == "__main__":
    make, host, user = SITES[sys.argv[1]]
    with tempfile.TemporaryDirectory() as made, make(lab_paths(), Path(made)):
        sys.stdout.write(f"{shlex.join(login(lab_paths(), host, user, '-t'))}\n")
        sys.stdout.flush()
        input("Enter takes it down ")
