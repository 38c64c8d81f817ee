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

CONNECT = 10.0
"""To reach a host, retries included; `ssh.connect_timeout` of the inventory overrides it. A host
that is there answers within a round trip; sshd on a loaded one within two seconds."""

STATUS_CONNECT = 3.0
"""The same for `status`, whose answer must not wait for hosts that are dead: 5 s in all."""

STATUS_LOOK = 4.0
"""For one look of `status` at a host that has answered; it takes half a second on a quiet one."""

GATEWAY = 10
"""Times its own limit that the connection through a gateway may take: others wait for it too."""

COMMAND = 60.0
"""For a command on a host whose caller says nothing else: reading and writing small files."""

COMMAND_START = 30.0
"""For a login shell and sudo, before the command itself starts. Slow start-up files are common
(3.2 s with one version manager in ~/.bashrc), and sudo may ask a directory service."""

COMMAND_END = 5.0
"""From the end of a command's output to its own: the process only has to be reaped."""

TURN = 60.0
"""For one of a host's channels to become free; as long as what holds it may take."""

SESSION = 30.0
"""For sshd to open a session: it forks, and PAM may ask a directory service."""

FORWARD = 10.0
"""For a TCP connection from this machine, where it is itself a host."""

PULSE = 20.0
"""For an answer to a sign of life on an idle connection; without one the connection is dead. A
network that blinks is back within some seconds, and TCP repeats what was lost by then."""

LOCK = 30.0
"""For the head to take or free the cluster's lock: a shell, and one file."""

# What runs on hosts: Ray, the fabric gate, services

STALE = 15.0
"""Age of a supervisor's report from which on it says nothing any more; one is written every 3 s."""

FORMATION = 180.0
"""For all nodes to join Ray: 12 to 30 s on two slow cores, 35 s on two under a load of 13, and the
image's first start may read gigabytes from a slow disk."""

GATE_SLACK = 30.0
"""Beyond the limit of the fabric gate's own program, which ends itself and says whom it waited for:
this is for an engine or a host that hangs."""

PAIRS = 60.0
"""For a host to try its ways to the others: where a firewall drops all, 32 connections cost
4.4 s."""

MODEL_LOOK = 30.0
"""To look for a model on a host: directory entries and one small file of each, no weights."""

ASK_VLLM = 300.0
"""For the image's own vLLM to say what it would do: importing it took 10 to 40 s on two cores."""

NOTICE = 30.0
"""For the supervisor to take notice of a new document; it looks five times a second."""

WAIT_FOR_RAY = 120.0
"""That a service may wait for the Ray contract, before that is a failure worth reporting: Ray that
was restarted is back after 20 to 60 s."""

READY = 1800.0
"""From a service's start to its first answer. vLLM's own limit (VLLM_ENGINE_READY_TIMEOUT_S), 600,
is too short for large weights from slow disks, and is raised to the same."""

OUT_OF_SIGHT = 60.0
"""That looks at the head may fail on the way before watching is given up: enough for a network that
blinks, or a host under the load of weights being read."""

RANKS = 60.0
"""For the head to report the ranks of a service that is ready; it asks Ray each second, which takes
some seconds to answer where vLLM's start still has the cores."""

API_CONNECT = 5.0
"""To open the TCP connection to a service's API."""

FIRST_ANSWER = 120.0
"""For the request that proves a service: the first one may still compile something."""

SHUTDOWN = 60
"""That running requests get when a service stops; vLLM's own default, 0, aborts them."""

STOP_SLACK = 30.0
"""Beyond a service's own shutdown time, until a stop counts as failed."""

LOGS_STATUS = 5.0
"""From the end of a log's output to the exit status of what read it."""
