"""Every duration that what runs in containers lives by, in seconds, in one place. What runs on the
operator's machine has its own table, `clusterctl/deadlines.py`, which says how long is long enough.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Tests shorten them; nothing else does."""

    tick: float = 0.2  # Pause between two rounds of the main loop
    state_every: float = 3.0  # state.json is written at least this often

    ray_backoff_first: float = 1.0
    ray_backoff_max: float = 30.0
    ray_steady: float = 60.0  # Up for this long, and the next failure counts as the first again
    ray_stop: float = 10.0  # From SIGTERM to SIGKILL
    # How long a worker holds a connection to its head's GCS before it tries another.
    head_poll: float = 1.0
    watch_interval: float = 1.0  # How often ray-watch asks the GCS: a few milliseconds of work
    worker_watch_interval: float = 3.0  # The same on a worker, which looks for itself alone
    watch_silence: float = 20.0  # Without a line for this long, ray-watch is started anew
    # How often Ray's own processes are counted; what is missing twice is gone.
    parts_every: float = 2.0
    # How long the GCS may know no living node of this host before Ray is started anew.
    unlisted_limit: float = 4.0
    # How long a GCS may be silent before the head starts Ray anew, which ends all that serves: on
    # an overloaded machine ray-watch is given up after 20 s, and takes 30 s to start again.
    gcs_silence: float = 90.0

    service_backoff_first: float = 2.0
    service_backoff_max: float = 120.0
    attempts_until_failed: int = 5
    # The longest that a service may take to stop, whatever its document says: Docker waits 90 s
    # for the whole container.
    stop_limit: float = 70.0
    snapshot_age: float = 10.0  # An older report of ray-watch proves nothing

    connect_every: float = 0.5  # How often a port that does not answer yet is tried
    http_timeout: float = 10.0
    answer_timeout: float = 120.0  # For the first answer, which may still compile something
    scrape_every: float = 5.0
    # An idle engine that showed no sign of life for this long is asked for one.
    canary_every: float = 15.0
    # With the two above: a service that owes a sign of life has failed to give one by 50 s after
    # the last, so that stall_timeout (ServiceDocument) holds for idle engines too.
    canary_timeout: float = 30.0
    silence_shown: float = 10.0  # From here on a missing sign of life is told: two looks saw none

    nics_every: float = 2.0  # How often the node's NICs are looked at: a few milliseconds
    # For vLLM to end by itself after one of its ranks did: its words say more than ours.
    rank_patience: float = 5.0

    gpus_every: float = 60.0
    gpus_timeout: float = 20.0


# After which the fabric gate ends, whatever hangs, and says what it waited for: more than its
# steps need one after the other on the slowest machines, less than all their limits together.
GATE = 600.0


@dataclass(frozen=True)
class GateTiming:
    """How long the fabric gate waits for each step. Tests shorten them."""

    # Ray's own start of a worker process takes 2 to 6 s on two busy cores, 8.5 s under a load of
    # 34.
    arrive: float = 60.0
    answer: float = 20.0  # For an agent to answer at all; a crossing takes 3 s at most
    # torch with CUDA is gigabytes, read from a cold disk the first time; without, 25 to 27 s on
    # two cores under a load of 34 to 64.
    importing: float = 180.0
    # The store opens in a moment, under any load; but torch asks for the name of its address
    # first, and name servers that never answer cost 10 s.
    store: float = 60.0
    join: float = 30.0  # For ranks to meet: connections, and again names
    # For the 4 MiB whose sums are compared: an MTU black hole lets ranks join, and then nothing
    # arrives.
    correct: float = 20.0
    # For some all-reduces of 64 MiB, half a second each on 1 Gbit/s. With joining it took 33 s on
    # two cores under a load of 51, with name servers that never answered.
    measure: float = 60.0
    # Until no further round of pairs begins, once an all-reduce of all has failed.
    pairs: float = 45.0
    poll: float = 0.1
