"""Every duration in seconds that code inside node containers uses, in one place.

The durations used on the operator's machine are in `clusterctl/deadlines.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Durations of the supervisor. Only tests change them."""

    tick: float = 0.2  # Pause between two rounds of the main loop
    state_every: float = 3.0  # state.json is written at least this often

    ray_backoff_first: float = 1.0
    ray_backoff_max: float = 30.0
    ray_steady: float = 60.0  # After this long up, the backoff starts from its first value again
    # The longest that `ray start` may take, which itself waits 120 s for a GCS that reads tables
    ray_start: float = 180.0
    gcs_steady: float = 10.0  # A GCS that ends sooner is not started again alone
    ray_stop: float = 10.0  # From SIGTERM to SIGKILL
    # How long the GCS may count a raylet that was killed as alive: 3 checks, one every 2 s
    # (DEAD_NODE_DETECTION in ray_cluster/nodes.py). A new one on this host must not join before: it
    # would be given bundles of the old one's placement groups just as these are removed, after
    # which its GPUs may count as taken until it ends (Ray 2.60).
    raylet_counted: float = 6.0
    head_poll: float = 1.0  # How often a worker looks for its head's GCS
    watch_interval: float = 1.0  # How often ray-watch asks the GCS, which takes a few ms
    worker_watch_interval: float = 3.0  # The same on a worker, which only needs its own entry
    watch_silence: float = 20.0  # Without a line for this long, ray-watch is restarted
    parts_every: float = 2.0  # How often Ray's processes are counted; missing twice means gone
    # How long the GCS may list this host's node as dead or not at all before Ray is restarted.
    unlisted_limit: float = 4.0
    # How long a GCS may be silent before the head restarts Ray, which ends all services: on an
    # overloaded machine ray-watch is restarted after 20 s, and takes 30 s to start again.
    gcs_silence: float = 90.0

    service_backoff_first: float = 2.0
    service_backoff_max: float = 120.0
    attempts_until_failed: int = 5
    # The longest that a service may take to stop, whatever its document says: Docker waits 90 s for
    # the whole container.
    stop_limit: float = 70.0
    # The same for one that has not answered yet: it has no request to finish, and vLLM loads to the
    # end before it heeds SIGTERM.
    stop_loading: float = 3.0
    import_ahead: float = 60.0  # How long it is ready before vLLM is imported for its next start
    # A node lost within this time after vLLM's end counts as the cause of that end. A dead node is
    # known after 18 s (DEAD_NODE_DETECTION in ray_cluster/nodes.py).
    blame_limit: float = 30.0
    # How long the GCS may not reach a raylet that came back to its address: gRPC connects again 1,
    # 2.6, 5.2, 9.3 and 15.8 s after a connection broke, give or take a fifth. A placement group
    # that fails for this stays pending, and the GCS counts its GPUs as taken until that raylet ends
    # (Ray 2.60).
    rejoin: float = 8.0
    snapshot_age: float = 10.0  # An older snapshot of ray-watch proves nothing

    connect_every: float = 0.5  # How often a port that is not open yet is tried
    http_timeout: float = 10.0
    answer_timeout: float = 120.0  # For the first answer, for which vLLM may still compile kernels
    scrape_every: float = 5.0
    adapter_retry: float = 30.0  # Until an adapter that could not be loaded is tried again
    # Seconds without a sign of life after which an idle engine is sent a request.
    canary_every: float = 15.0
    # With the two above, a hung idle engine is noticed within 50 s of its last sign of life, so
    # that stall_timeout (ServiceDocument) also holds for idle engines.
    canary_timeout: float = 30.0
    # For an engine to fall asleep or wake up. The first sleep pins host memory: 54 s for 31 GiB of
    # each of two ranks on H100.
    sleep_limit: float = 300.0
    # How long a service has no request before an engine sleeps for another one to start: for its
    # standby, or for the first one again. Doubled for each start that a request ended.
    quiet_first: float = 10.0
    quiet_longest: float = 600.0
    # How long one of two services that swap keeps the GPUs while it has work, before new requests
    # wait, and the other one gets its turn. Each turn costs a sleep and a waking.
    swap_least: float = 5.0
    # Replicas that are asked as they are needed: how often their load is looked at, for how long a
    # target must be missed before more are asked, how long these then have to relieve the others,
    # and for how long fewer must have sufficed before one is left out.
    scale_every: float = 1.0
    scale_patience: float = 2.0
    scale_settle: float = 5.0
    scale_calm: float = 60.0
    # How long a standby keeps requests while the other engine works. vLLM ends within a few seconds
    # after its engine failed a request for good.
    standby_refuses: float = 15.0
    # For a driver of GPUs to give memory back: after Ray no longer lists them, ranks of other hosts
    # have the first, and the second for each GiB that they may have pinned; all have at most the
    # third, since one may hang. A killed process on H100 kept 60 GiB for 0.2 s, and for 3.8 s if it
    # had pinned 16 GiB of the host's memory.
    memory_freed: float = 1.0
    memory_freed_per_gib: float = 0.25
    memory_stuck: float = 60.0
    silence_shown: float = 10.0  # A missing sign of life is reported after this long, two readings

    # A gateway that ended is back within 2 s.
    gateway_backoff_first: float = 0.3
    gateway_backoff_max: float = 30.0
    gateway_first: float = 3.0  # How long the first start waits for a member that is ready
    gateway_steady: float = 10.0  # After this long, the backoff starts from its first value again
    gateway_silence: float = 5.0  # A gateway whose socket is silent this long is started again
    gateway_repeat: float = 5.0  # How often the gateway is told everything again
    gateway_look: float = 1.0  # How often it is asked for the requests in flight
    gateway_counts_every: float = 2.0  # How often its counts are kept in their file
    gateway_stop: float = 5.0  # For its thread to end

    nics_every: float = 2.0  # How often the node's NICs are checked, which takes a few ms
    # For vLLM to end by itself after one of its ranks did: its error message is more precise.
    rank_patience: float = 5.0
    # How long Ray may answer without all ranks of a service that is ready before it is reported: a
    # GCS that was killed within a second of their start has lost them for good.
    ranks_listed: float = 60.0

    gpus_every: float = 60.0
    gpus_timeout: float = 20.0
    readings_every: float = 10.0
    # Ranks hang until their stacks are taken: on this host, and on all, which hear of it by
    # worker_watch_interval.
    evidence_here: float = 4.0
    evidence_everywhere: float = 10.0
    evidence_pause: float = 1.5  # In which processes write their stacks
    evidence_age: float = 60.0  # An older word in the GCS is not followed
    versions_every: float = 60.0  # How often installed packages are compared with the ledger


# The whole fabric gate, which then reports what it was waiting for. Even on the slowest machines
# its steps take less than this in sequence, though the sum of their limits is larger.
GATE = 600.0


@dataclass(frozen=True)
class GateTiming:
    """How long the fabric gate waits for each step. Only tests change it."""

    # Ray takes 2 to 6 s to start a worker process on two busy cores, 8.5 s under a load of 34.
    arrive: float = 60.0
    answer: float = 20.0  # For an agent to answer at all
    # torch with CUDA is gigabytes, read from a cold disk the first time; without CUDA it took 25
    # to 27 s on two cores under a load of 34 to 64.
    importing: float = 180.0
    # The store opens in a moment under any load, but torch first looks up the name of its address,
    # and name servers that never answer cost 10 s.
    store: float = 60.0
    join: float = 30.0  # For ranks to meet: connections, and name look-ups again
    # For the 4 MiB whose sums are compared: with an MTU black hole ranks join, but then nothing
    # arrives.
    correct: float = 20.0
    # For some all-reduces of 64 MiB, half a second each on 1 Gbit/s. With joining it took 33 s on
    # two cores under a load of 51, with name servers that never answered.
    measure: float = 60.0
    # After this long, once an all-reduce of all nodes has failed, no further round of pairs begins.
    pairs: float = 45.0
    poll: float = 0.1


class Backoff:
    """Seconds to wait between attempts: `first`, then doubling, at most `longest`."""

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self.failures = 0  # In a row

    def failed(self) -> float:
        """Count a failure and return the wait before the next attempt."""
        delay = min(self._first * 2.0 ** min(self.failures, 32), self._longest)
        self.failures += 1
        return delay

    def succeeded(self) -> None:
        self.failures = 0
