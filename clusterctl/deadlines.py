"""How long is waited for what, in seconds, and why so long: one table, for all that runs on the
operator's machine. What runs on hosts and in containers has its own, in `node/timing.py`, and the
programs that a host gets alone (the relay, the proof between hosts) theirs beside them.

A deadline is no estimate. It is what the slowest machine in use needs, a few times over: two cores
under a load of six take ten times as long for what a quiet machine does in a moment. Where waiting
longer only delays bad news, it is told what is waited for meanwhile. Whoever lets one expire says
what was waited for, for how long, and what was seen last.
"""

from __future__ import annotations

# Ways to hosts

# To reach a host, retries included; `ssh.connect_timeout` of the inventory overrides it. A host
# that is there answers within a round trip, its sshd once it has the processor.
CONNECT = 10.0

# The same for `status`, whose answer must not wait for hosts that are dead: 5 s in all.
STATUS_CONNECT = 3.0

STATUS_LOOK = 4.0  # For one look of `status` at a host that takes connections

# Times its own limit that the connection through a gateway may take: others wait for it too.
GATEWAY = 10

# For a command on a host whose caller says nothing else: reading and writing small files.
COMMAND = 60.0

SMALL_FILE = 20.0  # For a command that reads or removes one small file, or lists sockets

# For a login shell and sudo, before the command itself starts. Slow start-up files are common
# (3.2 s with one version manager in ~/.bashrc), and sudo may ask a directory service.
COMMAND_START = 30.0

# From the end of a command's output to its own: the process only has to be reaped.
COMMAND_END = 5.0

TURN = 60.0  # For one of a host's channels to become free; as long as what holds it may take

SESSION = 30.0  # For sshd to open a session: it forks, and PAM may ask a directory service

FORWARD = 10.0  # For a TCP connection from this machine, where it is itself a host

# For an answer to a sign of life on an idle connection; without one the connection is dead. A
# network that blinks is back within some seconds, and TCP repeats what was lost by then.
PULSE = 20.0

LOCK = 30.0  # For the head to take or free the cluster's lock: a shell, and one file

# Facts of hosts

# For all facts of a host in one round trip: 0.2 to 0.7 s on two cores under a load of 9, and
# FACTS_COMMAND for each engine or GPU driver that hangs.
FACTS = 30.0

# Whole seconds for one command among them: docker or nvidia-smi that hangs costs that and no more.
FACTS_COMMAND = 5

# What runs on hosts: Ray, the fabric gate, services

# Age of a supervisor's report from which on it says nothing any more; one is written every 3 s.
STALE = 15.0

# For all nodes to join Ray: 12 to 30 s on two slow cores, 35 s on two under a load of 13, and the
# image's first start may read gigabytes from a slow disk.
FORMATION = 180.0

# Beyond the limit of the fabric gate's own program, which ends itself and says whom it waited
# for: this is for an engine or a host that hangs.
GATE_SLACK = 30.0

# For a host to try its ways to the others: where a firewall drops all, 32 connections cost 4.4 s.
PAIRS = 60.0

# For the program that tries them to start listening, and to tell its clock.
PAIR = 20.0

# To look for a model on a host: directory entries and one small file of each, no weights.
MODEL_LOOK = 30.0

# For the image's own vLLM to say what it would do: importing it took 10 to 40 s on two cores.
ASK_VLLM = 300.0

NOTICE = 30.0  # For the supervisor to take notice of a new document; it looks five times a second

# That a service may wait for the Ray contract, before that is a failure worth reporting: Ray that
# was restarted is back within a minute.
WAIT_FOR_RAY = 120.0

# From a service's start to its first answer. vLLM's own limit (VLLM_ENGINE_READY_TIMEOUT_S), 600,
# is too short for large weights from slow disks, and is raised to the same.
READY = 1800.0

# That looks at the head may fail on the way before watching is given up: enough for a network
# that blinks, or a host under the load of weights being read.
OUT_OF_SIGHT = 60.0

# For the head to report the ranks of a service that is ready; it asks Ray each second, which
# takes some seconds to answer where vLLM's start still has the cores.
RANKS = 60.0

API_CONNECT = 5.0  # To open the TCP connection to a service's API

# For the request that proves a service: the first one may still compile something.
FIRST_ANSWER = 120.0

SHUTDOWN = 60  # That running requests get when a service stops; vLLM's own default, 0, aborts them

STOP_SLACK = 30.0  # Beyond a service's own shutdown time, until a stop counts as failed

LOGS_STATUS = 5.0  # From the end of a log's output to the exit status of what read it

# Engines, images and packages

# For an answer of the container engine. Inspect and list take milliseconds on one that works;
# removing a container with much written to it takes the longest.
ENGINE = 30.0

ENGINE_STOCK = 60.0  # For the engine to tell all its images: one with a hundred takes a second

# To look for an engine, and how it gives GPUs: several questions, one of which may hang.
ENGINE_LOOK = 90.0

# From the start of the engine's service to its first answer; 15 s were measured for installation
# and start together on a slow host.
ENGINE_START = 60.0

# For systemd to start, restart or stop the engine; its own limit for a service is 90.
SYSTEMD = 120.0

# For the removal of an image: tens of GiB in many small files, on a disk that is busy.
IMAGE_REMOVAL = 900.0

# Without a line of a pull. Without a terminal the client says one only when a layer begins or
# ends, and a 10 GB layer takes 800 s at 100 Mbit/s.
PULL_SILENCE = 900.0

# Without a line of a build. A commit of a multi-GB layer says nothing for minutes.
BUILD_SILENCE = 900.0

# Without a byte or a word of a pull from a relay: a large layer is unpacked in silence for
# minutes.
RELAYED_PULL_SILENCE = 900.0

# From the last byte of a stream to the end of the command that takes it: it syncs and closes.
STREAM_END = 60.0

CONTAINER_ONCE = 120.0  # For a small program in a container of its own, its root made by then

# For the first container of an image, whose root is made then: most of it is disk.
FIRST_CONTAINER = 300.0

# To look into an image that two hosts have otherwise: only the words of `check` depend on it.
RELEASES_LOOK = 15.0

# For nvidia-smi. Without persistence mode it sets up every GPU first, in a second or more.
GPUS_LISTED = 20.0

# For what loads the driver or describes all GPUs: without persistence each is set up anew.
GPUS_SET_UP = 120.0

# For PyTorch to see all GPUs: it is read from a disk that just got 20 GB, and every GPU is set
# up.
GPUS_IN_IMAGE = 180.0

DRIVER_BUILD = 1800.0  # For the driver's installer: the kernel module is compiled on the host

# For another apt-get, dpkg or dnf, such as an unattended upgrade, to come to its end.
PACKAGE_LOCK = 120.0

LOCAL_COMMAND = 120.0  # For this machine's package manager to say what it knows

# For the lists of package sources: tens of MB over a slow line, several mirrors tried.
PACKAGE_INDEX = 300.0

PACKAGE_PLAN = 120.0  # For apt-get to say what it would install: it reads its lists

PACKAGE_INSTALLATION = 1800.0  # For an installation, download and all

# For a removal, and for what dpkg left half done: triggers rebuild the initial RAM disk.
PACKAGE_REMOVAL = 600.0

PACKAGE_FILES = 300.0  # To compare, unpack or remove hundreds of MB of files on a host

PACKAGES_DOWNLOAD = 3600.0  # For what downloads a few hundred MB of packages to this machine

# For the lists of package sources, to this machine: those of another distribution, all anew.
PACKAGES_INDEX_HERE = 600.0

KEY_DOWNLOAD = 30.0  # For a vendor's key of a few KiB, to this machine

KEY_ON_HOST = 90.0  # The same to a host, which may try several ways

# Models and images on their way

WEB = 30.0  # For a connection to a hub, and for the next bytes of an answer

LISTING = 120.0  # For one answer of a hub's API that a host asks, its own limits included

LOGIN_HELPER = 30  # For a registry's credential helper; some unlock a key ring

RELAY_START = 30.0  # For a host's Python to come up and say where the relay listens

# For a fetch beside what its bytes need: the hosts before it may be slow to start.
FETCH_START = 600.0

MODELS_LOOK = 60.0  # To list all models of a host: directory entries and manifests, no weights

HELD_LOOK = 30.0  # To list one model of a host and what is known of its bytes

HELD_KEEP = 30.0  # To write that down; the hashing of the rest is only begun

HASHING_SILENCE = 120.0  # Without a further byte hashed, after which the host's disk counts as hung

PLACING = 60.0  # For a script that places a model, on top of what its bytes need

# The lab, on a machine that may be slow and full of other work

LAB_COMMAND = 60.0  # For ip, mount, systemd-nspawn's own start and the like

LAB_BUILD = 1800.0  # For what downloads, compiles, or waits for a disk

LAB_INDEX = 300.0  # For apt-ftparchive to hash some hundred MB of packages

LAB_PACKAGE_SERVER = 60.0  # For Python's web server to start or end

LAB_POWER = 20.0  # For systemd-nspawn to have started a host's first process

LAB_SSH = 90.0  # For a host's sshd to answer: 3 to 10 s on two slow cores

LAB_GREETING = 1.0  # For sshd's first line, asked for again and again

LAB_LIGHT_SSH = 90.0  # The same for light hosts, a hundred of which start at once

# For all processes of a host to be gone; one that waits for a slow disk ends only after it.
LAB_KILL = 120.0

# For the lab's lock: a child that a killed run was just starting holds it for a moment.
LAB_LOCK = 2.0
