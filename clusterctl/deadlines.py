"""All timeouts of what runs on the operator's machine, in seconds, with the reason for each. What
runs on hosts and in containers has its own table, in `node/timing.py`; programs that are sent to a
host alone (the relay, the test of pairs of hosts) have theirs next to them.

A timeout is not an estimate. It is several times what the slowest supported machine needs: two
cores under a load of six take ten times as long as an idle machine. Where a longer wait only
delays bad news, a message says what is being waited for. The error of a timeout says what was
waited for, for how long, and what was seen last.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Wait:
    """Clock, sleep and progress output used while waiting; tests replace them."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    say: Callable[[str], None] = lambda _: None


def wait_until(
    look: Callable[[], T | None], timeout: float, *, every: float, wait: Wait | None = None
) -> T | None:
    """Call `look` every `every` seconds and return its first result that is not None; return None
    once `timeout` seconds have passed. The last look is made at the deadline or after it."""
    wait = wait or Wait()
    deadline = wait.clock() + timeout
    while (found := look()) is None and wait.clock() < deadline:
        wait.sleep(every)
    return found


# Connections to hosts

# To connect to a host, including retries; the inventory's `ssh.connect_timeout` overrides it. A
# host that is up answers within a round trip, its sshd as soon as it is scheduled.
CONNECT = 10.0

# The same for `status`, which must not wait long for dead hosts: 5 s in all.
STATUS_CONNECT = 3.0

SECOND_LOOK = 2.0  # Until `status` looks again for a container that a live supervisor says runs
STATUS_LOOK = 4.0  # For `status` to query one host that accepts connections

# Factor for the time limit of a jump host's connection, since other hosts wait for it too.
GATEWAY = 10

# Default for a command on a host: reading and writing small files.
COMMAND = 60.0

# For one step of a run on a host whose connection breaks again and again: it looks at the host and
# goes on from what is there.
THROUGH_BREAKS = 900.0

SMALL_FILE = 20.0  # For a command that reads or removes a small file, or lists sockets

# For a login shell and sudo, before the command itself starts. Slow start-up files are common
# (3.2 s with one version manager in ~/.bashrc), and sudo may ask a directory service.
COMMAND_START = 30.0

# From the end of a command's output to its exit: the process only has to be reaped.
COMMAND_END = 5.0

TURN = 60.0  # For one of a host's channels to become free; the same as COMMAND

SSH_CONFIG = 10.0  # For `ssh -G`, which may run commands of `Match exec`

SESSION = 30.0  # For sshd to open a session: it forks, and PAM may ask a directory service

FORWARD = 10.0  # For a TCP connection from this machine, if it is itself a host

# For the answer to a keepalive on an idle connection; without one the connection is dead. After a
# short network outage TCP retransmits what was lost.
PULSE = 20.0

# For the gateway to follow a changed file of keys, which it does within a second.
KEY_IN_EFFECT = 10.0

# For the gateway to pass requests on to replicas that were just proven: it follows within a second,
# asks those on other hosts itself, and tries a port that is taken every 30 s.
GATEWAY_UP = 60.0

# At least this long for the gateway to read the members' file, to send a draining replica no new
# requests, and to report it, which it does within 2 s.
GATEWAY_NOTICE = 15.0

LOCK = 30.0  # For the head to take or release the cluster's lock: a shell and one file

# Facts of hosts

# For all facts of a host in one round trip: 0.2 to 0.7 s on two cores under a load of 9, and
# FACTS_COMMAND more for each engine or GPU driver that hangs.
FACTS = 30.0

# For one of the commands in it, in whole seconds: a hanging docker or nvidia-smi costs no more.
FACTS_COMMAND = 5

# What runs on hosts: Ray, the fabric gate, services

# Age at which a supervisor's report is too old to be used; one is written every 3 s.
STALE = 15.0

# For all nodes to join Ray: 12 to 30 s on two slow cores, 35 s on two under a load of 13, and the
# image's first start may read gigabytes from a slow disk.
FORMATION = 180.0

# In addition to the limit of the fabric gate's own program, which ends itself and says whom it
# waited for: this one is for an engine or a host that hangs.
GATE_SLACK = 30.0

# For a host to test its connections to the others: 32 of them take 4.4 s if a firewall drops all.
PAIRS = 60.0

# For the program that tests them to start listening, and to report its clock.
PAIR = 20.0

# To look for a model on a host: directory entries and one small file each, no weights.
MODEL_LOOK = 30.0

# For the image's own vLLM to make a plan: importing it took 10 to 40 s on two cores.
ASK_VLLM = 300.0

NOTICE = 30.0  # For the supervisor to notice a new document; it checks five times a second

# For a service to wait for the Ray contract before that is reported as a failure: after a restart
# Ray is back within a minute.
WAIT_FOR_RAY = 120.0

# The same in a container that was just made, where others serve meanwhile: on a busy machine Ray's
# first start may hang, which its supervisor ends after 180 s, and tries again.
RAY_IN_NEW_CONTAINER = 300.0

# From a service's start to its first answer. vLLM's own limit (VLLM_ENGINE_READY_TIMEOUT_S), 600,
# is too short for large weights on slow disks, and is raised to this value.
READY = 1800.0

# For which the head may be unreachable before this run stops watching it: enough for a short
# network outage, or for a host that is busy reading weights.
OUT_OF_SIGHT = 60.0

# For the head to report the ranks of a service that is ready; it asks Ray each second, which
# takes some seconds to answer while vLLM's start uses the cores.
RANKS = 60.0

# For a replica to load its adapters, one after the other, or to say why it cannot
ADAPTERS = 300.0

API_CONNECT = 5.0  # To open the TCP connection to a service's API

# For the request that proves a service: the first one may still compile kernels.
FIRST_ANSWER = 120.0

# For one answer of a batch: up to 256 requests share the GPUs, and each may generate a long text.
BATCH_ANSWER = 1800.0

# For which a service may answer nothing while a batch is sent: a restart that loads large weights.
BATCH_PATIENCE = 900.0

BATCH_PAUSE = 15.0  # The longest pause before a request of a batch is sent again

SHUTDOWN = 60  # For running requests when a service stops; vLLM's own default, 0, aborts them

STOP_SLACK = 30.0  # In addition to a service's shutdown time, until a stop counts as failed

LOGS_STATUS = 5.0  # From the end of a log's output to the exit status of the command that read it
LOG_TAILS = 60.0  # To read the ends of a host's logs, some MB, over a slow link

# Engines, images and packages

# For a request to the container engine. Inspect and list take milliseconds on one that works;
# removing a container that has written much takes longest.
ENGINE = 30.0

ENGINE_STOCK = 60.0  # For the engine to list all its images: a second for a hundred of them

# To look for an engine and how it provides GPUs: several commands, one of which may hang.
ENGINE_LOOK = 90.0

# From the start of the engine's service to its first answer; on a slow host, installation and
# start together took 15 s.
ENGINE_START = 60.0

# For systemd to start, restart or stop the engine; its own limit for a service is 90 s.
SYSTEMD = 120.0

# To remove an image: tens of GiB in many small files, on a busy disk.
IMAGE_REMOVAL = 900.0

# For an engine to ask a registry for the digest of a tag. Without internet, names time out.
REGISTRY_LOOK = 10.0

# Without output of a pull. Without a terminal the client prints a line only when a layer begins or
# ends, and a 10 GB layer takes 800 s at 100 Mbit/s.
PULL_SILENCE = 900.0

# Without output of a build. Committing a layer of several GB prints nothing for minutes.
BUILD_SILENCE = 900.0

# Without a byte or a line of a pull from a relay: unpacking a large layer prints nothing for
# minutes.
RELAYED_PULL_SILENCE = 900.0

# From the last byte of a stream to the exit of the command that reads it: it syncs and closes.
STREAM_END = 60.0

# For `check` to ask a registry what a tag is: one request, beside the rest; without an answer by
# then, nothing is said.
TAG_LOOK = 5.0

CONTAINER_ONCE = 120.0  # For a small program in a separate container, whose root already exists

# For the first container of an image, whose root is created then: mostly disk time.
FIRST_CONTAINER = 300.0

# To inspect an image that differs between hosts: only the wording of `check` depends on it.
RELEASES_LOOK = 15.0

# For nvidia-smi. Without persistence mode it initializes every GPU first, in a second or more.
GPUS_LISTED = 20.0

# For commands that load the driver or describe all GPUs: without persistence mode each one is
# initialized again.
GPUS_SET_UP = 120.0

# For PyTorch to see all GPUs: it is read from a disk that was just written 20 GB, and every GPU is
# initialized.
GPUS_IN_IMAGE = 180.0

DRIVER_BUILD = 1800.0  # For the driver's installer: the kernel module is compiled on the host

# For another apt-get, dpkg or dnf, such as an unattended upgrade, to finish.
PACKAGE_LOCK = 120.0

LOCAL_COMMAND = 120.0  # For a query of this machine's package manager

# To update package lists: tens of MB over a slow link, with several mirrors tried.
PACKAGE_INDEX = 300.0

PACKAGE_PLAN = 120.0  # For apt-get to list what it would install: it reads its package lists

PACKAGE_INSTALLATION = 1800.0  # For an installation, including the download

# For a removal, and to finish interrupted work of dpkg: triggers rebuild the initial RAM disk.
PACKAGE_REMOVAL = 600.0

PACKAGE_FILES = 300.0  # To compare, unpack or remove hundreds of MB of files on a host

PACKAGES_DOWNLOAD = 3600.0  # To download a few hundred MB of packages to this machine

# To download the package lists of another distribution to this machine, all of them.
PACKAGES_INDEX_HERE = 600.0

KEY_DOWNLOAD = 30.0  # To download a vendor's key of a few KiB to this machine

KEY_ON_HOST = 90.0  # The same on a host, which may try several tools

# Transfers of models and images

WEB = 30.0  # For a connection to a hub, and for the next bytes of a response

LISTING = 120.0  # For one request of a host to a hub's API, including its own timeouts

HUB_LOOK = 10.0  # For a host to answer whether it reaches a hub; one that is silent does not

LOGIN_HELPER = 30  # For a registry's credential helper; some unlock a key ring

RELAY_START = 30.0  # For a host's Python to start and report where the relay listens

# For a fetch in addition to the time for its bytes: the hosts before it may be slow to start.
FETCH_START = 600.0

MODELS_LOOK = 60.0  # To list all models of a host: directory entries and manifests, no weights

HELD_LOOK = 30.0  # To list one model of a host and the known hashes of its files

HELD_KEEP = 30.0  # To store these hashes

HASHING_SILENCE = 120.0  # Without progress in hashing, after which the host's disk counts as hung

PLACING = 60.0  # For a script that places a model, in addition to the time for its bytes

# The lab, on a machine that may be slow and busy

LAB_COMMAND = 60.0  # For ip, mount, the start of systemd-nspawn and the like

LAB_BUILD = 1800.0  # For commands that download, compile, or wait for a disk

LAB_INDEX = 300.0  # For apt-ftparchive to hash some hundred MB of packages

LAB_PACKAGE_SERVER = 60.0  # For Python's web server to start or end

LAB_POWER = 20.0  # For systemd-nspawn to have started a host's first process

LAB_SSH = 90.0  # For a host's sshd to answer: 3 to 10 s on two slow cores

LAB_GREETING = 1.0  # For sshd's first line, in each of many attempts

LAB_LIGHT_SSH = 90.0  # The same for light hosts, of which a hundred start at once

# For all processes of a host to end; one that waits for a slow disk ends only after that.
LAB_KILL = 120.0

# For the lab's lock: a child process of a killed run may still hold it for a moment.
LAB_LOCK = 2.0
