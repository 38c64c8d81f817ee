"""Takes from Python what only Linux has, as an operator's Mac lacks it. Python runs this file when
its directory is on PYTHONPATH."""

import fcntl
import os
import resource
import select
import signal
import socket
import sys
import time

ABSENT = {
    os: "copy_file_range eventfd fdatasync getrandom getresgid getresuid getxattr listxattr "
    "memfd_create pidfd_open pipe2 posix_fadvise posix_fallocate removexattr sched_getaffinity "
    "sched_getparam sched_getscheduler sched_setaffinity sendfile setns setxattr splice unshare "
    "O_DIRECT O_LARGEFILE O_NOATIME O_PATH O_TMPFILE",
    socket: "AF_ALG AF_NETLINK AF_PACKET AF_VSOCK MSG_CMSG_CLOEXEC MSG_ERRQUEUE MSG_MORE "
    "SOCK_CLOEXEC SOCK_NONBLOCK SO_BINDTODEVICE SO_DOMAIN SO_MARK SO_PASSCRED SO_PEERCRED "
    "SO_PRIORITY SO_PROTOCOL TCP_CORK TCP_DEFER_ACCEPT TCP_INFO TCP_KEEPIDLE TCP_LINGER2 "
    "TCP_QUICKACK TCP_SYNCNT TCP_USER_TIMEOUT TCP_WINDOW_CLAMP",
    select: "epoll",
    signal: "SIGCLD SIGPOLL SIGPWR SIGRTMAX SIGRTMIN SIGSTKFLT pidfd_send_signal sigtimedwait "
    "sigwaitinfo",
    resource: "RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING "
    "RUSAGE_THREAD prlimit",
    fcntl: "F_ADD_SEALS F_GETPIPE_SZ F_GETSIG F_NOTIFY F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW "
    "F_SETPIPE_SZ F_SETSIG",
    time: "CLOCK_BOOTTIME CLOCK_TAI",
}

# Python's own modules that look at these when they are imported
import asyncio  # noqa: E402
import random  # noqa: E402
import selectors  # noqa: E402
import shutil  # noqa: E402
import subprocess  # noqa: E402

del asyncio, random, subprocess
selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc,assignment]
shutil._USE_CP_SENDFILE = False  # type: ignore[attr-defined]

for module, names in ABSENT.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)


def _without_proc(event: str, arguments: tuple[object, ...]) -> None:
    path = arguments[0] if event in ("open", "os.listdir", "os.scandir") else None
    if isinstance(path, str) and path.startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(2, "no such file on a Mac", path)


sys.addaudithook(_without_proc)
