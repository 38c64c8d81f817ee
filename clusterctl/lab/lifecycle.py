"""`lab up`, `lab down` and `lab status`: what the lab shall be, and what the machine reports.

Every part looks at the machine first and does only what is missing, so a second `up`
changes nothing, and one after a kill finishes what the first began. Nothing is believed
because a file says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from clusterctl.errors import RequirementsNotMet, raise_all
from clusterctl.lab import (
    base,
    builds,
    cgroups,
    hosts,
    keys,
    light,
    mirror,
    network,
    nspawn,
    packages,
    room,
)
from clusterctl.lab.cache import cached_directory
from clusterctl.lab.caches import Caches, caches, prune_caches
from clusterctl.lab.image import build_image, link_archives
from clusterctl.lab.inventories import lab_inventory
from clusterctl.lab.layout import CONTROL, FABRIC, LabHost, lab_hosts
from clusterctl.lab.lock import exclusive
from clusterctl.lab.models import build_models
from clusterctl.lab.mounts import mounts_under, remove_tree
from clusterctl.lab.network import NETWORKS
from clusterctl.lab.paths import LabPaths, lab_paths
from clusterctl.lab.requirements import LabUnavailable, check_machine
from clusterctl.lab.status import LabStatus, observe
from clusterctl.lab.wheels import build_wheels

Say = Callable[[str], None]


@dataclass(frozen=True)
class LabUp:
    """What `up` did, one line a change (none: all was as it should be), and where the
    inventory lies."""

    changes: tuple[str, ...]
    inventory: Path


class _Journal:
    """Collects what changed; a step is announced before it runs, as some take minutes."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.changes: list[str] = []

    def note(self, changed: bool, text: str) -> None:
        if changed:
            self.changes.append(text)
            self.say(text)

    def build(self, place: Path, build: Callable[[Path], None], what: str) -> None:
        """Build `place` when it is not in the cache."""
        if not place.is_dir():
            self.say(f"building: {what}")
        self.note(cached_directory(place, build), f"built: {what}")


def up(
    count: int = 2,
    *,
    link_rate: str | None = None,
    image: bool = True,
    model: str = "tiny",
    inventory: Path | None = None,
    say: Say = print,
) -> LabUp:
    """Make the lab: `count` hosts that answer to SSH, the mirror, the image, the inventory.

    `link_rate` (200mbit) limits every cable both ways; None lifts a limit. Without `image`
    there are bare hosts and their packages only, in a quarter of the time. `model` is what is
    to be served: a machine without the memory for it is refused.
    """
    wanted = lab_hosts(count)
    rate = None if link_rate is None else network.parse_rate(link_rate)
    check_machine()
    paths = lab_paths()
    _refuse_other_lab(paths)
    journal = _Journal(say)
    target = inventory or paths.inventory
    with exclusive(paths.lock), _open_modes():
        builds.end_builds()
        source = base.machine_source()
        built = caches(paths, source.suite)
        _check_room(paths, wanted, built, model if image else None)
        _ensure_base(built, source, journal)
        _ensure_networks(journal)
        journal.note(keys.ensure_identity(paths), "made the lab's SSH key")
        _remove_surplus(paths, wanted, journal)
        _ensure_mirror(paths, built, journal)
        _ensure_hosts(paths, wanted, built, rate, journal)
        _write_lists(paths, wanted, target, journal)
        if image:
            _ensure_image(paths, source, built, journal)
    return LabUp(tuple(journal.changes), target)


def down(*, purge: bool = False, say: Say = print) -> tuple[str, ...]:
    """Take everything down, also what an interrupted run left; with `purge` caches too."""
    check_machine()
    paths = lab_paths()
    _refuse_other_lab(paths)
    journal = _Journal(say)
    with exclusive(paths.lock):
        builds.end_builds()
        journal.note(light.stop(paths), "removed the light hosts")
        for name in hosts.host_names(paths):
            host = hosts.host_by_name(name)
            hosts.power_off(host, paths)
            hosts.remove_disk(host, paths)
            journal.note(True, f"removed {name}")
        cgroups.kill_all()
        cgroups.remove()
        journal.note(mirror.stop_mirror(paths.mirror), "stopped the package mirror")
        _remove_networks(journal)
        _remove_files(paths)
        journal.note(purge and _purge(paths), f"removed all caches from {paths.root}")
    return tuple(journal.changes)


def status() -> LabStatus:
    """What there is of the lab on this machine."""
    check_machine(root=False)
    return observe(lab_paths())


def _refuse_other_lab(paths: LabPaths) -> None:
    """Addresses and names are fixed: a machine has one lab."""
    for point in mounts_under(Path("/")):
        if point.name == "root" and point.parent.parent.name == "hosts":
            other = point.parents[2]
            if other != paths.root and (other / "keys").is_dir():
                raise LabUnavailable(
                    f"another lab is up on this machine, in {other}",
                    hint=f"CLUSTERCTL_LAB_DIR={other} clusterctl lab down",
                )


@contextmanager
def _open_modes() -> Iterator[None]:
    """Hosts and images are made of files that this process makes: with an operator's umask of 077
    nobody but root could use them."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def _check_room(
    paths: LabPaths, wanted: tuple[LabHost, ...], built: Caches, model: str | None
) -> None:
    """Hosts that have a disk hold most of what they will; those that run have their memory."""
    new = sum(not hosts.has_disk(host, paths) for host in wanted)
    needed = room.disk_needed(built, new, image=model is not None)
    problems = [room.lack_of_disk(paths.root, needed)]
    if not any(nspawn.is_running(host) for host in wanted):
        problems.append(room.lack_of_memory(len(wanted), model, room.available_memory()))
    raise_all(problem for problem in problems if problem)


def _ensure_base(built: Caches, source: base.AptSource, journal: _Journal) -> None:
    journal.build(
        built.base,
        lambda place: base.build_base(place, source),
        f"the tree that all hosts have in common ({source.suite})",
    )


def _ensure_networks(journal: _Journal) -> None:
    for part in (CONTROL, FABRIC):
        journal.note(network.ensure_network(part), f"made the {part.name} network {part.subnet}")


def _ensure_mirror(paths: LabPaths, built: Caches, journal: _Journal) -> None:
    journal.build(
        built.packages,
        lambda place: packages.build_apt_repository(place, built.base),
        "packages that bare hosts may ask for",
    )
    changed = mirror.ensure_mirror(paths.mirror, {"debian": built.packages})
    journal.note(changed, f"serving packages at {mirror.MIRROR_URL}")


def _ensure_image(
    paths: LabPaths, source: base.AptSource, built: Caches, journal: _Journal
) -> None:
    journal.build(
        built.wheels,
        lambda place: build_wheels(place, built.base),
        "vLLM, PyTorch and Ray for CPU (0.7 GB to download)",
    )
    journal.build(
        built.wheel_index,
        lambda place: packages.build_wheel_index(place, built.wheels),
        "index of these wheels",
    )
    contents = {"pip/simple": built.wheel_index / "simple", "pip/files": built.wheels}
    journal.note(mirror.ensure_mirror(paths.mirror, contents), "serving wheels as well")
    journal.build(
        built.image,
        lambda place: build_image(place, source, built.wheels, journal.say),
        "image with vLLM and Ray (some minutes)",
    )
    journal.note(link_archives(paths, built.image), f"image: {paths.image_archive}")


def _ensure_hosts(
    paths: LabPaths, wanted: tuple[LabHost, ...], built: Caches, rate: int | None, journal: _Journal
) -> None:
    journal.build(built.models, build_models, "models")
    for host in wanted:
        cabled = network.ensure_host_network(host)
        journal.note(cabled, f"{host.name}: plugged {' and '.join(n.name for n in host.nics)}")
        limited = network.ensure_rate(host, rate)
        journal.note(limited, f"{host.name}: link rate {f'{rate} bit/s' if rate else 'unlimited'}")
        fresh = hosts.ensure_disk(host, paths, built.base, built.models)
        journal.note(fresh, f"{host.name}: made its disk")
        journal.note(hosts.power_on(host, paths, wait=False), f"{host.name}: powered on")
    hosts.wait_for_ssh(wanted, paths)


def _remove_surplus(paths: LabPaths, wanted: tuple[LabHost, ...], journal: _Journal) -> None:
    for name in set(hosts.host_names(paths)) - {host.name for host in wanted}:
        host = hosts.host_by_name(name)
        hosts.power_off(host, paths)
        hosts.remove_disk(host, paths)
        network.remove_namespaces([host.namespace])
        journal.note(True, f"removed {name}")


def _write_lists(
    paths: LabPaths, wanted: tuple[LabHost, ...], inventory: Path, journal: _Journal
) -> None:
    lines = [line for host in wanted
             for line in keys.known_hosts_lines(paths.host(host.name) / "keys", host)]  # fmt: skip
    _write_if_other(paths.known_hosts, "\n".join(lines) + "\n")
    changed = _write_if_other(inventory, lab_inventory(wanted, paths))
    journal.note(changed, f"wrote {inventory}")


def _write_if_other(file: Path, text: str) -> bool:
    if file.is_file() and file.read_text() == text:
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return True


def _remove_networks(journal: _Journal) -> None:
    gone = False
    for part in NETWORKS:
        gone |= network.remove_network(part)
    gone |= network.remove_namespaces(network.namespaces())
    network.remove_namespace_mount()
    journal.note(gone, "removed namespaces, cables and bridges")


def _remove_files(paths: LabPaths) -> None:
    """All but the caches, and of these what older versions built."""
    for directory in (paths.hosts, paths.light, paths.mirror, paths.keys):
        remove_tree(directory)
    for file in (paths.inventory, paths.light_inventory, paths.root / "mirror.log"):
        file.unlink(missing_ok=True)
    # Without a checkout there is no telling which caches are current: they stay.
    with suppress(RequirementsNotMet):
        prune_caches(caches(paths, base.machine_source().suite))


def _purge(paths: LabPaths) -> bool:
    """The caches, and the lab directory itself unless somebody keeps other files there."""
    had_caches = paths.cache.is_dir()
    for directory in (paths.image, paths.cache):
        remove_tree(directory)
    paths.lock.unlink(missing_ok=True)
    with suppress(OSError):
        paths.root.rmdir()
    return had_caches
