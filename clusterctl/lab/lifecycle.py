"""`lab up`, `lab down` and `lab status`: what the lab shall be, and what the machine reports.

Every part looks at the machine first and does only what is missing, so a second `up`
changes nothing, and one after a kill finishes what the first began. Nothing is believed
because a file says so.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clusterctl.lab import base, builds, cgroups, hosts, keys, light, mirror, network, packages
from clusterctl.lab.cache import cached_directory
from clusterctl.lab.image import ensure_image
from clusterctl.lab.inventories import lab_inventory
from clusterctl.lab.layout import CONTROL, FABRIC, LabHost, lab_hosts
from clusterctl.lab.lock import exclusive
from clusterctl.lab.models import build_models, models_key
from clusterctl.lab.mounts import mounts_under, remove_tree
from clusterctl.lab.network import NETWORKS
from clusterctl.lab.paths import LabPaths, lab_paths
from clusterctl.lab.requirements import LabUnavailable, check_machine
from clusterctl.lab.wheels import ensure_wheels

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


def up(
    count: int = 2,
    *,
    link_rate: str | None = None,
    image: bool = True,
    inventory: Path | None = None,
    say: Say = print,
) -> LabUp:
    """Make the lab: `count` hosts that answer to SSH, the mirror, the image, the inventory.

    `link_rate` (200mbit) limits every cable both ways; None lifts a limit. Without `image`
    nothing is built or served beyond bare hosts.
    """
    wanted = lab_hosts(count)
    rate = None if link_rate is None else network.parse_rate(link_rate)
    check_machine()
    paths = lab_paths()
    journal = _Journal(say)
    with exclusive(paths.lock):
        _refuse_other_lab(paths)
        builds.end_builds()
        source = base.machine_source()
        tree = _ensure_base(paths, source, journal)
        _ensure_networks(journal)
        journal.note(keys.ensure_identity(paths), "made the lab's SSH key")
        _remove_surplus(paths, wanted, journal)
        _ensure_mirror(paths, tree, journal, image=image)
        _ensure_hosts(paths, wanted, tree, rate, journal)
        target = inventory or paths.inventory
        _write_lists(paths, wanted, target, journal)
        if image:
            wheels = ensure_wheels(paths, tree, say)
            built = ensure_image(paths, source, wheels, say)
            journal.note(built, f"built the image {paths.image_archive}")
    return LabUp(tuple(journal.changes), target)


def down(*, purge: bool = False, say: Say = print) -> tuple[str, ...]:
    """Take everything down, also what an interrupted run left; with `purge` caches too."""
    check_machine()
    paths = lab_paths()
    journal = _Journal(say)
    with exclusive(paths.lock):
        names = hosts.host_names(paths)
        journal.note(cgroups.kill_all(), "powered off all hosts")
        journal.note(light.stop(paths), "ended the light hosts")
        for name in names:
            journal.note(hosts.remove_disk(hosts.host_by_name(name), paths), f"removed {name}")
        cgroups.remove()
        journal.note(mirror.stop_mirror(paths.mirror), "stopped the package mirror")
        _remove_networks(journal)
        _remove_files(paths, purge=purge)
        journal.note(purge, f"removed {paths.root}")
    return tuple(journal.changes)


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


def _ensure_base(paths: LabPaths, source: base.AptSource, journal: _Journal) -> Path:
    tree = paths.cache / "base" / base.base_key(source.suite)
    if not tree.is_dir():
        journal.say(f"building the common tree of all hosts ({source.suite}, about half a minute)")
    built = cached_directory(tree, lambda place: base.build_base(place, source))
    journal.note(built, f"built {tree}")
    return tree


def _ensure_networks(journal: _Journal) -> None:
    for part in (CONTROL, FABRIC):
        journal.note(network.ensure_network(part), f"made the {part.name} network {part.subnet}")


def _ensure_mirror(paths: LabPaths, tree: Path, journal: _Journal, *, image: bool) -> None:
    repository = paths.cache / "packages" / packages.packages_key(tree.name)
    if not repository.is_dir():
        journal.say("downloading the packages that bare hosts may ask for")
    built = cached_directory(repository, lambda place: packages.build_apt_repository(place, tree))
    journal.note(built, f"built {repository}")
    contents = {"debian": repository}
    if image:
        wheels = ensure_wheels(paths, tree, journal.say)
        index = paths.cache / "wheel-index" / wheels.name
        cached_directory(index, lambda place: packages.build_wheel_index(place, wheels))
        contents |= {"pip/simple": index / "simple", "pip/files": wheels}
    changed = mirror.ensure_mirror(paths.mirror, contents)
    journal.note(changed, f"serving packages at {mirror.MIRROR_URL}")


def _ensure_hosts(
    paths: LabPaths, wanted: tuple[LabHost, ...], tree: Path, rate: int | None, journal: _Journal
) -> None:
    models = paths.cache / "models" / models_key()
    journal.note(cached_directory(models, build_models), f"made {models}")
    for host in wanted:
        cabled = network.ensure_host_network(host)
        journal.note(cabled, f"{host.name}: plugged {' and '.join(n.name for n in host.nics)}")
        limited = network.ensure_rate(host, rate)
        journal.note(limited, f"{host.name}: links at {'full speed' if rate is None else rate}")
        fresh = hosts.ensure_disk(host, paths, tree, models)
        journal.note(fresh, f"{host.name}: made its disk")
        journal.note(hosts.power_on(host, paths, wait=False), f"{host.name}: powered on")
    hosts.wait_for_ssh(wanted, paths)


def _remove_surplus(paths: LabPaths, wanted: tuple[LabHost, ...], journal: _Journal) -> None:
    for name in set(hosts.host_names(paths)) - {host.name for host in wanted}:
        host = hosts.host_by_name(name)
        hosts.power_off(host, paths)
        hosts.remove_disk(host, paths)
        network.remove_hosts([host.namespace])
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
    gone = network.remove_hosts(network.namespaces())
    gone |= network.remove_stray_links()
    for part in NETWORKS:
        gone |= network.remove_network(part)
    journal.note(gone, "removed namespaces, cables and bridges")


def _remove_files(paths: LabPaths, *, purge: bool) -> None:
    for directory in (paths.hosts, paths.light, paths.mirror, paths.keys):
        remove_tree(directory)
    for file in (paths.inventory, paths.light_inventory, paths.root / "mirror.log"):
        file.unlink(missing_ok=True)
    if purge:
        remove_tree(paths.image)
        remove_tree(paths.cache)
        shutil.rmtree(paths.root)
