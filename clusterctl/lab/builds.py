"""Run build commands: with a log, and in a control group of their own, so that no process of a
build outlives the run that started it."""

from __future__ import annotations

import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from clusterctl import deadlines
from clusterctl.errors import StepFailed
from clusterctl.lab import cgroups, nspawn
from clusterctl.lab.local import run
from clusterctl.lab.requirements import LabUnavailable

GROUP = "build"
# Seconds before a download is tried again.
PAUSES = (5.0, 30.0)
# Seconds within which a reachable server begins to answer.
ANSWER_LIMIT = 10.0


def run_build(argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> None:
    """Run a build command to its end; on an error or interrupt kill all of its processes."""
    end_builds()
    files = cgroups.create(GROUP)
    try:
        grouped = nspawn.in_groups(files, argv)
        run(grouped, log=log, env=env, timeout=deadlines.LAB_BUILD, shown=argv)
    finally:
        end_builds()


def persistently(build: Callable[[], None], source: str | None = None) -> None:
    """Call `build`, which downloads much, up to three times: servers fail now and then. Raises
    LabUnavailable, at once, when this machine cannot reach `source`, a URL."""
    for pause in PAUSES:
        try:
            return build()
        except StepFailed as error:
            if source and (why := out_of_reach(source)):
                raise LabUnavailable(
                    f"the lab's packages cannot be downloaded: {why}",
                    hint="look at /etc/resolv.conf, `ip route`, http_proxy and apt's sources",
                ) from error
            time.sleep(pause)
    return build()


def out_of_reach(url: str) -> str | None:
    """Return why no server answers at `url`; None if one does, with any status."""
    server = urlsplit(url)
    proxy = urlsplit(urllib.request.getproxies().get(server.scheme, ""))
    if urllib.request.proxy_bypass(server.hostname or ""):
        proxy = urlsplit("")
    by = f" through the proxy {proxy.hostname}:{proxy.port}" if proxy.hostname else ""
    try:
        # An opener of its own: urlopen keeps the proxies that the process first had.
        urllib.request.build_opener().open(url, timeout=ANSWER_LIMIT).close()
    except OSError as error:
        reason = getattr(error, "reason", error)
        if isinstance(error, urllib.error.HTTPError) or isinstance(reason, ssl.SSLError):
            return None
        return f"{server.netloc} does not answer{by}: {getattr(reason, 'strerror', None) or reason}"
    return None


def end_builds() -> None:
    """Kill the build of an interrupted run."""
    cgroups.kill_all(GROUP)
    cgroups.remove(GROUP)


def run_in_tree(
    root: Path,
    argv: Sequence[str],
    *,
    binds: Mapping[Path, str],
    env: Mapping[str, str],
    log: Path,
) -> None:
    """Run a command inside a tree, without a network, with `binds` mounted read-only."""
    command = [
        "systemd-nspawn",
        "--quiet",
        f"--directory={root}",
        f"--machine={GROUP}",
        "--register=no",
        "--keep-unit",
        "--private-network",
        "--as-pid2",
        "--pipe",
        "--resolv-conf=off",
        "--timezone=off",
        "--link-journal=no",
        *(f"--bind-ro={source}:{target}" for source, target in binds.items()),
        *(f"--setenv={name}={value}" for name, value in env.items()),
        *argv,
    ]
    run_build(command, log=log, env={"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "0"}
              if not cgroups.unified_only() else None)  # fmt: skip
