"""Every duration the supervisor lives by, in seconds, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Tests shorten them; nothing else does."""

    tick: float = 0.2
    """Pause between two rounds of the main loop."""
    state_every: float = 3.0
    """state.json is written at least this often."""

    ray_backoff_first: float = 1.0
    ray_backoff_max: float = 30.0
    ray_steady: float = 60.0
    """Up for this long, and the next failure counts as the first again."""
    ray_stop: float = 10.0
    """From SIGTERM to SIGKILL."""
    head_poll: float = 1.0
    """How long a worker holds a connection to its head's GCS before it tries another."""
    watch_interval: float = 1.0
    """How often ray-watch asks the GCS: a few milliseconds of work."""
    worker_watch_interval: float = 3.0
    """The same on a worker, which looks for itself alone."""
    watch_silence: float = 20.0
    """Without a line for this long, ray-watch is started anew."""
    parts_every: float = 2.0
    """How often Ray's own processes are counted; what is missing twice is gone."""
    unlisted_limit: float = 4.0
    """How long the GCS may know no living node of this host before Ray is started anew."""
    gcs_silence: float = 45.0
    """How long a GCS may be silent before the head starts Ray anew: ray-watch itself takes up to
    20 s to start on a machine that is overloaded."""

    service_backoff_first: float = 2.0
    service_backoff_max: float = 120.0
    attempts_until_failed: int = 5
    stop_limit: float = 70.0
    """The longest that a service may take to stop, whatever its document says: Docker waits
    90 s for the whole container."""
    snapshot_age: float = 10.0
    """An older report of ray-watch proves nothing."""

    connect_every: float = 0.5
    """How often a port that does not answer yet is tried."""
    http_timeout: float = 10.0
    answer_timeout: float = 120.0
    """For the first answer, which may still compile something."""
    scrape_every: float = 5.0
    canary_every: float = 15.0
    """An idle engine that showed no sign of life for this long is asked for one."""
    canary_timeout: float = 30.0
    """With the two above: a service that owes a sign of life has failed to give one by 50 s after
    the last, so that stall_timeout (ServiceDocument) holds for idle engines too."""
    silence_shown: float = 10.0
    """From here on a missing sign of life is told: two looks saw none."""

    nics_every: float = 2.0
    """How often the node's NICs are looked at: a few milliseconds."""
    gpus_every: float = 60.0
    gpus_timeout: float = 20.0
